"""What the probes of both backends say of a machine: devices, cores, and what is installed beside them."""

from __future__ import annotations

from pathlib import Path

import pytest
from tgi_backend_neuron import discovery
from tgi_backend_neuron.discovery import busy_cores, find_machine, probe, probe_native, visible_cores

from tests.neuron.standin import LEGACY, NATIVE, make_machine, make_packages
from tgi_core.backend import Probe, ProbeStatus
from tgi_core.engine.accelerator.discovery import installed


def probed(
    folder: Path, monkeypatch: pytest.MonkeyPatch, instance: str, versions: dict[str, str], **environment: str
) -> tuple[Probe, Probe]:
    """What `neuron` and `neuron-native` say, with these versions installed and nothing else of them."""
    monkeypatch.setattr(discovery, "ROOT", make_machine(folder / "machine", instance))
    monkeypatch.setattr(discovery, "installed", lambda name: versions.get(name, "4.57" if name == "transformers" else ""))
    return probe(environment), probe_native(environment)


def test_no_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """ABSENT, with the place that was looked at and what to do; also where there are nodes and no driver."""
    monkeypatch.setattr(discovery, "ROOT", tmp_path)
    for found in (probe({}), probe_native({})):
        assert found.status is ProbeStatus.ABSENT and "/proc/devices" in found.reason and "/dev/neuron0" in found.hint
    root = make_machine(tmp_path)
    (root / "proc/devices").write_text("Character devices:\n  1 mem\n")
    assert probe({}).status is ProbeStatus.ABSENT


@pytest.mark.parametrize(
    ("instance", "versions", "neuron", "native"),
    [
        ("inf2.xlarge", LEGACY, "ready", "absent"),
        ("trn1.32xlarge", LEGACY, "ready", "absent"),
        ("trn2.48xlarge", LEGACY, "ready", "absent"),
        ("trn2.48xlarge", NATIVE, "absent", "ready"),
        ("trn3.48xlarge", NATIVE, "absent", "ready"),
        ("trn3.48xlarge", {}, "absent", "broken"),
        ("trn2.48xlarge", {}, "broken", "absent"),
        ("inf2.xlarge", {}, "broken", "absent"),
    ],
)
def test_which_of_the_two(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, instance: str, versions: dict[str, str], neuron: str, native: str
) -> None:
    """Never are both READY or both BROKEN, which would be an error of the choice; one is not ABSENT where there is a device."""
    found = probed(tmp_path, monkeypatch, instance, versions)
    assert [each.status.value for each in found] == [neuron, native]
    assert all(each.reason and each.hint for each in found if each.status is not ProbeStatus.READY)


@pytest.mark.parametrize(
    ("change", "reason", "hint"),
    [
        ({"optimum-neuron": ""}, "inf2.xlarge: not installed: optimum-neuron", "pip install optimum-neuron"),
        ({"neuronx-cc": "1.0.post1"}, "neuronx-cc from PyPI is a placeholder", "--index-url"),
        ({"torch-neuronx": "1.0"}, "torch-neuronx from PyPI is a placeholder", "--index-url"),
        ({"torch": "2.13.0"}, "torch 2.13.0 is installed, and torch-neuronx 2.8.0.2.10.16998 needs 2.8", "torch==2.8.*"),
    ],
)
def test_what_is_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: dict[str, str], reason: str, hint: str) -> None:
    """BROKEN with the package that is missing, not the vendor's, or beside the wrong torch."""
    found, _ = probed(tmp_path, monkeypatch, "inf2.xlarge", LEGACY | change)
    assert found.status is ProbeStatus.BROKEN and reason in found.reason and hint in found.hint


def test_devices_that_cannot_be_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """BROKEN, with the file: a node without access, an instance that nobody knows, or whose kind cannot be read."""
    root = make_machine(tmp_path / "machine", "inf2.xlarge")
    monkeypatch.setattr(discovery, "ROOT", root)
    product = root / "sys/devices/virtual/dmi/id/product_name"
    monkeypatch.setattr(discovery.os, "access", lambda path, mode: False)
    assert "neuron0 cannot be opened" in probe({}).reason
    product.write_text("m7i.large\n")
    assert "no known kind of instance" in probe({}).reason and "trn2" in probe({}).hint
    product.unlink()
    assert probe({}).status is ProbeStatus.BROKEN and f"{product} cannot be read" in probe({}).reason


@pytest.mark.parametrize(
    ("asked", "cores"),
    [
        ({}, (0, 1, 2, 3)),
        ({"NEURON_RT_NUM_CORES": "2"}, (0, 1)),
        ({"NEURON_RT_VISIBLE_CORES": "2"}, (2,)),
        ({"NEURON_RT_VISIBLE_CORES": "1-2"}, (1, 2)),
        ({"NEURON_RT_VISIBLE_CORES": "3,0-1", "NEURON_RT_NUM_CORES": "1"}, (3, 0, 1)),
        ({"NEURON_RT_VISIBLE_CORES": "9"}, ()),
        ({"NEURON_RT_VISIBLE_CORES": "some"}, ()),
    ],
)
def test_visible_cores(asked: dict[str, str], cores: tuple[int, ...]) -> None:
    """The runtime's variables choose cores by number, range and list, or how many."""
    assert visible_cores(4, asked) == cores


def test_hidden_cores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A variable that hides all cores makes the package ABSENT, so that the CPU may be used; it is named."""
    found, _ = probed(tmp_path, monkeypatch, "inf2.xlarge", LEGACY, NEURON_RT_VISIBLE_CORES="7")
    assert found.status is ProbeStatus.ABSENT and found.reason.startswith("NEURON_RT_VISIBLE_CORES='7' hides all cores")


@pytest.mark.parametrize(("instance", "held", "busy"), [("inf2.xlarge", 3, {3}), ("trn2.48xlarge", 11, {5})])
def test_busy_cores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, instance: str, held: int, busy: set[int]) -> None:
    """The driver counts by physical core, of which Trn2 has two to a logical one."""
    monkeypatch.setattr(discovery, "ROOT", make_machine(tmp_path, instance, devices=2, busy=(held,)))
    machine = find_machine({})
    assert machine is not None and busy_cores(machine) == busy


def test_installed_versions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are read from what pip leaves; nothing is imported."""
    monkeypatch.syspath_prepend(str(make_packages(tmp_path, {"torch-neuronx": "2.8.0.2.10"})))
    assert installed("torch-neuronx") == "2.8.0.2.10" and installed("neuronx-cc") == ""
