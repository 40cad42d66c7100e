"""Which kernels a process runs: those asked for, or the fastest, measured once."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tgi_backend_cpu import building, choosing, measuring, picks
from tgi_backend_cpu.building import CHOICE, VARIANTS, CannotBuild, Variant
from tgi_backend_cpu.kernels import Kernels
from tgi_backend_cpu.picks import Pick

from tests.cpu.conftest import kernels_of

AMX, AVX512_BF16, AVX512, AVX2_VNNI, AVX2 = VARIANTS


class Machine:
    """A processor with given variants, on which a load takes given times and some variants cannot be loaded."""

    def __init__(self, flags: frozenset[str], times: dict[tuple[str, bool], float], refused: tuple[str, ...] = ()) -> None:
        self.flags, self.times, self.refused = flags, times, refused
        self.measured: list[tuple[str, bool]] = []

    def load(self, variant: Variant) -> tuple[str, str]:
        """A library is its name."""
        if variant.name in self.refused:
            raise CannotBuild(f"the system does not permit {variant.name}")
        return variant.name, "built before"

    def seconds(self, kernels: str, bf12: bool) -> list[float]:
        """The times of all loads."""
        self.measured.append((kernels, bf12))
        return [self.times[kernels, bf12]] * len(measuring.LOADS)


def run_on(machine: Machine, monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    """Choose as on this machine."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    monkeypatch.setattr(building, "cpu_flags", lambda: machine.flags)
    monkeypatch.setattr(choosing, "load", machine.load)
    monkeypatch.setattr(choosing, "Kernels", lambda call, threads: call)
    monkeypatch.setattr(measuring, "_times", machine.seconds)


ZEN = {("avx512-bf16", True): 1.0, ("avx512-bf16", False): 0.97, ("avx512", True): 1.4, ("avx512", False): 1.5}
SAPPHIRE_RAPIDS = {
    ("avx512-bf16", True): 1.0,
    ("avx512-bf16", False): 0.9,
    ("avx512", True): 0.8,
    ("avx512", False): 0.7,
    ("amx", True): 0.4,
    ("amx", False): 0.3,
}


@pytest.mark.parametrize(
    ("flags", "times", "refused", "name", "bf12"),
    [
        (AVX512_BF16.cpu_flags, ZEN, (), "avx512-bf16", True),
        (AMX.cpu_flags, SAPPHIRE_RAPIDS, (), "amx", False),
        (AMX.cpu_flags, SAPPHIRE_RAPIDS, ("amx",), "avx512", False),
        (AMX.cpu_flags, SAPPHIRE_RAPIDS, ("amx", "avx512-bf16"), "avx512", False),
        (AVX2.cpu_flags, {("avx2", True): 1.0, ("avx2", False): 0.8}, (), "avx2", False),
    ],
)
def test_the_fastest_is_chosen(
    flags: frozenset[str],
    times: dict[tuple[str, bool], float],
    refused: tuple[str, ...],
    name: str,
    bf12: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The least time wins, among those that the system lets run; without AMX the default stays where nothing is clearly faster. The
    next start measures nothing."""
    machine = Machine(flags, times, refused)
    run_on(machine, monkeypatch, tmp_path)
    call, choice = choosing.choose({}, 2)
    assert (call, choice.name, choice.bf12) == (name, name, bf12) and "measured for 1, 8, 32, 256 rows" in choice.reason
    assert set(machine.measured) == {candidate for candidate in times if candidate[0] not in refused}
    machine.measured.clear()
    call, again = choosing.choose({}, 2)
    assert (call, again.name, again.bf12) == (name, name, bf12) and "at an earlier start" in again.reason
    assert not machine.measured and [variant.name for variant in picks.wanted({})] == [name]


def test_a_name_is_not_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A variant that is asked for is loaded, or torch is used and the reason given."""
    machine = Machine(AMX.cpu_flags | AVX2.cpu_flags, SAPPHIRE_RAPIDS, ("amx",))
    run_on(machine, monkeypatch, tmp_path)
    call, choice = choosing.choose({CHOICE: "avx2"}, 2)
    assert call == "avx2" and choice.bf12 and choice.reason == "asked for, built before"
    call, choice = choosing.choose({CHOICE: "amx"}, 2)
    assert call is None and choice.name == "torch" and "does not permit amx" in choice.reason
    assert not machine.measured


def test_nothing_can_be_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Then torch is used, for the best variant's reason."""
    run_on(Machine(AVX512.cpu_flags, ZEN, ("avx512",)), monkeypatch, tmp_path)
    call, choice = choosing.choose({}, 2)
    assert call is None and choice.name == "torch" and "does not permit avx512" in choice.reason


@pytest.mark.parametrize("damage", ["", "{", "[]", '{"variant": "torch", "bf12": true, "reason": ""}', '{"variant": "avx2"}'])
def test_a_damaged_pick_is_measured_again(damage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a pick's file says beside a candidate's name does not count."""
    machine = Machine(AVX2.cpu_flags, {("avx2", True): 1.0, ("avx2", False): 1.2})
    run_on(machine, monkeypatch, tmp_path)
    picks.keep_pick((AVX2,), Pick("avx2", False, ""))
    picks.pick_file((AVX2,)).write_text(damage)
    assert choosing.choose({}, 2)[1].bf12
    assert json.loads(picks.pick_file((AVX2,)).read_text())["bf12"] is True and len(machine.measured) == 2


def test_a_pick_is_of_its_processor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another model of processor, or another set of variants, has another file."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    files = {picks.pick_file((AVX2,)), picks.pick_file((AVX512, AVX2))}
    monkeypatch.setattr(picks, "cpu_name", lambda: "another")
    assert len(files | {picks.pick_file((AVX2,))}) == 3


def test_a_cache_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each start measures for itself."""
    machine = Machine(AVX2.cpu_flags, {("avx2", True): 1.0, ("avx2", False): 1.2})
    (tmp_path / "file").write_text("")
    run_on(machine, monkeypatch, tmp_path / "file")
    for count in (2, 4):
        assert choosing.choose({}, 2)[1].name == "avx2" and len(machine.measured) == count


def test_kernels_are_measured(kernels: Kernels, monkeypatch: pytest.MonkeyPatch) -> None:
    """Real kernels take time in both layouts, and are left as they were."""
    monkeypatch.setattr(measuring, "LOADS", ((1, 2), (40, 1)))
    monkeypatch.setattr(measuring, "REPEATS", 1)
    pick = measuring.fastest({"own": kernels}, "own")
    assert pick.variant == "own" and "measured for 1, 40 rows" in pick.reason and "plain weights" in pick.reason and kernels.bf12


def test_plain_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels whose pick is plain weights compress none."""
    import torch
    from tgi_backend_cpu.interface import Layout
    from tgi_backend_cpu.kernels import Arena
    from tgi_backend_cpu.packing import pack

    from tgi_core.engine.quantization.weight import Dense

    fitting = [variant for variant in VARIANTS if variant.cpu_flags <= building.cpu_flags()] or [AVX2]
    kernels = kernels_of(fitting[0])
    weight = [Dense.of(torch.ones(64, 64, dtype=torch.bfloat16))]
    assert pack(kernels, Arena(kernels), weight).layout == Layout.BF12
    monkeypatch.setattr(kernels, "bf12", False)
    assert pack(kernels, Arena(kernels), weight).layout == Layout.DENSE
