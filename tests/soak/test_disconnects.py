"""A thousand clients leave; nothing is left of them."""

from __future__ import annotations

from tests.soak.disconnects import open_server, storm


def test_leaving_leaves_nothing() -> None:
    """However and whenever clients leave, afterwards no row, block, permit, task or file descriptor is held for them."""
    with open_server() as instance:
        before = instance.quiet()
        storm(instance, 1_000, seed=0)
        print(f"settled after {instance.settle(before):.2f} s")
        instance.check_permits()
