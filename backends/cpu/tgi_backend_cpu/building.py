"""The native kernels as shared libraries: one per instruction set, built with the wheel or at first use, and kept by hash.

Imports only the standard library, since the build of the wheel uses it too.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

SOURCES = Path(__file__).with_name("native")
BUILT = SOURCES / "built"
"""The folder in which the build of the wheel puts libraries."""

CHOICE = "TGI_CPU_KERNELS"
"""Environment variable: `auto` for the fastest, the name of a variant, or `torch` for none."""
BUILDING = "compiling native kernels, once per machine"
"""Name of the work in progress."""
USUAL_S = 40
"""Seconds that compiling usually takes, on 2 cores, for progress."""
_SHOW_EVERY_S = 0.5
Progress = Callable[[str, int, int, str], None]
"""Shows progress: the name of the work, how much is done, of how much, and the unit. `tgi_core.backend` has the same type; this module is
also run where only the standard library is installed."""

COMPILERS = ("c++", "g++", "clang++")
TIME_LIMIT = 600
"""Seconds before the compiler is killed."""

OPTIONS = (
    "-std=c++17",
    "-O3",
    "-fno-strict-aliasing",
    "-fno-math-errno",
    "-ffp-contract=off",
    "-fvisibility=hidden",
    "-shared",
    "-fPIC",
    "-pthread",
)
"""Multiplications and additions are fused only where the source says so: a row's bits must not depend on how a loop is unrolled."""


@dataclass(frozen=True, slots=True)
class Variant:
    """One instruction set: the flags of /proc/cpuinfo that it needs, and the compiler options for it."""

    name: str
    cpu_flags: frozenset[str]
    options: tuple[str, ...]
    is_default: bool = True
    """Used unless another is measured to be faster."""
    is_fallback: bool = False
    """Vectors of half the width: not a candidate if there are others."""


_AVX2 = ("avx2", "fma", "f16c")
_AVX2_OPTIONS = tuple(f"-m{flag}" for flag in _AVX2)

_AVX512 = ("avx512f", "avx512bw", "avx512dq", "avx512vl")
_AVX512_OPTIONS = (*(f"-m{flag}" for flag in _AVX512), *_AVX2_OPTIONS)

_AVX512_NEW = ("avx512_bf16", "avx512_vnni")
_AVX512_NEW_OPTIONS = tuple(f"-m{flag.replace('_', '')}" for flag in _AVX512_NEW)
_AMX = ("amx_tile", "amx_bf16", "amx_int8")

VARIANTS = (
    Variant(
        "amx",
        frozenset((*_AVX512, *_AVX512_NEW, *_AMX)),
        (*_AVX512_OPTIONS, *_AVX512_NEW_OPTIONS, *(f"-m{flag.replace('_', '-')}" for flag in _AMX)),
        is_default=False,
    ),
    Variant("avx512-bf16", frozenset((*_AVX512, *_AVX512_NEW)), (*_AVX512_OPTIONS, *_AVX512_NEW_OPTIONS)),
    Variant("avx512", frozenset(_AVX512), _AVX512_OPTIONS),
    Variant("avx2-vnni", frozenset((*_AVX2, "avx_vnni")), (*_AVX2_OPTIONS, "-mavxvnni"), is_fallback=True),
    Variant("avx2", frozenset(_AVX2), _AVX2_OPTIONS, is_fallback=True),
)
"""Best first."""
EMULATED = Variant("amx-emulated", frozenset(_AVX2), (*_AVX2_OPTIONS, "-DTGI_EMULATED_TILES"))
"""The kernels of `amx` over an emulated tile unit: slow, for tests on machines without one. Used only if asked for by name."""


class CannotBuild(Exception):
    """No library could be built or loaded; the text says why."""


def cpu_flags(cpuinfo: Path = Path("/proc/cpuinfo")) -> frozenset[str]:
    """Instruction sets of the first core, by the names of /proc/cpuinfo; none on another system."""
    try:
        lines = cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return frozenset()
    return next((frozenset(line.partition(":")[2].split()) for line in lines if line.startswith("flags")), frozenset())


def candidates(environment: Mapping[str, str]) -> tuple[Variant, ...]:
    """The requested variant, or those that the processor supports and that may be the fastest. Raises CannotBuild if there is none."""
    asked = environment.get(CHOICE, "").strip() or "auto"
    if asked == "torch":
        raise CannotBuild(f"{CHOICE}=torch")
    known = [variant for variant in VARIANTS if asked in ("auto", variant.name)] or [v for v in (EMULATED,) if v.name == asked]
    if not known:
        raise CannotBuild(f"{CHOICE}={asked[:40]} is not a variant; the variants are {', '.join(v.name for v in VARIANTS)}")
    flags = cpu_flags()
    fitting = [variant for variant in known if variant.cpu_flags <= flags]
    if not fitting:
        raise CannotBuild(f"the processor lacks {', '.join(sorted(known[-1].cpu_flags - flags))}")
    wide = [variant for variant in fitting if not variant.is_fallback]
    return tuple(wide or fitting)


