"""Conditions under which a generated mutant is wrong. Each lists the suite's topics that cover it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from tgi_conformance.generated.moment import Moment
from tgi_core.backend import SAMPLING, Request, SamplingSpec, SamplingStage

Holds = Callable[[Moment, int], bool]
"""Takes a moment, and the position in question: the one being written, or the last one of the row's part."""


@dataclass(frozen=True, slots=True)
class Condition:
    """A readable name, the topics whose clauses may name the condition, and the test."""

    name: str
    topics: frozenset[str]
    holds: Holds


def condition(name: str, topics: str, holds: Holds) -> Condition:
    """Make a condition; topics are words in one string."""
    return Condition(name, frozenset(topics.split()), holds)


def _using(spec: SamplingSpec) -> tuple[str, tuple[str, Callable[[Request], bool]]]:
    """Return a feature: the row's token may depend on this sampling field."""
    drawn, counts = spec.stage is not SamplingStage.PENALTY, spec.name.endswith("_penalty")
    topics = "formula parity continue" if counts else "formula parity"
    return spec.name, (topics, lambda request: spec.is_used(request.sampling) and (request.sampling.do_sample or not drawn))


FEATURES: dict[str, tuple[str, Callable[[Request], bool]]] = {
    "greedy": ("parity", lambda request: not request.sampling.do_sample),
    "sampled": ("formula parity", lambda request: request.sampling.do_sample),
    **dict(map(_using, (spec for spec in SAMPLING if spec.range is not None))),
    "masked": ("masks", lambda request: request.masked),
    "adapter": ("lora", lambda request: request.adapter is not None),
    "prefix": ("prefix", lambda request: request.cached > 0),
    "chunks": ("chunks", lambda request: request.cached + request.take < len(request.tokens)),
    "continued": ("continue faults", lambda request: request.prompt_len < len(request.tokens)),
    "logprobs": ("parity mates", lambda request: request.want.logprobs),
    "top tokens": ("parity mates", lambda request: request.want.top_n > 0),
    "prompt logprobs": ("parity chunks", lambda request: request.want.prompt_logprobs),
    "a prompt of one token": ("parity", lambda request: len(request.tokens) == 1),
    "a long seed": ("formula", lambda request: request.sampling.do_sample and request.sampling.seed >= 2**32),
}
"""What a request can use, with the topics that cover it."""

EVENTS = {
    "merge": "mates order",
    "join": "mixing order",
    "filter": "drop isolation mates",
    "removal": "drop isolation mates",
    "clear": "clear drop isolation",
    "clear of everything": "clear drop capacity",
    "refusal": "refusal failure",
    "failed step": "faults",
    "reopening": "faults mates",
    "preemption": "continue faults",
    "pause": "growth",
    "launch ahead": "order",
}
"""What can happen to a session, with the topics that cover it."""


def always(draw: Random) -> Condition:
    """The condition always holds."""
    return condition("always", "", lambda moment, position: True)


def rows_from(draw: Random) -> Condition:
    """The step has at least a certain number of rows."""
    least = draw.choice((2, 3, 4, 5, 6, 9, 17, 33, 65))
    return condition(f"{least} rows or more", "mates promise invariant", lambda moment, position: moment.rows >= least)


def rows_exactly(draw: Random) -> Condition:
    """The step has an exact number of rows."""
    number = draw.choice((1, 2, 3, 4, 5, 6, 8, 16, 32, 64))
    return condition(f"exactly {number} rows", "mates promise parity", lambda moment, position: moment.rows == number)


def place_from(draw: Random) -> Condition:
    """The row is at a certain place or later."""
    place = draw.choice((1, 2, 3, 4, 5, 8, 16, 32, 64))
    return condition(f"place {place} or later", "mates promise order", lambda moment, position: moment.place >= place)


