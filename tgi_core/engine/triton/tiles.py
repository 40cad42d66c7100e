"""How much of an attention problem one program of a kernel computes at a time, on which chip.

Tiles depend on the chip, so device packages define them: a `TileTable` per supported chip.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import lru_cache

MAX_SPLITS = 64
"""The most splits of a row in decode."""

_PROGRAM_COST = 1.5
"""What a program costs before and after its tiles, in tiles: loading queries, the first loads that nothing hides, storing."""

_REDUCE_COST = 3.0
"""What joining the parts costs, in tiles: another launch, and reading what was stored."""

_WORTH = 1.1
"""The least gain for which rows are split further."""


class Phase(Enum):
    """Which of the two attention kernels a tile is for."""

    DECODE = "decode"
    PREFILL = "prefill"


@dataclass(frozen=True, slots=True)
class Tile:
    """A tile of scores, [queries, positions], and how a program works on it.

    A query here is one head of one token: the heads that share a KV head fill the tile together. `stages` is how deep loads run ahead.
    `programs` is how many of them a multiprocessor holds at once. `one_loop` masks every tile of a prompt, also those that all queries see,
    which takes fewer registers. `options` go to the compiler as they are.
    """

    queries: int
    positions: int
    warps: int
    stages: int
    programs: int = 1
    one_loop: bool = False
    options: tuple[tuple[str, int], ...] = ()

    def launch_options(self) -> dict[str, int]:
        """What a launch says to the compiler."""
        return {"num_warps": self.warps, "num_stages": self.stages, **dict(self.options)}


@dataclass(frozen=True, slots=True)
class TileRow:
    """The tile for a phase, for elements of up to `itemsize` bytes and heads of up to `width` elements, from a version of Triton on: the
    same tile takes more registers in some versions than in others."""

    phase: Phase
    itemsize: int
    width: int
    tile: Tile
    since: tuple[int, int] = (0, 0)


@dataclass(frozen=True, slots=True)
class TileTable:
    """The tiles of one chip; of the rows that fit, the first counts.

    `shared_bytes` is what one program may have of shared memory. `fp8` is Triton's name of the chip's 8-bit dtype for caches; empty
    if it has none.
    """

    chip: str
    shared_bytes: int
    rows: tuple[TileRow, ...]
    fp8: str = ""

    @property
    def amd(self) -> bool:
        """Whether it is one of AMD's."""
        return self.chip.startswith("gfx")

    def choose(self, phase: Phase, itemsize: int, width: int) -> Tile:
        """The tile for queries of `itemsize` bytes an element and heads of `width`. Raises LookupError when none fits."""
        for row in self._known():
            if row.phase is phase and itemsize <= row.itemsize and width <= row.width:
                return row.tile
        raise LookupError(f"no {phase.value} tile for heads of {width} elements of {itemsize} bytes on {self.chip}")

    def serves(self, itemsize: int, width: int) -> bool:
        """Whether there is a tile for every phase."""
        return all(
            any(row.phase is phase and itemsize <= row.itemsize and width <= row.width for row in self._known())
            for phase in Phase
        )

    def rows_in_use(self) -> tuple[TileRow, ...]:
        """The rows that can be chosen: of those for the same elements, the first."""
        found: dict[tuple[Phase, int, int], TileRow] = {}
        for row in self._known():
            found.setdefault((row.phase, row.itemsize, row.width), row)
        return tuple(found.values())

    def _known(self) -> Iterator[TileRow]:
        """The rows for the installed Triton."""
        version = triton_version()
        return (row for row in self.rows if row.since <= version)


@lru_cache(maxsize=1)
def triton_version() -> tuple[int, int]:
    """(major, minor) of the installed Triton; (0, 0) if there is none."""
    try:
        import triton
    except ImportError:
        return 0, 0
    major, minor = triton.__version__.split(".")[:2]
    return int(major), int(minor)


def table_of(tables: Sequence[TileTable], chip: str) -> TileTable:
    """The table of that chip. Raises LookupError when it has none."""
    for table in tables:
        if table.chip == chip:
            return table
    raise LookupError(f"no tiles for {chip}: there are some for {', '.join(table.chip for table in tables)}")


def grown(tile: Tile, group: int) -> Tile:
    """A prefill tile that holds at least the `group` heads of one token."""
    queries = max(tile.queries, power_of_two(group))
    return tile if queries == tile.queries else replace(tile, queries=queries)


def power_of_two(number: int) -> int:
    """The smallest power of two that is at least `number`, and at least 1."""
    return 1 << max(0, number - 1).bit_length()


@lru_cache(maxsize=4096)
def split_count(programs: int, tiles: int, resident: int) -> int:
    """Into how many parts to split rows of `tiles` tiles, with `programs` programs if whole and `resident` running at once.

    From numbers that the host knows: a captured step keeps its split. The model is time in tiles: programs run in waves, and a part
    costs its tiles and a little more.
    """

    def cost(splits: int) -> float:
        waves = -(-programs * splits // resident)
        return waves * (-(-tiles // splits) + _PROGRAM_COST) + (_REDUCE_COST if splits > 1 else 0)

    counts = range(1, max(1, min(MAX_SPLITS, tiles)) + 1)
    enough = min(map(cost, counts)) * _WORTH
    return next(splits for splits in counts if cost(splits) <= enough)
