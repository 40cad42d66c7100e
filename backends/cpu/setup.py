"""Builds the native kernels into the wheel if there is a C++ compiler; otherwise the wheel is pure Python. A package without them, or
with other sources, builds what it needs at first use. `TGI_CPU_KERNELS` names the only variant to build, or `torch` to build none.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import sys
from pathlib import Path

from setuptools import Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py

HERE = Path(__file__).parent


def load_building():  # type: ignore[no-untyped-def]
    """tgi_backend_cpu.building, which needs nothing but the standard library, without importing the package."""
    spec = importlib.util.spec_from_file_location("building", HERE / "tgi_backend_cpu" / "building.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["building"] = module
    spec.loader.exec_module(module)
    return module


building = load_building()
ASKED = os.environ.get("TGI_CPU_KERNELS") or "auto"
VARIANTS = [
    variant
    for variant in building.VARIANTS
    if platform.machine() in ("x86_64", "AMD64") and building.compiler() and ASKED in ("auto", variant.name)
]


class BuildWithKernels(build_py):
    """Compiles each variant into the folder that the wheel is made from; an editable install builds at first use instead."""

    def run(self) -> None:
        """Copy the Python files, then compile."""
        super().run()
        if not VARIANTS or self.editable_mode:
            return
        folder = Path(self.build_lib) / "tgi_backend_cpu" / "native" / "built"
        folder.mkdir(parents=True, exist_ok=True)
        for place, variant in enumerate(VARIANTS, 1):
            print(  # pip shows it with -v
                f"tgi-backend-cpu: compiling native kernels {place} of {len(VARIANTS)} ({variant.name}), about {building.USUAL_S} s",
                file=sys.stderr,
                flush=True,
            )
            try:
                building.build(variant, folder / f"{variant.name}.so")
            except building.CannotBuild as error:
                self.warn(f"native kernels {variant.name} are left out: {error}")


class MaybeNative(Distribution):
    """A distribution for one platform if it contains kernels."""

    def has_ext_modules(self) -> bool:
        """Whether the wheel's tag must name the platform."""
        return bool(VARIANTS)


class AnyPython(bdist_wheel):
    """The kernels have a C interface: one wheel serves every Python."""

    def get_tag(self) -> tuple[str, str, str]:
        """Python 3, without CPython's ABI, on this platform."""
        return "py3", "none", super().get_tag()[2]


setup(cmdclass={"bdist_wheel": AnyPython, "build_py": BuildWithKernels}, distclass=MaybeNative)
