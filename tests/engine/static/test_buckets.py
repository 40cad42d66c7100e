"""The shapes of programs: few, little padding, and every legal step runs in them."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tgi_core.backend import CacheGroup, CacheKind, Capacity
from tgi_core.engine.sizes import doublings, fitting, ladder
from tgi_core.engine.static.buckets import BucketRules, Buckets, HeadShape, Shape
from tgi_core.engine.static.splitting import blocks_of, split


def capacity(rows: int, row_tokens: int, step_tokens: int, block_size: int, blocks: int, draft: int = 0) -> Capacity:
    """Limits of these sizes."""
    return Capacity((CacheGroup(CacheKind.FULL, block_size, blocks),), rows, row_tokens, step_tokens, rows, draft=draft)


@given(st.integers(1, 50), st.integers(0, 3000), st.floats(0.01, 0.45))
def test_ladder(least: int, more: int, waste: float) -> None:
    """The first and the last size are those asked for, and lengths spread evenly between two sizes lose no more than `waste`."""
    sizes = ladder(least, least + more, waste)
    assert sizes[0] == least and sizes[-1] == least + more
    for below, size in pairwise(sizes):
        mean = (below + 1 + size) / 2
        assert below < size and (size == below + 1 or 1 - mean / size <= waste + 1e-9)


@given(st.integers(1, 9), st.integers(0, 500), st.integers(1, 600))
def test_doublings(least: int, more: int, length: int) -> None:
    """A length takes at most twice itself, and none that is too long is held."""
    sizes = doublings(least, least + more)
    found = fitting(sizes, length)
    assert (found is None) == (length > least + more)
    assert found is None or length <= found <= max(least, 2 * length)


LIMITS = st.builds(
    lambda rows, size, per_row, step, share, draft: (
        rows, max(2, size * per_row - step % size), max(rows, step), size, max(per_row, rows * per_row * share // 4), draft
    ),
    st.integers(1, 40), st.sampled_from([16, 32, 128]), st.integers(1, 40), st.integers(1, 5000), st.integers(1, 4), st.integers(0, 5),
)  # fmt: skip
RULES = st.builds(
    BucketRules, st.sampled_from([(128, 256, 512, 1024), (32, 64), (7,)]), st.sampled_from([0.08, 0.1, 0.3]), st.booleans()
)


@st.composite
def steps(draw: st.DrawFn, limits: Capacity) -> tuple[list[int], list[int]]:
    """First positions and takes of a step within the limits."""
    room, starts, takes = limits.max_step_tokens, [], []
    for _ in range(draw(st.integers(1, limits.max_rows))):
        if not room:
            break
        most = min(room, limits.max_row_tokens)
        takes.append(draw(st.one_of(st.just(1), st.integers(1, most))))
        starts.append(draw(st.integers(0, limits.max_row_tokens - takes[-1])))
        room -= takes[-1]
    return starts, takes


@given(LIMITS, RULES, st.data())
def test_every_step_is_split(limits: tuple[int, ...], rules: BucketRules, data: st.DataObject) -> None:
    """Every token of a legal step is in one part, in order, and each part fits in the program of a bucket; so do its logits."""
    promised = capacity(*limits)
    buckets = Buckets.of(promised, rules)
    bodies, heads = set(buckets.bodies()), set(buckets.heads())
    assert len(buckets.shapes()) == len(bodies) + len(heads) == len(set(buckets.shapes()))
    starts, takes = data.draw(steps(promised))
    drafting = {row for row, take in enumerate(takes) if 1 < take <= 1 + buckets.draft and data.draw(st.booleans())}
    ran: dict[int, list[int]] = {row: [] for row in range(len(starts))}
    for call in split(starts, takes, buckets, drafting):
        shape = call.shape
        assert shape in bodies and len(call.parts) <= shape.rows
        assert {buckets.head(shape, count) for count in (1, 2, 500)} <= heads
        reached = [blocks_of(part, buckets.block_size) for part in call.parts]
        assert (sum(reached) if rules.flat and shape.take == 1 else max(reached)) <= shape.blocks
        for part in call.parts:
            assert part.take <= shape.take
            ran[part.row] += range(part.start, part.start + part.take)
        places = call.places().tolist()
        assert places == sorted(set(places)) and len(places) == sum(part.take for part in call.parts)
        assert not places or places[-1] < shape.tokens <= shape.outputs
    assert ran == {row: list(range(starts[row], starts[row] + takes[row])) for row in ran}


@given(LIMITS, RULES, st.data())
def test_ranks_agree(limits: tuple[int, ...], rules: BucketRules, data: st.DataObject) -> None:
    """What a step runs as follows from the limits and the step alone, so ranks that see the same calls run the same programs."""
    ours, theirs = (Buckets.of(capacity(*limits), rules) for _ in range(2))
    starts, takes = data.draw(steps(capacity(*limits)))
    assert ours == theirs and split(starts, takes, ours) == split(list(starts), list(takes), theirs)


class Quarters(BucketRules):
    """For compilers that take minutes."""

    def row_sizes(self, max_rows: int) -> tuple[int, ...]:
        """A quarter of the rows, and all."""
        return (max_rows // 4, max_rows)


@pytest.mark.parametrize(
    ("rules", "context", "most"),
    [(BucketRules(), 4096, 110), (BucketRules(), 32768, 175), (Quarters(takes=(128, 512, 1024), waste=0.45), 4096, 24)],
)
def test_few_programs(rules: BucketRules, context: int, most: int) -> None:
    """With blocks of 128 and 32 rows, the shapes that we propose to vendors are few."""
    buckets = Buckets.of(capacity(32, context, 4096, 128, 32 * context // 128), rules)
    assert len(buckets.shapes()) <= most


def test_the_largest_come_first() -> None:
    """Of prompts and of decode rows the largest program runs before all others: it brings the memory that they share."""
    buckets = Buckets.of(capacity(8, 256, 512, 16, 64), BucketRules(takes=(32, 128)))
    first, second, *others = buckets.bodies()
    assert (first, second) == (Shape(1, 128, 16, 128), Shape(8, 1, 128, 8, flat=True))
    assert {shape.take for shape in others} == {1, 32, 128}
    assert buckets.heads()[0] == HeadShape(128, 128)
