"""What a probe says of a machine: devices, what hides them, and what stands between them and torch."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from tgi_backend_cuda import discovery as cuda
from tgi_backend_cuda.nvml import Card, NoNvml, read_cards
from tgi_backend_rocm import discovery as rocm
from tgi_backend_xpu import discovery as xpu

from tests.accelerators.machines import amd, install_torch, intel, nvidia
from tgi_core.backend import Probe, ProbeStatus
from tgi_core.engine.accelerator import discovery
from tgi_core.engine.accelerator.torch_build import torch_build

H200 = Card("NVIDIA H200", "GPU-11aa", (9, 0), 150_754_820_096)
B200 = Card("NVIDIA B200", "GPU-22bb", (10, 0), 192_265_846_784)
DISCRETE, INTEGRATED = "0000:03:00.0", "0000:00:02.0"


def driver(*cards: Card, newest: tuple[int, int] = (13, 0)) -> Callable[[], cuda.Cards]:
    """A driver that lists these."""
    return lambda: (cards, newest)


def no_driver() -> cuda.Cards:
    """A driver that is not there."""
    raise NoNvml("libnvidia-ml.so.1 does not load")


@pytest.mark.parametrize("probe", [cuda.probe, rocm.probe, xpu.probe])
def test_a_machine_without_a_device(probe: Callable[..., Probe], tmp_path: Path) -> None:
    """ABSENT, with the place that was looked at and what to do."""
    found = probe(tmp_path, {})
    assert found.status is ProbeStatus.ABSENT and not found.devices
    assert "no " in found.reason and "driver" in found.hint


def test_devices_that_can_be_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """READY with names, sizes and architectures, where torch is built for them; unproven ones say so."""
    install_torch(tmp_path, monkeypatch, cuda="13.0", hip="7.2", xpu="20260000")
    found = cuda.probe(nvidia(tmp_path), {}, driver(H200))
    assert found == Probe(ProbeStatus.READY, ("NVIDIA H200, 140 GiB, compute capability 9.0",))
    assert rocm.probe(amd(tmp_path, 90402), {}) == Probe(ProbeStatus.READY, ("AMD gfx942, 304 compute units",))
    assert xpu.probe(intel(tmp_path, DISCRETE), {}) == Probe(ProbeStatus.READY, ("Intel GPU e20b",))


@pytest.mark.parametrize(
    ("version", "name"), [(90010, "gfx90a"), (90402, "gfx942"), (90500, "gfx950"), (110001, "gfx1101"), (120001, "gfx1201")]
)
def test_architectures(tmp_path: Path, version: int, name: str) -> None:
    """The driver's number is read as AMD writes it."""
    assert name in rocm.find_devices(amd(tmp_path, version))[0].name


def test_graphics_of_a_processor_are_no_reason(tmp_path: Path) -> None:
    """A desktop's built-in graphics don't make a package BROKEN, which would forbid the CPU: no torch is built for them."""
    assert rocm.probe(amd(tmp_path, 100306), {}).status is ProbeStatus.ABSENT
    found = xpu.probe(intel(tmp_path, INTEGRATED), {})
    assert found.status is ProbeStatus.ABSENT and "processor's integrated graphics" in found.reason


def test_graphics_of_a_processor_that_torch_is_built_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the right torch they are a device like any other."""
    install_torch(tmp_path, monkeypatch, xpu="20260000")
    assert xpu.probe(intel(tmp_path, INTEGRATED), {}).devices == ("Intel integrated graphics e20b",)


def test_torch_for_another_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A device beside a torch for the CPU is BROKEN: the reason names both, the hint says which torch."""
    install_torch(tmp_path, monkeypatch)
    for found, index in (
        (cuda.probe(nvidia(tmp_path), {}, driver(H200)), "whl/cu"),
        (rocm.probe(amd(tmp_path, 90402), {}), "whl/rocm"),
        (xpu.probe(intel(tmp_path, DISCRETE), {}), "whl/xpu"),
    ):
        assert found.status is ProbeStatus.BROKEN and len(found.devices) == 1
        assert "was found, but torch 2.13.0 is not a build for" in found.reason and index in found.hint


def test_no_torch_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The missing package is named."""
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "torch" else object())
    assert torch_build() == {}
    found = rocm.probe(amd(tmp_path, 90402), {})
    assert found.status is ProbeStatus.BROKEN and found.reason.endswith("not installed: torch") and "rocm/pytorch" in found.hint


def test_a_device_without_its_driver(tmp_path: Path) -> None:
    """Device files without the driver's library are BROKEN with the library's own complaint."""
    found = cuda.probe(nvidia(tmp_path), {}, no_driver)
    assert found.status is ProbeStatus.BROKEN and "libnvidia-ml.so.1 does not load" in found.reason and "--gpus" in found.hint


def test_the_library_of_no_driver() -> None:
    """On this machine there is no driver, which is what the reader says."""
    with pytest.raises(NoNvml, match="libnvidia-ml"):
        read_cards()


def test_a_driver_older_than_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A torch for a newer major version of CUDA than the driver runs; a newer minor one is fine."""
    install_torch(tmp_path, monkeypatch, cuda="13.0")
    root = nvidia(tmp_path)
    found = cuda.probe(root, {}, driver(H200, newest=(12, 8)))
    assert found.status is ProbeStatus.BROKEN and "CUDA up to 12.8, and torch is built for 13.0" in found.reason
    assert cuda.probe(root, {}, driver(H200, newest=(13, 2))).status is ProbeStatus.READY


