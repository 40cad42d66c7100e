"""Protobuf codec for `TurnResult`, the shard's answer to a turn. A step's rows are encoded as columns, one per property."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice
from math import inf, isnan
from typing import Any, TypeVar

from tgi_core.backend import RowFault, RowFaultKind, Scope
from tgi_core.proto import contract_pb2 as contract
from tgi_core.proto.generate.v3 import generate_pb2 as pb
from tgi_core.wire.types import (
    Candidate,
    Fault,
    FinishReason,
    GeneratedText,
    Generation,
    PromptToken,
    StepResult,
    Token,
    TurnResult,
    VerbCall,
)

T = TypeVar("T")

LARGEST = 3.4028234663852886e38
"""The largest 32-bit float, which bounds logprobs, since clients get them as 32-bit floats."""


def encode_result(result: TurnResult) -> pb.TurnResult:
    """Encode the answer to a turn."""
    return pb.TurnResult(
        refused=None if result.refused is None else _encode_fault(result.refused),
        result=None if result.result is None else _encode_step(result.result),
        verbs=[contract.VerbCall(verb=call.verb, ns=call.ns, error=clean(call.error)) for call in result.verbs],
    )


def decode_result(message: pb.TurnResult, vocab_size: int) -> TurnResult:
    """Decode the answer to a turn. Raises ValueError for columns of different lengths, token ids outside the vocabulary and NaN
    logprobs."""
    return TurnResult(
        refused=_decode_fault(message.refused) if message.HasField("refused") else None,
        result=_decode_step(message.result, vocab_size) if message.HasField("result") else None,
        verbs=tuple(VerbCall(call.verb, call.ns, call.error) for call in message.verbs),
    )


def clean(text: str) -> str:
    """Make an error message, which comes from other code, valid for a string field."""
    return text.encode(errors="replace").decode()


def _encode_fault(fault: Fault) -> contract.Fault:
    return contract.Fault(
        scope=fault.scope.value,
        kind=clean(fault.kind),
        message=clean(fault.message),
        request_ids=fault.request_ids,
        lost=fault.lost,
    )


def _decode_fault(message: contract.Fault) -> Fault:
    """Decode a scope. An unknown one counts as the widest."""
    scopes = {scope.value: scope for scope in Scope}
    scope = scopes.get(message.scope, Scope.SESSION)
    return Fault(scope, message.kind, message.message, tuple(message.request_ids), message.lost)


def _encode_step(step: StepResult) -> contract.StepResult:
    made = step.generations
    proposed = [step.proposed.get(item.request_id, ()) for item in made] if step.proposed else []
    tokens = [token for item in made for token in item.tokens]
    counts = [len(item.tokens) for item in made]
    return contract.StepResult(
        step=step.step,
        fault=None if step.fault is None else _encode_fault(step.fault),
        forward_ns=step.forward_ns,
        sample_ns=step.sample_ns,
        request_ids=[item.request_id for item in made],
        token_counts=[] if all(count == 1 for count in counts) else counts,
        ids=[token.id for token in tokens],
        texts=[token.text for token in tokens],
        logprobs=[token.logprob for token in tokens],
        special=[place for place, token in enumerate(tokens) if token.special],
        candidates=[_encode_candidates(place, token.top) for place, token in enumerate(tokens) if token.top],
        prompts=[_encode_prompt(place, item.prompt) for place, item in enumerate(made) if item.prompt],
        finished=[_encode_finished(place, item.finished) for place, item in enumerate(made) if item.finished],
        faults=[
            contract.RowFault(generation=place, kind=item.fault.kind.value, message=clean(item.fault.message))
            for place, item in enumerate(made)
            if item.fault is not None
        ],
        forced=[contract.Forced(request_id=id, ids=ids) for id, ids in step.forced.items()],
        proposed_counts=[len(ids) for ids in proposed],
        proposed=[token for ids in proposed for token in ids],
    )


def _decode_step(message: contract.StepResult, vocab_size: int) -> StepResult:
    made, unusual = _decode_generations(message, vocab_size)
    return StepResult(
        step=message.step,
        generations=tuple(made),
        fault=_decode_fault(message.fault) if message.HasField("fault") else None,
        forward_ns=message.forward_ns,
        sample_ns=message.sample_ns,
        forced={item.request_id: _decode_hints("forced", item.ids, vocab_size) for item in message.forced},
        proposed=_decode_proposed(message, vocab_size) if message.proposed_counts else {},
        unusual=unusual,
    )


def _decode_hints(what: str, ids: Sequence[int], vocab_size: int) -> tuple[int, ...]:
    """Decode tokens that become drafts, of which each must be in the vocabulary."""
    if ids and max(ids) >= vocab_size:
        raise ValueError(f"{what} token {max(ids)} of a vocabulary of {vocab_size}")
    return tuple(ids)


def _decode_proposed(message: contract.StepResult, vocab_size: int) -> dict[int, tuple[int, ...]]:
    """Decode guesses by request; the columns hold them by generation."""
    counts, ids = message.proposed_counts, iter(_decode_hints("proposed", message.proposed, vocab_size))
    if len(counts) != len(message.request_ids) or sum(counts) != len(message.proposed):
        raise ValueError(f"{len(message.proposed)} proposed tokens, where it counts {sum(counts)} in {len(counts)} rows")
    rows = {id: tuple(islice(ids, count)) for id, count in zip(message.request_ids, counts, strict=True)}
    return {id: proposed for id, proposed in rows.items() if proposed}


def _decode_generations(message: contract.StepResult, vocab_size: int) -> tuple[list[Generation], list[Generation]]:
    """Decode the rows. Return them and the unusual ones among them: most rows have one token and nothing else."""
    ids, tokens = message.request_ids[:], _decode_tokens(message, vocab_size)
    unusual = set[int]()
    if message.token_counts:
        counts, rest = message.token_counts[:], iter(tokens)
        if len(counts) != len(ids) or sum(counts) != len(tokens):
            raise ValueError(f"{len(tokens)} tokens in {len(ids)} rows, where it counts {sum(counts)} in {len(counts)}")
        made = [Generation(id, tuple(islice(rest, count))) for id, count in zip(ids, counts, strict=True)]
        unusual.update(place for place, count in enumerate(counts) if count != 1)
    else:
        if len(ids) != len(tokens):
            raise ValueError(f"{len(tokens)} tokens in {len(ids)} rows of one each")
        made = [Generation(id, (token,)) for id, token in zip(ids, tokens, strict=True)]
    if message.prompts or message.finished or message.faults:
        unusual.update(_complete(made, message, vocab_size))
    return made, [made[place] for place in sorted(unusual)]


def _complete(made: list[Generation], message: contract.StepResult, vocab_size: int) -> set[int]:
    """Add prompts, ends and faults to their rows. Return the places of those rows."""
    rows = len(made)
    prompts = _placed(message.prompts, rows, lambda item: (item.generation, _decode_prompt(item, vocab_size)))
    finished = _placed(message.finished, rows, lambda item: (item.generation, _decode_finished(item)))
    faults = _placed(message.faults, rows, lambda item: (item.generation, RowFault(RowFaultKind(item.kind), item.message)))
    places = {*prompts, *finished, *faults}
    for place in places:
        row = made[place]
        made[place] = Generation(row.request_id, row.tokens, prompts.get(place, ()), finished.get(place), faults.get(place))
    return places


def _placed(items: Sequence[Any], places: int, decode: Callable[[Any], tuple[int, T]]) -> dict[int, T]:
    """Decode items that belong to some of `places` places. Return them by place."""
    found = dict(map(decode, items))
    if found and (len(found) != len(items) or max(found) >= places):
        raise ValueError(f"a place that occurs twice, or is not below {places}")
    return found


def _decode_tokens(message: contract.StepResult, vocab_size: int) -> list[Token]:
    ids, logprobs = message.ids[:], message.logprobs[:]  # copies are twice as fast to read as the repeated fields
    if ids and max(ids) >= vocab_size:
        raise ValueError(f"token {max(ids)} of a vocabulary of {vocab_size}")
    check_logprobs(logprobs)
    tokens = [Token(id, text, logprob, False) for id, text, logprob in zip(ids, message.texts[:], logprobs, strict=True)]
    if message.special or message.candidates:
        _mark(tokens, message, vocab_size)
    return tokens


def _mark(tokens: list[Token], message: contract.StepResult, vocab_size: int) -> None:
    """Add candidates to their tokens, and mark special tokens."""
    special, count = set(message.special), len(tokens)
    if special and max(special) >= count:
        raise ValueError(f"special token {max(special)} of {count}")
    top = _placed(message.candidates, count, lambda item: (item.token, _decode_candidates(item, vocab_size)))
    for place in {*special, *top}:
        token = tokens[place]
        tokens[place] = Token(token.id, token.text, token.logprob, place in special, top.get(place, ()))


def check_logprobs(logprobs: Sequence[float], unlikely: bool = False) -> None:
    """Check logprobs. Raises ValueError for one that cannot be sent to clients. NaN stands for a missing one. With `unlikely`, the
    tokens were not sampled, and may have minus infinity."""
    if (
        logprobs and min(logprobs) >= -LARGEST and max(logprobs) <= LARGEST
    ):  # False if the first is NaN; a later NaN hides no value
        return
    for logprob in logprobs:
        if not (-LARGEST <= logprob <= LARGEST or isnan(logprob) or (unlikely and logprob == -inf)):
            raise ValueError("a logprob that is not a number")


def _encode_candidates(place: int, top: tuple[Candidate, ...]) -> contract.Candidates:
    return contract.Candidates(
        token=place,
        ids=[item.id for item in top],
        texts=[item.text for item in top],
        logprobs=[item.logprob for item in top],
        special=[rank for rank, item in enumerate(top) if item.special],
    )


def _decode_candidates(message: contract.Candidates, vocab_size: int) -> tuple[Candidate, ...]:
    _check_tokens(message, vocab_size)
    columns = zip(message.ids, message.texts, message.logprobs, strict=True)
    return tuple(Candidate(id, text, logprob, rank in message.special) for rank, (id, text, logprob) in enumerate(columns))


def _check_tokens(message: contract.Candidates | contract.Prompt, vocab_size: int) -> None:
    """Check tokens that were not sampled."""
    if message.ids and max(message.ids) >= vocab_size:
        raise ValueError(f"token {max(message.ids)} of a vocabulary of {vocab_size}")
    check_logprobs(message.logprobs, unlikely=True)


def _encode_prompt(place: int, prompt: tuple[PromptToken, ...]) -> contract.Prompt:
    return contract.Prompt(
        generation=place,
        ids=[token.id for token in prompt],
        texts=[token.text for token in prompt],
        logprobs=[token.logprob for token in prompt if token.logprob is not None],
        without=[place for place, token in enumerate(prompt) if token.logprob is None],
    )


def _decode_prompt(message: contract.Prompt, vocab_size: int) -> tuple[PromptToken, ...]:
    _check_tokens(message, vocab_size)
    known, without = iter(message.logprobs), set(message.without)
    if len(message.ids) != len(message.logprobs) + len(without) or (without and max(without) >= len(message.ids)):
        raise ValueError("the logprobs of a prompt are fewer or more than its tokens")
    return tuple(
        PromptToken(id, text, None if place in without else next(known))
        for place, (id, text) in enumerate(zip(message.ids, message.texts, strict=True))
    )


def _encode_finished(place: int, finished: GeneratedText) -> contract.Finished:
    return contract.Finished(
        generation=place,
        text=finished.text,
        generated_tokens=finished.generated_tokens,
        reason=finished.finish_reason.value,
    )


def _decode_finished(message: contract.Finished) -> GeneratedText:
    return GeneratedText(message.text, message.generated_tokens, FinishReason(message.reason))
