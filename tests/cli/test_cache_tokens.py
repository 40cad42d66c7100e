"""--kv-cache-tokens: what a backend is asked for, and what it then promises."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tgi_conformance.mutants import TWINS

from tgi_core.backend import Capabilities, OpenOptions
from tgi_core.backend.session import Session
from tgi_core.cli.shard_openers import warmup_plan
from tgi_core.config import Settings

TOKENS = 4096


def opened(twin: str) -> Session:
    """A session of one of the suite's sound backends."""
    target = TWINS[twin].target()
    return Session(target.open(OpenOptions(str(target.model))), twin)


@pytest.mark.parametrize("twin", ["random-handles", "tiny-blocks"])
def test_the_cache_holds_what_was_asked_for(twin: str) -> None:
    """Whatever size of block the backend chooses where it is left to it."""
    session = opened(twin)
    plan = warmup_plan(Settings(kv_cache_tokens=TOKENS))(session.capabilities())
    (group,) = session.warmup(plan, lambda what, done, total, unit: None).groups
    assert group.num_blocks * group.block_size == TOKENS


@pytest.mark.parametrize(
    ("sizes", "longest", "blocks"),
    [((2048,), 512, 8), ((2048,), None, 2), ((256,), 100, 16), ((1, 16), 512, 4096), ((), 512, 8), ((), None, 2)],
)
def test_blocks_are_counted_in_their_size(sizes: tuple[int, ...], longest: int | None, blocks: int) -> None:
    """A block that holds a row is as long as the longest row, also where only warm-up decides; any other has the size that is asked
    for."""
    capabilities: Capabilities = replace(opened("random-handles").capabilities(), block_sizes=sizes, max_positions=2048)
    plan = warmup_plan(Settings(kv_cache_tokens=TOKENS, max_total_tokens=longest))(capabilities)
    assert (plan.num_blocks, plan.block_size) == (blocks, sizes[0] if sizes else None)
    assert warmup_plan(Settings())(capabilities).block_size is None
