"""`TurnResult` as a message and back. A step's rows travel by columns, one per property."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

from tgi_core.backend import RowFault, RowFaultKind, Scope
from tgi_core.client.types import (
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
from tgi_core.proto import contract_pb2 as contract
from tgi_core.proto.generate.v3 import generate_pb2 as pb


def encode_result(result: TurnResult) -> pb.TurnResult:
    """What a turn brought."""
    return pb.TurnResult(
        refused=None if result.refused is None else _encode_fault(result.refused),
        result=None if result.result is None else _encode_step(result.result),
        verbs=[contract.VerbCall(verb=call.verb, ns=call.ns, error=clean(call.error)) for call in result.verbs],
    )


def decode_result(message: pb.TurnResult) -> TurnResult:
    """Raises ValueError for columns that do not fit each other."""
    return TurnResult(
        refused=_decode_fault(message.refused) if message.HasField("refused") else None,
        result=_decode_step(message.result) if message.HasField("result") else None,
        verbs=tuple(VerbCall(call.verb, call.ns, call.error) for call in message.verbs),
    )


def clean(text: str) -> str:
    """Text that a string field can hold: messages of errors are not ours to trust."""
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
    """A scope that this version does not know reaches as far as possible."""
    scopes = {scope.value: scope for scope in Scope}
    scope = scopes.get(message.scope, Scope.SESSION)
    return Fault(scope, message.kind, message.message, tuple(message.request_ids), message.lost)


def _encode_step(step: StepResult) -> contract.StepResult:
    made = step.generations
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
    )


def _decode_step(message: contract.StepResult) -> StepResult:
    generations = _decode_generations(message, _decode_tokens(message))
    return StepResult(
        step=message.step,
        generations=generations,
        fault=_decode_fault(message.fault) if message.HasField("fault") else None,
        forward_ns=message.forward_ns,
        sample_ns=message.sample_ns,
    )


def _decode_generations(message: contract.StepResult, tokens: list[Token]) -> tuple[Generation, ...]:
    if not (message.token_counts or message.prompts or message.finished or message.faults):  # as most steps are
        return tuple([Generation(id, (token,)) for id, token in zip(message.request_ids, tokens, strict=True)])
    rest = iter(tokens)
    counts: Iterable[int] = message.token_counts or (1,) * len(message.request_ids)
    prompts = {item.generation: _decode_prompt(item) for item in message.prompts}
    finished = {item.generation: _decode_finished(item) for item in message.finished}
    faults = {item.generation: RowFault(RowFaultKind(item.kind), item.message) for item in message.faults}
    return tuple(
        Generation(id, tuple(islice(rest, count)), prompts.get(place, ()), finished.get(place), faults.get(place))
        for place, (id, count) in enumerate(zip(message.request_ids, counts, strict=True))
    )


def _decode_tokens(message: contract.StepResult) -> list[Token]:
    special = set(message.special)
    top = {item.token: _decode_candidates(item) for item in message.candidates}
    columns = zip(message.ids, message.texts, message.logprobs, strict=True)
    if not special and not top:  # as most steps are
        return [Token(id, text, logprob, False) for id, text, logprob in columns]
    return [Token(id, text, logprob, place in special, top.get(place, ())) for place, (id, text, logprob) in enumerate(columns)]


def _encode_candidates(place: int, top: tuple[Candidate, ...]) -> contract.Candidates:
    return contract.Candidates(
        token=place,
        ids=[item.id for item in top],
        texts=[item.text for item in top],
        logprobs=[item.logprob for item in top],
        special=[rank for rank, item in enumerate(top) if item.special],
    )


def _decode_candidates(message: contract.Candidates) -> tuple[Candidate, ...]:
    columns = zip(message.ids, message.texts, message.logprobs, strict=True)
    return tuple(Candidate(id, text, logprob, rank in message.special) for rank, (id, text, logprob) in enumerate(columns))


def _encode_prompt(place: int, prompt: tuple[PromptToken, ...]) -> contract.Prompt:
    return contract.Prompt(
        generation=place,
        ids=[token.id for token in prompt],
        texts=[token.text for token in prompt],
        logprobs=[token.logprob for token in prompt if token.logprob is not None],
        without=[place for place, token in enumerate(prompt) if token.logprob is None],
    )


def _decode_prompt(message: contract.Prompt) -> tuple[PromptToken, ...]:
    known, without = iter(message.logprobs), set(message.without)
    if len(message.ids) != len(message.logprobs) + len(without):
        raise ValueError("a prompt has fewer or more logprobs than it says")
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
