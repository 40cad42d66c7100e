"""What the probe says of a machine: Gaudi devices, their software, and who holds them."""

from __future__ import annotations

import os
from contextlib import nullcontext
from functools import partial
from pathlib import Path

import pytest
from tgi_backend_gaudi import discovery, driver
from tgi_backend_gaudi.discovery import check_free, find_modules, probe

from tests.accelerators.machines import install_torch, write
from tests.gaudi.standin import PACKAGES, gaudi
from tgi_core.backend import DeviceBusy, ProbeStatus
from tgi_core.engine.accelerator.torch_build import torch_build


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine without a device, where the software is installed."""
    monkeypatch.setattr(discovery, "ROOT", tmp_path)
    monkeypatch.syspath_prepend(str(PACKAGES))
    return tmp_path


def test_no_device(root: Path) -> None:
    """ABSENT, with the place that was looked at and what to do; so is an accelerator of another vendor in the same class."""
    for machine in (root, gaudi(root, vendor="0x8086")):
        found = probe({})
        assert found.status is ProbeStatus.ABSENT and "/sys/class/accel" in found.reason and "--runtime=habana" in found.hint, (
            machine
        )


def test_ready(root: Path) -> None:
    """READY with the chips' names, none of which is verified; control nodes are no devices."""
    gaudi(root, 2, kind="GAUDI3")
    found = probe({})
    assert found.status is ProbeStatus.READY and found.devices == ("Intel Gaudi3",) * 2 and not found.verified_on_hardware


def test_modules(root: Path) -> None:
    """Devices are in the order of their modules, which is what the process's variable counts; one that hides all makes it ABSENT."""
    gaudi(root, 2)
    for index, module in enumerate(("5", "2")):
        write(root / f"sys/class/accel/accel{index}/device/module_id", module)
    assert [module.node for module in find_modules()] == ["/dev/accel/accel1", "/dev/accel/accel0"]
    assert len(probe({"HABANA_VISIBLE_MODULES": "1"}).devices) == 1
    hidden = probe({"HABANA_VISIBLE_MODULES": ""})
    assert hidden.status is ProbeStatus.ABSENT and hidden.reason.startswith("HABANA_VISIBLE_MODULES=''")


def test_no_software(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A device without Intel's software is BROKEN, so that the CPU is not taken in silence; the hint says where the software is."""
    gaudi(root)
    real = discovery.importlib.util.find_spec
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "habana_frameworks" else real(name))
    found = probe({})
    assert found.status is ProbeStatus.BROKEN and "not installed: habana_frameworks" in found.reason
    assert "vault.habana.ai" in found.hint and "pip install" not in found.hint


def test_another_torch(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A torch installed over the image's makes the probe BROKEN and names both versions; another patch level is fine."""
    gaudi(root)
    monkeypatch.setattr("tgi_core.engine.accelerator.discovery.torch_build", lambda: torch_build() | {"__version__": "2.11.0a0"})
    found = probe({})
    assert (
        found.status is ProbeStatus.BROKEN
        and "torch 2.11.0a0 is installed with a habana_frameworks for torch 2.13" in found.reason
    )
    monkeypatch.setattr("tgi_core.engine.accelerator.discovery.torch_build", lambda: {"__version__": "2.13.9+cpu"})
    assert probe({}).status is ProbeStatus.READY


def test_a_stack_that_does_not_say(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without its file any torch may do; the import will tell."""
    gaudi(root)
    install_torch(tmp_path, monkeypatch)
    monkeypatch.setattr(discovery, "required_torch", str)
    assert probe({}).status is ProbeStatus.READY


@pytest.mark.parametrize(("what", "reason"), [("closed", "cannot be opened"), ("reset", "is 'in reset'")])
def test_devices_in_trouble(root: Path, what: str, reason: str) -> None:
    """BROKEN with what the driver's files say."""
    gaudi(root, status="in reset" if what == "reset" else "operational")
    if what == "closed":
        (root / "dev/accel/accel0").unlink()
    found = probe({})
    assert found.status is ProbeStatus.BROKEN and "/dev/accel/accel0" in found.reason and reason in found.reason and found.hint


def test_taken(root: Path) -> None:
    """A device is one process's: where all are held, the holders are named; where one is free, that is no error."""
    gaudi(root, 2)
    check_free()
    for process, device in ((41, "accel0"), (42, "accel1")):
        check_free()
        write(root / f"proc/{process}/comm", "python\n")
        (root / f"proc/{process}/fd").mkdir()
        (root / f"proc/{process}/fd/7").symlink_to(f"/dev/accel/{device}")
    with pytest.raises(DeviceBusy, match=r"/dev/accel/accel0 by process 41 \(python\); /dev/accel/accel1 by process 42 .*hl-smi"):
        check_free()


def test_held_by_this_process(root: Path) -> None:
    """A second session of a process finds the device that it holds already."""
    gaudi(root)
    (root / f"proc/{os.getpid()}/fd").mkdir(parents=True)
    (root / f"proc/{os.getpid()}/fd/7").symlink_to("/dev/accel/accel0")
    check_free()


@pytest.mark.parametrize("request_number", driver.INFO_REQUESTS)
@pytest.mark.parametrize(("state", "held"), [((1, 0), True), ((1, 1), False), ((0, 0), False)])
def test_held_by_a_process_that_cannot_be_seen(
    root: Path, monkeypatch: pytest.MonkeyPatch, request_number: int, state: tuple[int, int], held: bool
) -> None:
    """A process that cannot be seen: the driver says that there is one, by either number of the request; one that is leaving is none."""
    from habanalabs import answer

    gaudi(root)
    check_free()  # a file that is no device says nothing
    monkeypatch.setattr(driver.fcntl, "ioctl", partial(answer, state=state, known=request_number))
    refused = pytest.raises(DeviceBusy, match="/dev/accel/accel0 by a process of another container or user; hl-smi")
    with refused if held else nullcontext():
        check_free()
