"""Compiling kernels ahead of time, for chips that are not here, and reading what they take.

Compilers don't refuse a kernel that asks for more shared memory than the chip has, nor one that spills registers: a launch would fail,
or be slow. `python -m tests.triton.aot` compiles the whole matrix; arguments choose chips or kernels by a part of their names.
"""

from __future__ import annotations

import argparse
import importlib
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import combinations
from multiprocessing import get_context
from pathlib import Path

from rich.console import Console
from rich.progress import track
from rich.table import Table

from tests.triton.tables import tables_of
from tgi_core.engine.triton.builds import Build
from tgi_core.engine.triton.tiles import TileTable

FUSED = (
    "norm",
    "rotary",
    "latent",
    "latent_rotary",
    "activation",
    "sampling",
    "filtering",
    "processing",
    "typical",
    "top_tokens",
    "quantized",
    "scaled_gemm",
    "routing",
    "grouped",
)
"""The modules of kernels that are the same for every chip."""

MODULES = ("varlen", "decode", "cache_write", *FUSED)
"""The modules of kernels."""

COMPILED = ("cuda", "rocm")
"""The device packages that Triton from PyPI compiles for."""

_BUILDS = 800
"""After so many the processes end, and others go on: compilers keep some memory of every kernel. An executor's own way to do so,
`max_tasks_per_child`, may wait for ever."""

RESERVED = 1024
"""Bytes of shared memory that a multiprocessor keeps for each program, on NVIDIA's chips."""

Labels = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Entry:
    """One build for one chip. It travels to other processes, as a kernel can't."""

    package: str
    chip: str
    module: str
    index: int
    labels: Labels

    def __str__(self) -> str:
        return ", ".join(value for _, value in self.labels)


@dataclass(frozen=True, slots=True)
class Taken:
    """What a compiled kernel takes. `spilled` counts bytes per thread on NVIDIA's chips, registers on AMD's."""

    entry: Entry
    shared: int = 0
    registers: int = 0
    spilled: int = 0
    fault: str = ""


def matrix() -> list[Entry]:
    """Every build of every module for every chip; where two are the same build under different labels, the first."""
    found: dict[str, Entry] = {}
    for package in COMPILED:
        for table in tables_of(package):
            for module in MODULES:
                for index, build in enumerate(builds(module, table)):
                    entry = Entry(package, table.chip, module, index, (("chip", table.chip), *build.labels.items()))
                    found.setdefault(f"{table.chip} {_identity(build)}", entry)
    return list(found.values())


def _identity(build: Build) -> str:
    """What a build's compilation follows from, in words."""
    parts = (build.types, build.constants, build.options)
    return " ".join([build.kernel.__name__, *(str(sorted(part.items(), key=str)) for part in parts)])


def builds(module: str, table: TileTable) -> Iterator[Build]:
    """What a module says that its kernels are compiled to."""
    found: Iterator[Build] = importlib.import_module(f"tgi_core.engine.triton.{module}").builds(table)
    return found


def sample(entries: Sequence[Entry], pair: tuple[str, str]) -> list[Entry]:
    """Few entries with every pair of values of these two labels, and every value of the others."""
    left = {goal for entry in entries for goal in _goals(entry, pair)}
    chosen = []
    while left:
        best = max(entries, key=lambda entry: len(left & _goals(entry, pair)))
        left -= _goals(best, pair)
        chosen.append(best)
    return chosen


def _goals(entry: Entry, pair: tuple[str, str]) -> set[Labels]:
    return {(label,) for label in entry.labels} | {
        (one, other) for one, other in combinations(entry.labels, 2) if (one[0], other[0]) == pair
    }