def place_in_batch(draw: Random) -> Condition:
    """The row is the first, the last, every other one, or in the second half."""
    name, holds = draw.choice(
        (
            ("the first of several rows", lambda moment, position: moment.rows > 1 and moment.place == 0),
            ("the last of several rows", lambda moment, position: moment.rows > 1 and moment.place == moment.rows - 1),
            ("every other row", lambda moment, position: moment.place % 2 == 1),
            ("the second half of the rows", lambda moment, position: moment.rows > 1 and 2 * moment.place >= moment.rows),
        )
    )
    return condition(name, "mates order", holds)


def position_from(draw: Random) -> Condition:
    """The position is a certain one or later."""
    least = draw.choice((8, 16, 31, 32, 48, 63, 64, 100, 127, 128, 255, 256, 511, 512, 1023, 1024, 2047))
    return condition(f"position {least} or later", "growth parity promise chunks", lambda moment, position: position >= least)


def position_exactly(draw: Random) -> Condition:
    """The position is a certain one, usually next to a power of two."""
    place = draw.choice((0, 1, 2, 3, 4, 7, 8, 15, 16, 31, 32, 63, 64, 127, 128, 255, 256, 1023, 2047))
    return condition(f"position {place}", "growth parity promise chunks", lambda moment, position: position == place)


def block_edge(draw: Random) -> Condition:
    """The position is the first or last of a block or in a late block, or the prompt ends with a block."""
    kind, number = draw.randrange(4), draw.choice((1, 2, 3, 4, 7, 15, 31))
    topics = "growth cover parity prefix"
    if kind == 0:
        return condition(
            "first position of a later block",
            topics,
            lambda moment, position: position > 0 and position % moment.shape.block_size == 0,
        )
    if kind == 1:
        return condition(
            "last position of a block", topics, lambda moment, position: (position + 1) % moment.shape.block_size == 0
        )
    if kind == 2:
        return condition(
            f"block {number} of a row or later", topics, lambda moment, position: position // moment.shape.block_size >= number
        )
    return condition(
        "the prompt ends with a block", topics, lambda moment, position: len(moment.request.tokens) % moment.shape.block_size == 0
    )


def block_id(draw: Random) -> Condition:
    """The block id is high."""
    least = draw.choice((9, 17, 33, 64, 65, 80, 95, 128, 256, 512, 1024))
    return condition(
        f"block id {least} or higher", "cover growth drop promise", lambda moment, position: moment.block(position) >= least
    )


def longest(draw: Random) -> Condition:
    """The position is the last of the longest row."""
    return condition(
        "last position of the longest row",
        "growth cover promise",
        lambda moment, position: position == moment.shape.max_row_tokens - 1,
    )


def chunk(draw: Random) -> Condition:
    """The row is in a certain chunk of its prompt, or in a large one."""
    kind, size = draw.randrange(4), draw.choice((2, 3, 5, 8, 16, 17, 64))
    if kind == 0:
        return condition("a chunk that is not the first", "chunks", lambda moment, position: moment.chunk > 0 and moment.partial)
    if kind == 1:
        return condition(
            "the last chunk",
            "chunks",
            lambda moment, position: moment.chunk > 0 and moment.start + moment.take == len(moment.request.tokens),
        )
    if kind == 2:
        return condition(
            "a chunk that begins inside a block",
            "chunks",
            lambda moment, position: moment.partial and moment.start % moment.shape.block_size > 0,
        )
    return condition(
        f"a chunk of {size} tokens or more", "chunks", lambda moment, position: moment.partial and moment.take >= size
    )


def prefix(draw: Random) -> Condition:
    """The row reuses a prefix."""
    blocks, edge = draw.choice((1, 1, 2, 3)), draw.random() < 0.3
    if edge:
        return condition(
            "the first position behind a prefix",
            "prefix",
            lambda moment, position: moment.request.cached > 0 and position == moment.request.cached,
        )
    return condition(
        f"a prefix of {blocks} blocks or more",
        "prefix",
        lambda moment, position: moment.request.cached >= blocks * moment.shape.block_size,
    )


def block_size(draw: Random) -> Condition:
    """The session uses a certain block size."""
    size = draw.choice((1, 4, 16, 64))
    return condition(f"blocks of {size}", "open growth cover", lambda moment, position: moment.shape.block_size == size)


