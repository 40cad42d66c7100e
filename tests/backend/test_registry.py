"""Discovery: what is wrong with one plugin is in its record, and the choice among several is never a guess."""

from __future__ import annotations

import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tgi_core.backend import API_VERSION, Manifest, Probe, ProbeStatus
from tgi_core.backend.probe import decode, encode, probe
from tgi_core.backend.registry import Plugin, PluginStatus, find, incompatibility, installed, load, select
from tgi_core.errors import StartupError

READY, ABSENT, BROKEN = (
    Probe(status, reason="because") for status in (ProbeStatus.READY, ProbeStatus.ABSENT, ProbeStatus.BROKEN)
)


def plugin(name: str, kind: str) -> Plugin:
    """A plugin that loaded."""
    return Plugin(name, f"tgi-backend-{name} 1.0", PluginStatus.OK, manifest=Manifest(name, "v", "1", (1, 0), (1, 0), kind))


CPU, ONE, TWO = plugin("cpu", "cpu"), plugin("one", "accelerator"), plugin("two", "accelerator")


@pytest.mark.parametrize(
    ("probed", "chosen"),
    [
        ([(CPU, READY)], "cpu"),
        ([(CPU, READY), (ONE, READY)], "one"),
        ([(CPU, READY), (ONE, ABSENT)], "cpu"),
        ([(CPU, READY), (ONE, BROKEN), (TWO, READY)], "two"),
        ([(plugin("reference", "none"), READY), (CPU, READY)], "cpu"),
    ],
)
def test_the_choice(probed: list[tuple[Plugin, Probe]], chosen: str) -> None:
    """The one accelerator that is ready; the CPU when there is none and none is broken."""
    assert select(probed).name == chosen


@pytest.mark.parametrize(
    ("probed", "message"),
    [
        ([(CPU, READY), (ONE, READY), (TWO, READY)], "several accelerators are ready: one, two; choose one with --backend"),
        ([(CPU, READY), (ONE, BROKEN)], r"an accelerator backend is broken \(one: because\)"),
        ([], "no backend is ready; try: pip install tgi-backend-cpu"),
        ([(plugin("reference", "none"), READY)], "no backend is ready"),
        ([(ONE, ABSENT)], r"no backend is ready \(one: because\)"),
    ],
)
def test_no_choice(probed: list[tuple[Plugin, Probe]], message: str) -> None:
    """Two accelerators, a broken one, or nothing at all: one line that says what was found and what to do."""
    with pytest.raises(StartupError, match=message):
        select(probed)


@pytest.mark.parametrize(
    ("built", "requires", "accepted"),
    [((1, 0), (1, 0), True), ((1, 9), (1, 0), True), ((1, 9), (1, 9), False), ((2, 0), (2, 0), False), ((2, 0), (1, 0), False)],
)
def test_versions(built: tuple[int, int], requires: tuple[int, int], accepted: bool) -> None:
    """Equal majors, and no newer minor required than the core has; built against a newer minor is fine."""
    reason = incompatibility(Manifest("x", "v", "1", built, requires, "x"), core=(1, 0))
    assert (reason == "") is accepted


def write_plugin(directory: Path, body: str, monkeypatch: pytest.MonkeyPatch, name: str = "made_up") -> EntryPoint:
    """An entry point whose module has this body."""
    (directory / f"{name}.py").write_text(body)
    monkeypatch.syspath_prepend(str(directory))
    monkeypatch.delitem(sys.modules, name, raising=False)
    return EntryPoint(name, name, "tgi.backends")


@pytest.mark.parametrize(
    ("body", "status", "reason"),
    [
        ("import not_there", PluginStatus.BROKEN, "ModuleNotFoundError: No module named 'not_there'"),
        ("", PluginStatus.BROKEN, "implements no backend_manifest, backend_probe, backend_open"),
        ("raise SystemError('driver too old')", PluginStatus.BROKEN, "SystemError: driver too old"),
    ],
)
def test_a_plugin_that_does_not_load_is_a_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str, status: PluginStatus, reason: str
) -> None:
    """Nothing is raised: status and reason are in the record, the traceback with them."""
    record = load(write_plugin(tmp_path, body, monkeypatch))
    assert (record.status, record.reason) == (status, reason)


def test_the_reference_is_installed_and_found() -> None:
    """The reference backend is an entry point like any other."""
    assert "reference" in [entry.name for entry in installed()]
    assert find("reference").manifest == Manifest("reference", "tgi-core", "1.0", API_VERSION, (1, 0), "none")


def test_an_unknown_name_lists_the_known() -> None:
    """--backend with a name that is not installed says what is, and how to get it."""
    with pytest.raises(StartupError, match=r"--backend tpu: not installed \(installed: .*reference.*pip install tgi-backend-tpu"):
        find("tpu")


def test_probing_happens_in_a_child() -> None:
    """The reference answers READY from a process of its own."""
    assert probe(find("reference")).status is ProbeStatus.READY


def test_a_probe_that_hangs_is_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    """A probe that does not answer in time is ended, and says so."""
    assert "took more than 0 s" in probe(find("reference"), time_limit_s=0.0).reason


@given(st.text(), st.text(), st.lists(st.text()), st.sampled_from(ProbeStatus), st.booleans())
def test_probes_survive_the_pipe(reason: str, hint: str, devices: list[str], status: ProbeStatus, verified: bool) -> None:
    """What the child prints is what the parent reads."""
    found = Probe(status, tuple(devices), reason, hint, verified)
    line = encode(found)
    assert "\n" not in line and decode(line) == found
