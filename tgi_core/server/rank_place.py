"""The rank of this process, if each rank is started separately, by torchrun or by hand; and the replica that it belongs to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tgi_core.errors import StartupError


@dataclass(frozen=True, slots=True)
class Place:
    """Rank `rank` of `world`, and `local_rank` of the `local_world` ranks on this machine."""

    rank: int
    world: int
    local_rank: int
    local_world: int


@dataclass(frozen=True, slots=True)
class ReplicaPlace:
    """Replica `number` of the `count` replicas of the model on this machine, which all have the same number of ranks."""

    number: int = 0
    count: int = 1

    @classmethod
    def parse(cls, text: str) -> ReplicaPlace:
        """Parse the form `NUMBER/COUNT`, which `str` makes."""
        number, _, count = text.partition("/")
        return cls(int(number), int(count))

    def __str__(self) -> str:
        return f"{self.number}/{self.count}"


def own_place(environ: Mapping[str, str], num_shard: int | None) -> Place | None:
    """Read RANK, WORLD_SIZE, LOCAL_RANK and LOCAL_WORLD_SIZE; None if they are not set. Raises StartupError."""
    if not environ.get("RANK") or not environ.get("WORLD_SIZE"):
        return None
    rank, world = _number(environ, "RANK"), _number(environ, "WORLD_SIZE")
    local_rank, local_world = _number(environ, "LOCAL_RANK", rank), _number(environ, "LOCAL_WORLD_SIZE", world)
    if not 0 <= rank < world or not 0 <= local_rank < local_world <= world:
        raise StartupError(
            f"RANK={rank} WORLD_SIZE={world} LOCAL_RANK={local_rank} LOCAL_WORLD_SIZE={local_world}: ranks count from 0, and there "
            "are no more on one machine than in all"
        )
    if num_shard is not None and num_shard != world:
        raise StartupError(f"--num-shard {num_shard} and WORLD_SIZE={world}: two numbers of ranks; leave --num-shard out")
    return Place(rank, world, local_rank, local_world) if world > 1 else None


def _number(environ: Mapping[str, str], name: str, default: int | None = None) -> int:
    text = environ.get(name) or ("" if default is None else str(default))
    if not text.isdecimal():
        raise StartupError(f"{name}={text}: not a whole number")
    return int(text)
