"""Machines that aren't there: their system files, and builds of torch."""

from __future__ import annotations

import importlib.util
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest

KINDS = ("cuda", "gaudi", "rocm", "xpu")


def install_torch(folder: Path, monkeypatch: pytest.MonkeyPatch, **platforms: str) -> None:
    """Let a torch be found that was built for these platforms: `install_torch(…, cuda="13.0")`."""
    package = folder / "site" / "torch"
    package.mkdir(parents=True)
    lines = ["__version__ = '2.13.0'", *(f"{name}: Optional[str] = {value!r}" for name, value in platforms.items())]
    lines += [f"{name}: Optional[str] = None" for name in ("cuda", "hip", "xpu") if name not in platforms]
    (package / "version.py").write_text("\n".join(lines))
    original = importlib.util.find_spec

    def find_spec(name: str, package_name: str | None = None) -> ModuleSpec | None:
        spec = ModuleSpec("torch", None, origin=str(package / "__init__.py"))
        return spec if name == "torch" else original(name, package_name)

    monkeypatch.setattr("importlib.util.find_spec", find_spec)


def write(file: Path, text: str = "") -> None:
    """A file with its folders."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


def nvidia(root: Path, count: int = 1) -> Path:
    """The device files of so many NVIDIA devices."""
    for index in range(count):
        write(root / f"dev/nvidia{index}")
    return root


def amd(root: Path, *versions: int, readable: bool = True) -> Path:
    """A processor, and one node per `gfx_target_version`."""
    if readable:
        write(root / "dev/kfd")
    for index, version in enumerate((0, *versions)):
        properties = f"simd_count {1216 if version else 0}\nsimd_per_cu 4\ngfx_target_version {version}\nunique_id {index}\n"
        write(root / f"sys/class/kfd/kfd/topology/nodes/{index}/properties", properties)
    return root


def intel(root: Path, *places: str, vendor: str = "0x8086", readable: bool = True) -> Path:
    """Render nodes at these places of the PCI bus."""
    for index, place in enumerate(places, 128):
        write(root / f"sys/devices/{place}/vendor", vendor + "\n")
        write(root / f"sys/devices/{place}/device", "0xe20b\n")
        node = root / f"sys/class/drm/renderD{index}"
        node.mkdir(parents=True)
        (node / "device").symlink_to(root / f"sys/devices/{place}")
        if readable:
            write(root / f"dev/dri/renderD{index}")
    return root