def source_hash(variant: Variant) -> str:
    """A hash of everything a library is built from: sources and options."""
    digest = hashlib.sha256(repr((OPTIONS, variant.options)).encode())
    for file in sorted((*SOURCES.glob("*.h"), *SOURCES.glob("*.cpp"))):
        digest.update(file.name.encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()[:24]


def cache_folder() -> Path:
    """The folder for libraries that are built at first use."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if os.path.isabs(base) else Path.home() / ".cache") / "tgi-core" / "kernels"


def library(variant: Variant, waiting: Callable[[], None] = lambda: None) -> tuple[Path, str]:
    """The library of a variant, and where it comes from. While it is compiled, `waiting` is called repeatedly, the first time
    immediately. Raises CannotBuild."""
    built = BUILT / f"{variant.name}.so"
    if is_whole(built, source_hash(variant)):
        return built, "built with the package"
    kept = cache_folder() / f"{variant.name}-{source_hash(variant)}.so"
    if _is_private(kept.parent) and is_whole(kept, source_hash(variant)):
        return kept, "built before"
    return _build_into_cache(variant, kept, waiting), "built now"


def is_whole(file: Path, source: str) -> bool:
    """Whether a library is complete and built from these sources: the file next to it holds both hashes."""
    try:
        found = hashlib.sha256(file.read_bytes()).hexdigest()
        return file.with_suffix(".sum").read_text(encoding="ascii").split() == [found, source]
    except (OSError, ValueError):
        return False


def compiler() -> str | None:
    """The C++ compiler: that of the environment variable CXX, or the first one installed."""
    names = [name for name in (os.environ.get("CXX", ""), *COMPILERS) if name]
    return next((found for name in names if (found := shutil.which(name))), None)


def build(variant: Variant, to: Path, *extra: str, waiting: Callable[[], None] = lambda: None) -> None:
    """Compile a variant to a file, and write its hashes next to it. Raises CannotBuild."""
    found = compiler()
    if found is None:
        raise CannotBuild(f"no C++ compiler ({', '.join(COMPILERS)}) is installed")
    handle, name = tempfile.mkstemp(suffix=".so", dir=to.parent)
    os.close(handle)
    made = Path(name)
    try:
        command = [found, *OPTIONS, *variant.options, *extra, str(SOURCES / "kernels.cpp"), "-o", str(made)]
        _compile(command, waiting)
        to.with_suffix(".sum").write_text(
            f"{hashlib.sha256(made.read_bytes()).hexdigest()} {source_hash(variant)}\n", encoding="ascii"
        )
        made.replace(to)
    finally:
        made.unlink(missing_ok=True)


def _compile(command: list[str], waiting: Callable[[], None]) -> None:
    waiting()
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as told:
        try:
            child = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=told)
        except OSError as error:
            raise CannotBuild(f"{command[0]}: {error}") from error
        status = _wait(child, waiting)
        told.seek(0)
        text = told.read()
    if status is None:
        raise CannotBuild(f"{command[0]}: not done after {TIME_LIMIT} seconds")
    if status:
        first = next((line for line in text.splitlines() if "error" in line), text[:200])
        raise CannotBuild(f"{command[0]} failed: {first.strip()[:200]}")


def _wait(child: subprocess.Popen[bytes], waiting: Callable[[], None]) -> int | None:
    """Wait for a child's exit status; None if it was killed because it took too long."""
    start = time.monotonic()
    try:
        while time.monotonic() - start < TIME_LIMIT:
            try:
                return child.wait(_SHOW_EVERY_S)
            except subprocess.TimeoutExpired:
                waiting()
        return None
    finally:
        child.kill()
        child.wait()


def _build_into_cache(variant: Variant, kept: Path, waiting: Callable[[], None]) -> Path:
    """Build into the cache, or into a temporary folder if the cache is not writable."""
    try:
        kept.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not _is_private(kept.parent) or not os.access(kept.parent, os.W_OK):
            raise PermissionError
    except OSError:
        kept = Path(tempfile.mkdtemp(prefix="tgi-kernels-")) / kept.name
    try:
        build(variant, kept, waiting=waiting)
    except OSError as error:
        raise CannotBuild(f"{kept.parent}: {error.strerror}") from error
    return kept


def _is_private(folder: Path) -> bool:
    """Whether no other user can write to this folder: its contents will be executed."""
    try:
        state = folder.stat()
    except OSError:
        return False
    return state.st_uid == os.geteuid() and not state.st_mode & 0o022


def opened(file: Path) -> ctypes.CDLL:
    """The loaded library. Raises CannotBuild if the system cannot load it."""
    try:
        return ctypes.CDLL(str(file))
    except OSError as error:
        raise CannotBuild(f"{file.name} cannot be loaded: {' '.join(str(error).split())[:160]}") from error
