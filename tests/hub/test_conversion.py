""".bin weights: refused, or converted on demand without running what is in them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.hub.conftest import Run
from tests.hub.fake_hub import FakeHub
from tgi_core.hub.pickles import write_safetensors
from tgi_core.model_files import DEMO


class Trap:
    """Writes a file when it is unpickled."""

    def __init__(self, canary: Path) -> None:
        self.canary = canary

    def __reduce__(self) -> tuple[object, ...]:
        return os.mkdir, (str(self.canary),)


@pytest.fixture(scope="module")
def bin_files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The demo model with its weights in two .bin files."""
    folder = tmp_path_factory.mktemp("bin")
    tensors = load_file(DEMO / "model.safetensors")
    names = sorted(tensors)
    halves = names[: len(names) // 2], names[len(names) // 2 :]
    for number, half in enumerate(halves, 1):
        torch.save({name: tensors[name] for name in half}, folder / f"pytorch_model-0000{number}-of-00002.bin")
    small = {path.name: path.read_bytes() for path in DEMO.iterdir() if path.suffix != ".safetensors"}
    return small | {path.name: path.read_bytes() for path in folder.iterdir()}


def same_tensors(directory: Path) -> bool:
    """Whether the safetensors of a directory together are the demo model's."""
    expected = load_file(DEMO / "model.safetensors")
    found: dict[str, torch.Tensor] = {}
    for path in directory.glob("*.safetensors"):
        found |= load_file(path)
    return found.keys() == expected.keys() and all(torch.equal(found[name], expected[name]) for name in expected)


def test_a_repository(hub: FakeHub, tgi: Run, bin_files: dict[str, bytes], tmp_path: Path) -> None:
    """--auto-convert gives the same tensors in the folder that is asked for; the second time nothing is converted, nor is the hub
    needed."""
    commit = hub.add("o/bin", bin_files)
    folder = tmp_path / "weights"
    arguments = ["o/bin", "--auto-convert", "--weights-cache-override", str(folder)]
    first = tgi("download-weights", *arguments)
    directory = Path(first.stdout.strip())
    assert directory.name == commit and same_tensors(directory), first.stderr
    assert (directory / "config.json").exists() and "convert weights" in first.stderr
    assert same_tensors(folder)
    again = tgi("download-weights", *arguments, extra={"HF_HUB_OFFLINE": "1"})
    assert again.stdout == first.stdout and "convert weights" not in again.stderr


def test_a_directory(tgi: Run, bin_files: dict[str, bytes], tmp_path: Path) -> None:
    """A directory with .bin files alone is refused with the remedy; with the flag it is converted into the cache, itself untouched."""
    model = tmp_path / "model"
    model.mkdir()
    for name, content in bin_files.items():
        (model / name).write_bytes(content)
    refused = tgi("serve", str(model), "--backend", "reference")
    assert refused.returncode == 1 and "--auto-convert" in refused.stderr.splitlines()[-1]
    result = tgi("download-weights", str(model), "--auto-convert")
    directory = Path(result.stdout.strip())
    assert same_tensors(directory) and not list(model.glob("*.safetensors")), result.stderr


def test_a_trap_is_not_sprung(hub: FakeHub, tgi: Run, tmp_path: Path) -> None:
    """A file that holds a program is refused by name; the program does not run, and nothing is left behind."""
    canary = tmp_path / "canary"
    torch.save({"weight": torch.ones(2), "trap": Trap(canary)}, tmp_path / "pytorch_model.bin")
    hub.add("o/trap", {"config.json": b"{}", "pytorch_model.bin": (tmp_path / "pytorch_model.bin").read_bytes()})
    result = tgi("download-weights", "o/trap", "--auto-convert")
    line = result.stderr.splitlines()[-1]
    assert result.returncode == 1 and "pytorch_model.bin" in line and "more than tensors" in line, result.stderr
    assert (
        not canary.exists()
        and not list(tmp_path.glob("home/**/*.safetensors"))
        and not list(tmp_path.glob("home/**/.converting*"))
    )


def test_a_fault_leaves_nothing(tmp_path: Path) -> None:
    """When the second file is broken, the first one's tensors do not appear: all or nothing."""
    torch.save({"a": torch.ones(2)}, tmp_path / "1.bin")
    (tmp_path / "2.bin").write_bytes(b"no pickle")
    with pytest.raises(Exception, match=r"2\.bin"):
        write_safetensors([tmp_path / "1.bin", tmp_path / "2.bin"], tmp_path / "out")
    assert not list((tmp_path / "out").iterdir())


def test_tensors_that_share_memory(tmp_path: Path) -> None:
    """Tied and sliced tensors are written as they read."""
    base = torch.arange(6.0).reshape(2, 3)
    torch.save({"a": base, "b": base, "column": base[:, 1]}, tmp_path / "1.bin")
    write_safetensors([tmp_path / "1.bin"], tmp_path / "out")
    found = load_file(tmp_path / "out/model.safetensors")
    assert torch.equal(found["a"], base) and torch.equal(found["b"], base) and torch.equal(found["column"], base[:, 1])


def test_safetensors_beside_bins_win(tgi: Run, tmp_path: Path) -> None:
    """A directory with both is served as it is."""
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "pytorch_model.bin").write_bytes(b"x")
    save_file({"a": torch.ones(1)}, tmp_path / "model.safetensors")
    assert tgi("download-weights", str(tmp_path)).stdout.strip() == str(tmp_path)
