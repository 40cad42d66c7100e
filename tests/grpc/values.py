"""Strategies for every value that crosses the wire."""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar

from hypothesis import strategies as st

from tgi_core.backend import (
    SAMPLING,
    CacheGroup,
    CacheKind,
    Capabilities,
    Capacity,
    Determinism,
    Feature,
    Grant,
    Kernel,
    Memory,
    Mixing,
    OutputOptions,
    Request,
    RowFault,
    RowFaultKind,
    Sampling,
    SamplingField,
    Scope,
    WarmupPlan,
)
from tgi_core.grammar import Grammar, GrammarKind
from tgi_core.wire.health import ShardHealth, ShardState, TaskProgress
from tgi_core.wire.results import LARGEST
from tgi_core.wire.types import (
    Candidate,
    Clear,
    Decode,
    Fault,
    Filter,
    FinishReason,
    GeneratedText,
    Generation,
    Prefill,
    PromptToken,
    ShardInfo,
    ShardRequest,
    StepResult,
    Stopping,
    Token,
    Turn,
    TurnResult,
    VerbCall,
    needs_masks,
)

T = TypeVar("T")

small = st.integers(0, (1 << 32) - 1)
large = st.integers(0, (1 << 64) - 1)
number = st.floats(allow_nan=False)
logprob = st.floats(-LARGEST, LARGEST)
plain = st.text(st.characters(exclude_categories=["Cs"]), max_size=5)
any_text = st.text(st.characters(), max_size=5)
"""With lone surrogates, which a client's JSON can hold."""


def few(of: st.SearchStrategy[T]) -> st.SearchStrategy[tuple[T, ...]]:
    """Up to three of something."""
    return st.lists(of, max_size=3).map(tuple)


tables = few(few(small))
grants = st.builds(Grant, large, small, tables, drafts=few(small), propose=st.booleans())
_OF_TYPE = {bool: st.booleans(), int: large, float: number, tuple: few(st.tuples(small, number))}
samplings = st.builds(Sampling, **{spec.name: _OF_TYPE[type(spec.neutral)] for spec in SAMPLING})
grammars = st.none() | st.builds(Grammar, st.sampled_from(GrammarKind), any_text)
requests = st.builds(
    Request,
    id=large,
    tokens=few(small),
    prompt_len=small,
    cached=small,
    blocks=tables,
    take=small,
    sampling=samplings,
    want=st.builds(OutputOptions, st.booleans(), small, st.booleans()),
    adapter=st.none() | plain,
)
stoppings = st.builds(Stopping, small, few(any_text), st.booleans(), few(small), small)


def shard_request(request: Request, stopping: Stopping, grammar: Grammar | None, images: tuple[bytes, ...]) -> ShardRequest:
    """A request that is masked if it has a grammar: only the grammar crosses the wire."""
    return ShardRequest(replace(request, masked=needs_masks(stopping, grammar)), stopping, grammar, images)


shard_requests = st.builds(shard_request, requests, stoppings, grammars, few(st.binary(max_size=5)))
launches = st.builds(Prefill, large, few(shard_requests), st.none() | large, few(grants)) | st.builds(
    Decode, large, few(large), few(grants)
)
turns = st.builds(
    Turn, few(st.builds(Filter, large, few(large)) | st.builds(Clear, st.none() | large)), st.none() | launches, st.none() | large
)

faults = st.builds(Fault, st.sampled_from(Scope), plain, plain, few(large), st.booleans())
candidates = st.builds(Candidate, small, plain, logprob, st.booleans())
tokens = st.builds(Token, small, plain, logprob, st.booleans(), few(candidates))
generations = st.builds(
    Generation,
    request_id=large,
    tokens=few(tokens),
    prompt=few(st.builds(PromptToken, small, plain, st.none() | logprob)),
    finished=st.none() | st.builds(GeneratedText, plain, small, st.sampled_from(FinishReason)),
    fault=st.none() | st.builds(RowFault, st.sampled_from(RowFaultKind), plain),
)
forced = st.dictionaries(large, few(small), max_size=3)


def step_result(step: StepResult, proposed: tuple[tuple[int, ...], ...]) -> StepResult:
    """A step with guesses at what follows some of its rows."""
    ids = [item.request_id for item in step.generations]
    return replace(step, proposed={id: tokens for id, tokens in zip(ids, proposed, strict=False) if tokens})


steps = st.builds(
    step_result,
    st.builds(StepResult, large, few(generations), st.none() | faults, large, large, forced),
    few(few(small)),
)
verbs = st.builds(VerbCall, plain, large, plain)
results = st.builds(TurnResult, st.none() | faults, st.none() | steps, few(verbs))

capabilities = st.builds(
    Capabilities,
    features=st.frozensets(st.sampled_from(Feature)),
    sampling=st.frozensets(st.sampled_from(SamplingField)),
    block_sizes=few(small),
    mixing=st.sampled_from(Mixing),
    determinism=st.sampled_from(Determinism),
    vocab_size=small,
    max_positions=large,
    adapters=few(plain),
    kernels=few(st.builds(Kernel, plain, plain, plain)),
    cache_dtype=plain.filter(bool),
    quantize=plain,
    proposals=small,
    whole_images=st.booleans(),
    whole_prompts=st.booleans(),
)
infos = st.builds(ShardInfo, plain, plain, plain, plain, st.tuples(small, small), capabilities)
plans = st.builds(
    WarmupPlan,
    *([st.none() | large] * 5),
    features=st.frozensets(st.sampled_from(Feature)),
    draft=large,
    window_blocks=st.none() | large,
)
capacities = st.builds(
    Capacity,
    groups=few(st.builds(CacheGroup, st.sampled_from(CacheKind), large, large, st.none() | large)),
    max_rows=large,
    max_row_tokens=large,
    max_step_tokens=large,
    max_prefill_rows=large,
    in_flight=small,
    draft=small,
    memory=few(st.builds(Memory, plain, large)),
    compiles=large,
    takes=few(large),
)
healths = st.builds(
    ShardHealth,
    state=st.sampled_from(ShardState),
    task=st.none() | st.builds(TaskProgress, plain, large, large, plain),
    turns=large,
    last_step_age_ns=st.none() | large,
    turn_age_ns=st.none() | large,
)
