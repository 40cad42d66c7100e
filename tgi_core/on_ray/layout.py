"""Which nodes can hold a replica, and the variables of its ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tgi_core.errors import StartupError

Resources = Mapping[str, float]
"""Amounts by the names that Ray gives them."""

USUAL: Resources = {"CPU": 1.0}
"""What a rank takes if nothing is said."""
_ACCELERATOR = "accelerator_type:"
"""How names of resources begin by which Ray tells the kind of a node's accelerators."""
_NEGLIGIBLE = 1e-6


def parse_resources(text: str) -> dict[str, float]:
    """Parse the value of --ray-resources, such as `GPU=1,CPU=4`. Raises StartupError."""
    found: dict[str, float] = {}
    for part in text.split(","):
        name, _, amount = (word.strip() for word in part.partition("="))
        try:
            found[name] = float(amount)
        except ValueError:
            found[name] = 0.0
        if not name or not 0 < found[name] < float("inf"):
            raise StartupError(f"--ray-resources {text}: must be NAME=AMOUNT, separated by commas, such as GPU=1,CPU=4")
    return found


def check_accelerators(nodes: Sequence[Resources]) -> None:
    """Check that what a rank takes may be left at `USUAL`: Ray assigns accelerators only to those who ask. Raises StartupError."""
    kinds = sorted({name.removeprefix(_ACCELERATOR) for node in nodes for name in node if name.startswith(_ACCELERATOR)})
    if kinds:
        raise StartupError(
            f"--engine ray: the cluster has accelerators ({', '.join(kinds)}); say what each rank takes, such as --ray-resources GPU=1, "
            "or CPU=1 for none"
        )


def times(resources: Resources, count: int) -> dict[str, float]:
    """Return what so many ranks take together."""
    return {name: amount * count for name, amount in resources.items()}


def fits(wanted: Resources, node: Resources) -> bool:
    """Return whether a node has that much."""
    return all(node.get(name, 0.0) + _NEGLIGIBLE >= amount for name, amount in wanted.items())


def spreads(ranks: int, of_a_rank: Resources, nodes: Sequence[Resources]) -> list[int]:
    """Return the numbers of nodes over which `ranks` can be divided evenly, the smallest first, given what all nodes have in total. If
    it is none, 1: nodes may come."""
    divisors = (count for count in range(1, ranks + 1) if ranks % count == 0)
    return [count for count in divisors if sum(fits(times(of_a_rank, ranks // count), node) for node in nodes) >= count] or [1]


def rank_variables(rank: int, world: int, local_world: int) -> dict[str, str]:
    """Return torchrun's variables of a rank, of which `local_world` are on each node."""
    return {
        "RANK": str(rank),
        "WORLD_SIZE": str(world),
        "LOCAL_RANK": str(rank % local_world),
        "LOCAL_WORLD_SIZE": str(local_world),
    }
