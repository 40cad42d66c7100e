"""Which of several attention providers a model gets on a device: the fastest, timed once per machine."""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from pathlib import Path

import pytest
import tgi_conformance

from tests.accelerators.timed_attention import Given, TimedKit, chosen, run_rank
from tests.engine.rank_pair import rank_worker
from tgi_core.backend import OutOfMemory

MODELS = Path(tgi_conformance.__file__).with_name("golden") / "models"
LLAMA, GPT2 = MODELS / "llama", MODELS / "gpt2"

SLOW, FAST = Given(20, 200), Given(5, 50)
BOTH = {"slow": SLOW, "fast": FAST}


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def kept(tmp_path: Path) -> list[Path]:
    """The files that starts have left."""
    return sorted((tmp_path / "cache").rglob("*.json"))


@pytest.mark.parametrize("folder", [LLAMA, GPT2], ids=["a table", "transformers' modules"])
def test_the_fastest_is_taken(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Of two that pass their self-check, the later but faster one; the figures are told, and logged in one line."""
    with caplog.at_level(logging.INFO, "tgi_core.engine"):
        kernel = chosen(folder, TimedKit(BOTH))
    layers = json.loads((folder / "config.json").read_text())
    count = layers.get("num_hidden_layers") or layers["n_layer"]
    figures = {name: (count * each.decode_us, count * each.decode_us, count * each.prompt_us) for name, each in BOTH.items()}
    told = ", ".join(f"{name} {' + '.join(f'{time:.0f}' for time in times)} µs" for name, times in figures.items())
    assert kernel.name == "fast" and kernel.reason == f"timed for 1 row, 16 rows, a prompt: {told}"
    assert f"attention: fast; {kernel.reason}" in caplog.messages


def test_the_order_decides_between_equals() -> None:
    """A provider that is faster by less than noise does not displace the first."""
    assert chosen(LLAMA, TimedKit({"slow": SLOW, "other": Given(19.5, 199)})).name == "slow"


@pytest.mark.parametrize("folder", [LLAMA, GPT2], ids=["a table", "transformers' modules"])
def test_later_starts_do_not_time(folder: Path, tmp_path: Path) -> None:
    """The figures of the first start decide at the second, whose own would say otherwise; only what is used is checked again."""
    given = BOTH | {"third": Given(30, 300)}
    first = chosen(folder, TimedKit(given))
    kit = TimedKit({"slow": FAST, "fast": SLOW, "third": FAST})
    again = chosen(folder, kit)
    assert again == replace(first, reason=f"{first.reason}, at an earlier start") and again.name == "fast"
    assert {each.name: each.checks for each in kit.made} == {"slow": 1, "fast": 1, "third": 0}
    assert len(kept(tmp_path)) == 1


def test_figures_are_of_their_machine(tmp_path: Path) -> None:
    """Another device, another model and a device without graphs are timed by themselves."""
    chosen(LLAMA, TimedKit(BOTH))
    assert chosen(LLAMA, TimedKit({"slow": FAST, "fast": SLOW}, device="Device Y")).name == "slow"
    assert chosen(LLAMA, TimedKit({"slow": FAST, "fast": SLOW}, captures=False)).name == "slow"
    assert chosen(GPT2, TimedKit({"slow": FAST, "fast": SLOW})).name == "slow"
    assert len(kept(tmp_path)) == 4


@pytest.mark.parametrize(
    "damage",
    [
        "",
        "{",
        "[]",
        '{"times": {"fast": [1, 1, 1]}, "reasons": {}}',
        '{"times": {"fast": [1, 1, 1], "slow": [9, 9]}, "reasons": {}}',
        '{"times": {"fast": [1, 1, 1], "slow": [9, 9, 0]}, "reasons": {}}',
        '{"times": {"fast": [1, 1, 1], "slow": [9, 9, true]}, "reasons": {}}',
        '{"times": {"fast": [1, 1, 1]}, "reasons": {"slow": 3}}',
        '{"times": {"fast": [1, 1, 1], "slow": [9, 9, 9], "/bin/sh": [1, 1, 1]}, "reasons": {}}',
    ],
)
def test_damaged_figures_are_timed_again(damage: str, tmp_path: Path) -> None:
    """A file that is no longer what was written counts as none, and is replaced."""
    chosen(LLAMA, TimedKit(BOTH))
    (file,) = kept(tmp_path)
    good = file.read_text()
    file.write_text(damage)
    kernel = chosen(LLAMA, TimedKit(BOTH))
    assert kernel.name == "fast" and "earlier" not in kernel.reason and file.read_text() == good


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    """Every start times for itself."""
    (tmp_path / "cache").write_text("")
    assert chosen(LLAMA, TimedKit(BOTH)).name == "fast"
    assert chosen(LLAMA, TimedKit({"slow": FAST, "fast": SLOW})).name == "slow"


def test_a_named_provider_is_not_timed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the operator names is taken in the operator's order."""
    monkeypatch.setenv("TGI_HOST_ATTENTION", "slow,fast")
    kernel = chosen(LLAMA, TimedKit(BOTH))
    assert (kernel.name, kernel.reason) == ("slow", "") and not kept(tmp_path)


def test_a_fault_while_timing(tmp_path: Path) -> None:
    """A provider that fails is out, with the reason; nothing is kept, since it may be gone at the next start."""
    kernel = chosen(LLAMA, TimedKit(BOTH | {"faulty": replace(FAST, fault=OutOfMemory("no room"))}))
    assert kernel.name == "fast" and kernel.reason.startswith("not faulty: OutOfMemory: no room; timed for")
    assert not kept(tmp_path)
    first = chosen(LLAMA, TimedKit({"faulty": replace(SLOW, fault=RuntimeError("no kernel")), "other": SLOW}))
    assert (first.name, first.reason) == ("other", "not faulty: RuntimeError: no kernel")
    alone = chosen(LLAMA, TimedKit({name: replace(each, fault=RuntimeError("no kernel")) for name, each in BOTH.items()}))
    assert alone.name == "slow"


def test_what_cannot_be_captured_is_out() -> None:
    """On a device that captures decode steps, a provider that needs the host in each would slow down all the rest of a step; elsewhere it
    takes part. Later starts know the reason."""
    given = BOTH | {"planner": Given(1, 10, plans=True)}
    for when in ("", ", at an earlier start"):
        kernel = chosen(LLAMA, TimedKit(given))
        assert kernel.name == "fast" and kernel.reason.endswith(f"µs{when}")
        assert kernel.reason.startswith("not planner: its steps cannot be captured: it plans every step on the host; timed for")
    assert chosen(LLAMA, TimedKit(given, captures=False)).name == "planner"


def test_larger_blocks_do_not_compete(tmp_path: Path) -> None:
    """A faster provider whose blocks are larger than the first's would share fewer prefixes."""
    kernel = chosen(LLAMA, TimedKit({"slow": SLOW, "large": replace(FAST, block_sizes=(256,))}))
    assert (kernel.name, kernel.reason) == ("slow", "") and not kept(tmp_path)


@pytest.mark.parametrize("folder", [LLAMA, GPT2], ids=["a table", "transformers' modules"])
def test_a_provider_that_was_right_once(folder: Path) -> None:
    """The fastest of an earlier start is checked again before it is used; if it is wrong now, the next one runs."""
    given = BOTH | {"third": Given(10, 100)}
    chosen(folder, TimedKit(given))
    kernel = chosen(folder, TimedKit(given | {"fast": replace(FAST, wrong="it has become wrong")}))
    assert kernel.name == "third" and "not fast: it has become wrong" in kernel.reason


@pytest.mark.parametrize("table", [True, False], ids=["a table", "transformers' modules"])
def test_ranks_agree(table: bool, tmp_path: Path) -> None:
    """Two ranks that measure otherwise choose one provider, by the slower rank's times: at the first start, and again at a later one."""
    decode_us = [{"one": 20, "two": 10, "three": 15}, {"one": 20, "two": 30, "three": 15}]
    with rank_worker("tests.accelerators.timed_attention") as link:
        for start in range(2):
            store = tmp_path / f"store-{start}"
            link.send([str(LLAMA), str(store), table, decode_us])
            ours, theirs = run_rank(LLAMA, store, 0, table, decode_us), link.receive(120)
            assert ours == theirs and ours["name"] == "three"
            assert ours["reason"].endswith("at an earlier start") is bool(start)