def feature(draw: Random) -> Condition:
    """The row uses a certain feature."""
    name = draw.choice(sorted(FEATURES))
    topics, uses = FEATURES[name]
    return condition(name, topics, lambda moment, position: uses(moment.request))


def feature_of_mate(draw: Random) -> Condition:
    """A batch mate uses a feature that the row itself does not use."""
    name = draw.choice(sorted(FEATURES))
    topics, uses = FEATURES[name]
    return condition(
        f"a mate with {name}",
        f"{topics} mates",
        lambda moment, position: not uses(moment.request) and any(map(uses, moment.shape.mates)),
    )


def after(draw: Random) -> Condition:
    """An event has happened a certain number of times."""
    event = draw.choice(sorted(EVENTS))
    least = draw.choice((1, 1, 2, 3, 5, 8) if event not in ("clear of everything", "failed step", "launch ahead") else (1, 1, 2))
    return condition(f"after {least} × {event}", EVENTS[event], lambda moment, position: moment.shape.past.get(event, 0) >= least)


def right_after(draw: Random) -> Condition:
    """An event was the last one to happen."""
    event = draw.choice(sorted(EVENTS))
    return condition(f"right after a {event}", EVENTS[event], lambda moment, position: moment.shape.newest == event)


def kind_of_step(draw: Random) -> Condition:
    """The verb launched a certain kind of step, or the row joined it in a certain way."""
    name, topics, holds = draw.choice(
        (
            ("a merge", "mates order", lambda moment, position: moment.shape.merged),
            ("rows join others", "mixing order", lambda moment, position: moment.shape.joined),
            ("a launch ahead", "order", lambda moment, position: moment.shape.ahead),
            ("a new row", "parity mates", lambda moment, position: moment.fresh),
            ("a decode", "parity mates", lambda moment, position: not moment.fresh),
            ("a row that sat out", "growth chunks", lambda moment, position: moment.idled),
            (
                "prefill beside decode",
                "mixing chunks",
                lambda moment, position: moment.take == 1 and moment.shape.tokens > moment.rows,
            ),
        )
    )
    return condition(name, topics, holds)


def step_size(draw: Random) -> Condition:
    """The step has many tokens."""
    least = draw.choice((9, 17, 33, 64, 65, 96, 129, 257))
    return condition(f"{least} tokens in a step", "promise mates capacity", lambda moment, position: moment.shape.tokens >= least)


def step_number(draw: Random) -> Condition:
    """The session has run a certain number of steps."""
    least = draw.choice((2, 4, 8, 16, 32, 64))
    return condition(
        f"step {least} or later", "leaks machine capacity drop", lambda moment, position: moment.shape.number >= least
    )


def token_ids(draw: Random) -> Condition:
    """The request contains a large token id."""
    least = draw.choice((16, 20, 49, 100, 128, 200, 240))
    return condition(
        f"a token id of {least} or more", "parity formula", lambda moment, position: max(moment.request.tokens) >= least
    )


KINDS: tuple[Callable[[Random], Condition], ...] = (
    *(rows_from, rows_exactly, place_from, place_in_batch, position_from, position_exactly, block_edge, block_id, longest),
    *(chunk, prefix, block_size, feature, feature, feature_of_mate, after, after, right_after, kind_of_step, step_size),
    *(step_number, token_ids),
)


def both(one: Condition, other: Condition) -> Condition:
    """Combine two conditions."""
    return Condition(
        f"{one.name} and {other.name}",
        one.topics | other.topics | ({"pairs"} if one.name in FEATURES and other.name in FEATURES else set()),
        lambda moment, position: one.holds(moment, position) and other.holds(moment, position),
    )


def drawn(draw: Random) -> Condition:
    """Draw a condition. One mutant in ten is always wrong, and three in ten only where two conditions meet."""
    chance = draw.random()
    if chance < 0.1:
        return always(draw)
    found = draw.choice(KINDS)(draw)
    return both(found, draw.choice(KINDS)(draw)) if chance > 0.7 else found