def compile_entry(entry: Entry) -> Taken:
    """Compile one build, and say what it takes and what is wrong with that."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    table = next(table for table in tables_of(entry.package) if table.chip == entry.chip)
    build = list(builds(entry.module, table))[entry.index]
    signature, aligned = _signature(build)
    source = ASTSource(build.kernel, signature, constexprs=dict(build.constants), attrs=aligned)
    if entry.package == "cuda":
        target = GPUTarget("cuda", int(entry.chip.removeprefix("sm_")), 32)
    else:
        target = GPUTarget("hip", entry.chip, 64 if entry.chip.startswith("gfx9") else 32)
    try:
        compiled = triton.compile(source, target=target, options=dict(build.options))
    except (triton.TritonError, RuntimeError) as error:
        return Taken(entry, fault=f"{type(error).__name__}: {' '.join(str(error).split())[:300]}")
    registers, spilled = _ptx_taken(compiled.asm["cubin"]) if entry.package == "cuda" else _amd_taken(compiled.asm["amdgcn"])
    taken = Taken(entry, compiled.metadata.shared, registers, spilled)
    return Taken(entry, taken.shared, registers, spilled, _fault(taken, build, table))


def _signature(build: Build) -> tuple[dict[str, str], dict[tuple[int], list[list[object]]]]:
    """Types by argument, and what is known of their multiples by place."""
    signature, aligned = {}, {}
    for place, name in enumerate(build.kernel.arg_names):
        if name in build.constants:
            signature[name] = "constexpr"
            continue
        signature[name], _, multiple = build.types[name].partition(":")
        if multiple:
            aligned[(place,)] = [["tt.divisibility", int(multiple)]]
    return signature, aligned


def _ptx_taken(cubin: bytes) -> tuple[int, int]:
    """Registers per thread, and bytes of its stack."""
    import triton

    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        said = subprocess.run([str(tool), "-res-usage", file.name], capture_output=True, text=True, check=True).stdout
    found = re.search(r"REG:(\d+) STACK:(\d+)", said)
    assert found is not None, said
    return int(found[1]), int(found[2])


def _amd_taken(assembly: str) -> tuple[int, int]:
    """Vector registers per lane, and how many of them were spilled. Scalars spill into vector registers, which costs little."""
    numbers = [re.search(rf"\.{name}:\s*(\d+)", assembly) for name in ("vgpr_count", "vgpr_spill_count")]
    return tuple(int(number[1]) for number in numbers if number)  # type: ignore[return-value]


def _fault(taken: Taken, build: Build, table: TileTable) -> str:
    if taken.shared > table.shared_bytes:
        return f"{taken.shared} bytes of shared memory, of {table.shared_bytes}"
    if taken.spilled:
        return f"{taken.spilled} spilled"
    if taken.entry.package == "cuda" and build.programs * (taken.shared + RESERVED) > table.shared_bytes + RESERVED:
        return f"{build.programs} programs with {taken.shared} bytes of shared memory each, of {table.shared_bytes}"
    return ""


def compile_all(entries: Sequence[Entry], processes: int) -> Iterator[Taken]:
    """Compile in that many processes; results in the order of the entries."""
    for begin in range(0, len(entries), _BUILDS):
        with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
            yield from pool.map(compile_entry, entries[begin : begin + _BUILDS])


def main(arguments: Sequence[str] | None = None) -> int:
    """Print what every build takes; the number of faulty ones."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("words", nargs="*", help="only builds whose description has all of these")
    asked = parser.parse_args(arguments)
    entries = [entry for entry in matrix() if all(word in str(entry) for word in asked.words)]
    console = Console()
    table = Table("build", "shared KiB", "registers", "fault")
    faults = 0
    results = partial(track, total=len(entries), console=console, description=f"compiling {len(entries)}")
    for done, taken in enumerate(results(compile_all(entries, asked.processes))):
        if done % 200 == 0 and not console.is_terminal:
            print(f"{done} of {len(entries)}", flush=True)
        table.add_row(str(taken.entry), f"{taken.shared / 1024:.1f}", str(taken.registers), taken.fault)
        faults += bool(taken.fault)
        if taken.fault:
            console.print(f"{taken.entry}: {taken.fault}")
    console.print(table, f"{len(entries) - faults} of {len(entries)} fit")
    return min(faults, 100)


if __name__ == "__main__":
    sys.exit(main())