def test_a_device_too_old(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The compute capability that kernels need is named."""
    install_torch(tmp_path, monkeypatch, cuda="12.8")
    found = cuda.probe(nvidia(tmp_path), {}, driver(Card("Tesla P100", "GPU-1", (6, 0), 2**34)))
    assert found.status is ProbeStatus.BROKEN and "older than compute capability 7.5" in found.reason


def test_a_device_that_may_not_be_opened(tmp_path: Path) -> None:
    """Without access to the device file the groups are named."""
    for found in (
        rocm.probe(amd(tmp_path, 90402, readable=False), {}),
        xpu.probe(intel(tmp_path, DISCRETE, readable=False), {}),
    ):
        assert found.status is ProbeStatus.BROKEN and "cannot be opened" in found.reason and "group" in found.hint


def test_another_vendor(tmp_path: Path) -> None:
    """A render node of another vendor is none of Intel's."""
    assert xpu.probe(intel(tmp_path, DISCRETE, vendor="0x10de"), {}).status is ProbeStatus.ABSENT


@pytest.mark.parametrize(
    ("asked", "names"),
    [
        ("1", ["NVIDIA B200"]),
        ("1,0", ["NVIDIA B200", "NVIDIA H200"]),
        ("GPU-22", ["NVIDIA B200"]),
        ("0,7,1", ["NVIDIA H200"]),
        ("MIG-77cc", ["MIG-77cc"]),
    ],
)
def test_visible_devices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: str, names: list[str]) -> None:
    """The operator's variable chooses and orders, by index or by the beginning of an id; an unknown entry ends the list."""
    install_torch(tmp_path, monkeypatch, cuda="13.0")
    found = cuda.probe(nvidia(tmp_path, 2), {"CUDA_VISIBLE_DEVICES": asked}, driver(H200, B200))
    assert [name.partition(",")[0] for name in found.devices] == names


def test_hidden_devices_are_absent(tmp_path: Path) -> None:
    """A variable that hides every device makes the package ABSENT, so that the CPU may be used; the variable is named."""
    for found, name in (
        (cuda.probe(nvidia(tmp_path), {"CUDA_VISIBLE_DEVICES": ""}, driver(H200)), "CUDA_VISIBLE_DEVICES=''"),
        (cuda.probe(nvidia(tmp_path), {"CUDA_VISIBLE_DEVICES": "-1"}, driver(H200)), "CUDA_VISIBLE_DEVICES='-1'"),
        (rocm.probe(amd(tmp_path, 90402), {"ROCR_VISIBLE_DEVICES": "3"}), "ROCR_VISIBLE_DEVICES='3'"),
        (xpu.probe(intel(tmp_path, DISCRETE), {"ZE_AFFINITY_MASK": "9"}), "ZE_AFFINITY_MASK='9'"),
    ):
        assert found.status is ProbeStatus.ABSENT and found.reason.startswith(name)


def test_variables_that_contradict(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Libraries of ROCm read one or the other: both set and different is BROKEN, both equal is fine."""
    install_torch(tmp_path, monkeypatch, hip="7.2")
    root = amd(tmp_path, 90402, 90402)
    found = rocm.probe(root, {"HIP_VISIBLE_DEVICES": "0", "CUDA_VISIBLE_DEVICES": "1"})
    assert found.status is ProbeStatus.BROKEN and "HIP_VISIBLE_DEVICES='0' and CUDA_VISIBLE_DEVICES='1'" in found.reason
    assert len(rocm.probe(root, {"HIP_VISIBLE_DEVICES": "1", "CUDA_VISIBLE_DEVICES": "1"}).devices) == 1


def test_tiles_of_a_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Level Zero's mask may name tiles of a device."""
    install_torch(tmp_path, monkeypatch, xpu="20260000")
    assert len(xpu.probe(intel(tmp_path, DISCRETE, "0000:04:00.0"), {"ZE_AFFINITY_MASK": "1.0,1.1"}).devices) == 1


GRANTED = dict.fromkeys(("L0", "L1", "L2", "L3"), "granted")


@pytest.mark.parametrize(
    ("change", "is_verified"),
    [
        ({}, True),
        ({"levels": GRANTED | {"L3": "not run"}}, False),
        ({"text_core": "failed"}, False),
        ({"backend": {"version": "0.0.9", "devices": ["NVIDIA H200"]}}, False),
        ({"backend": {"version": "0.1.0", "devices": []}}, False),
    ],
)
def test_proof(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: dict[str, object], is_verified: bool) -> None:
    """Verified on hardware is what a committed report grants in full, of this very version, on a named device."""
    report = {"levels": GRANTED, "text_core": "granted", "backend": {"version": "0.1.0", "devices": ["NVIDIA H200"]}}
    monkeypatch.setattr(discovery, "files", lambda package: tmp_path)
    assert not discovery.is_verified("tgi_backend_cuda")
    (tmp_path / discovery.PROOF).write_text(json.dumps(report | change))
    assert discovery.is_verified("tgi_backend_cuda") is is_verified


def test_a_driver_without_device_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sandboxes may show the driver's library and no files: what it lists is there."""
    install_torch(tmp_path, monkeypatch, cuda="13.0")
    assert cuda.probe(tmp_path, {}, driver(H200)).status is ProbeStatus.READY
