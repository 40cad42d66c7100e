"""One poisoned request among 31 others: it fails, and nobody else notices."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from tests.faults.conftest import CleanRun
from tests.faults.servers import MARK, TIGHT, Servers, ServerUnderTest, fault, later, mates
from tests.scheduler.device import request
from tgi_core.backend import CapacityExceeded, InvalidRequest, OutOfMemory, Row, RowFaultKind, Sampling, Unsupported
from tgi_core.grammar import Grammar, GrammarKind, InvalidGrammar
from tgi_core.scheduler import GenerationRequest, RequestFailed
from tgi_core.server.detokenize import Detokenizer
from tgi_core.server.masks import Constraint
from tgi_core.server.stopping import StopMatcher
from tgi_core.server.transcript import Transcript

Patch = pytest.MonkeyPatch
Kind = Callable[[ServerUnderTest, Patch], GenerationRequest]
"""Poisons a instance, and returns the request that is to fail."""

PROMPT = (MARK, 9, 11)
VICTIM = request(PROMPT, 6)
DIGITS = Grammar(GrammarKind.REGEX, "[0-9]{40}")


def rows(spoil: Callable[[Row, int], Row]) -> Kind:
    """The backend returns the victim's row like this."""

    def poison(instance: ServerUnderTest, patch: Patch) -> GenerationRequest:
        instance.poison.spoil = spoil
        return VICTIM

    return poison


def token(id: Any) -> Callable[[Row, int], Row]:
    """A row with this in place of its token."""
    return lambda row, made: replace(row, tokens=(id,))


def refusing(error: Callable[[int], Exception]) -> Kind:
    """The backend refuses each step that brings the victim."""

    def poison(instance: ServerUnderTest, patch: Patch) -> GenerationRequest:
        instance.poison.refuse = lambda item: error(item.id)  # type: ignore[assignment, return-value]
        return VICTIM

    return poison


def losing(instance: ServerUnderTest, patch: Patch) -> GenerationRequest:
    """Reading any step with the victim in it fails, and names nobody."""
    instance.poison.refuse_rows = OutOfMemory("no room for that")
    return VICTIM


def sampled(**fields: Any) -> Kind:
    """Sampling that no formula can honour, past the router's checks."""
    return lambda instance, patch: replace(VICTIM, request=replace(VICTIM.request, sampling=Sampling(**fields)))


def prompt(*tokens: int) -> Kind:
    """A prompt that the router should have refused."""
    return lambda instance, patch: request((MARK, *tokens), 6)


def raising(patch: Patch, owner: type, name: str, when: Callable[..., bool], error: Exception) -> None:
    """A method of ours that raises for some arguments."""
    original = getattr(owner, name)

    def method(self: Any, *arguments: Any) -> Any:
        if when(self, *arguments):
            raise error
        return original(self, *arguments)

    patch.setattr(owner, name, method)


def detokenizer_at_start(instance: ServerUnderTest, patch: Patch) -> GenerationRequest:
    """The prompt cannot be made into text."""
    raising(patch, Detokenizer, "__init__", lambda self, tokenizer, prompt: MARK in prompt, KeyError("no such token"))
    return VICTIM


def detokenizer_later(instance: ServerUnderTest, patch: Patch) -> GenerationRequest:
    """A token cannot be made into text."""
    seen = []

    def third(self: Transcript, row: Row) -> bool:
        seen.append(self._prompt[0])
        return seen.count(MARK) == 3 and seen[-1] == MARK

    raising(patch, Transcript, "push", third, RuntimeError("odd"))
    return VICTIM


def stop_matcher(instance: ServerUnderTest, patch: Patch) -> GenerationRequest:
    """Looking for a stop string fails."""
    raising(patch, StopMatcher, "push", lambda self, piece: self._stop == ("poison",), RecursionError("deep"))
    return replace(VICTIM, stopping=replace(VICTIM.stopping, stop=("poison",)))


def unknown_exception(instance: ServerUnderTest, patch: Patch) -> GenerationRequest:
    """Something nobody has thought of."""

    class Odd(Exception):
        pass

    raising(patch, StopMatcher, "push", lambda self, piece: self._stop == ("poison",), Odd())
    return replace(VICTIM, stopping=replace(VICTIM.stopping, stop=("poison",)))


def constrained(grammar: Grammar = DIGITS) -> GenerationRequest:
    """The victim with a grammar."""
    return replace(VICTIM, grammar=grammar)


def grammar_raises(instance: ServerUnderTest, patch: Patch) -> GenerationRequest:
    """The mask source breaks."""
    raising(patch, Constraint, "mask", lambda self, tokens: True, MemoryError("masks"))
    return constrained()


def grammar_dies(instance: ServerUnderTest, patch: Patch) -> GenerationRequest:
    """The grammar uses up its fuel after three tokens."""
    raising(patch, Constraint, "mask", lambda self, tokens: len(self._made) >= 3, InvalidGrammar("it is too complex"))
    return constrained()


def grammar_cannot_begin(instance: ServerUnderTest, patch: Patch) -> GenerationRequest:
    """There are no threads to compile it."""
    patch.setattr(instance.masks, "begin", lambda *_: (_ for _ in ()).throw(RuntimeError("cannot start a new thread")))
    return constrained()


def grammar_allows_nothing(instance: ServerUnderTest, patch: Patch) -> GenerationRequest:
    """The mask is empty from the start."""
    return constrained(Grammar(GrammarKind.REGEX, "(?=a)b"))


def grammar_of_wrong_size(instance: ServerUnderTest, patch: Patch) -> GenerationRequest:
    """The mask of the row is all zeros though its grammar is well."""
    fill = instance.masks.fill
    patch.setattr(instance.masks, "fill", lambda rows: bytes(len(fill(rows))))
    return constrained()


KINDS: dict[str, Kind] = {
    "nan": rows(fault(RowFaultKind.NAN)),
    "nan at the third token": rows(later(fault(RowFaultKind.NAN), 2)),
    "nan with its last token": rows(later(fault(RowFaultKind.NAN), 5)),
    "mask error": rows(later(fault(RowFaultKind.MASK), 1)),
    "sampler error": rows(later(fault(RowFaultKind.SAMPLER), 1)),
    "no memory for the row": rows(fault(RowFaultKind.MEMORY)),
    "negative token": rows(token(-1)),
    "token over the vocabulary": rows(later(token(1 << 40), 3)),
    "token that is no number": rows(token("a")),
    "invalid, named": refusing(lambda wire_id: InvalidRequest("bad", request_ids=(wire_id,))),
    "invalid, unnamed": refusing(lambda wire_id: InvalidRequest("one of them is bad")),
    "unsupported": refusing(lambda wire_id: Unsupported("no such thing here", request_ids=(wire_id,))),
    "unsupported, unnamed": refusing(lambda wire_id: Unsupported("no such thing here")),
    "capacity, named": refusing(lambda wire_id: CapacityExceeded("too long", request_ids=(wire_id,))),
    "capacity, unnamed": refusing(lambda wire_id: CapacityExceeded("too much")),
    "no memory for the step": refusing(lambda wire_id: OutOfMemory("full")),
    "no memory in the step": losing,
    "detokenizer at the start": detokenizer_at_start,
    "detokenizer later": detokenizer_later,
    "stop matcher": stop_matcher,
    "unknown exception": unknown_exception,
    "mask source raises": grammar_raises,
    "grammar out of fuel": grammar_dies,
    "grammar cannot begin": grammar_cannot_begin,
    "grammar that is invalid": grammar_allows_nothing,
    "mask that allows nothing": grammar_of_wrong_size,
    "prompt beyond the vocabulary": prompt(1 << 40),
    "negative token in the prompt": prompt(-1),
    "bias on a token that does not exist": sampled(logit_bias=((1 << 20, 1.0),)),
    "temperature zero": sampled(do_sample=True, temperature=0.0),
    "temperature nan": sampled(do_sample=True, temperature=math.nan),
    "top_p zero": sampled(do_sample=True, top_p=0.0),
    "infinite bias": sampled(logit_bias=((5, math.inf),)),
    "huge bias": sampled(do_sample=True, logit_bias=((5, 1.7e308), (6, 1.7e308), (5, 1.7e308))),
    "huge penalty": sampled(frequency_penalty=1.7e308, presence_penalty=1.7e308),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("house_kind", "place"), [("lock step", 0), ("lock step", 31), ("one ahead", 0), ("one ahead", 13), ("engine", 13)]
)
def test_one_fails_and_31_do_not(
    servers: Servers, clean_run: CleanRun, monkeypatch: pytest.MonkeyPatch, house_kind: str, kind: str, place: int
) -> None:
    """Exactly the poisoned request fails, as its own fault; the others have the tokens of a clean run; nothing leaks."""
    expected = clean_run(house_kind)
    instance = servers.open(house_kind)
    victim = KINDS[kind](instance, monkeypatch)
    fail_one(instance, victim, place, expected)


def fail_one(instance: ServerUnderTest, victim: GenerationRequest, place: int, expected: list[list[int]]) -> int:
    """Run the victim as the `place`th of all; its key."""
    others = mates()
    keys = [instance.scheduler.add(mate) for mate in others[:place]]
    bad = instance.scheduler.add(victim)
    keys += [instance.scheduler.add(mate) for mate in others[place:]]
    instance.run()
    assert instance.scheduler.lost is None, instance.scheduler.lost
    failed = {key: event.error for key, event in instance.ended.items() if event.error is not None}
    assert failed.keys() == {bad}, failed
    assert isinstance(failed[bad], RequestFailed)
    assert [instance.tokens[key] for key in keys] == expected
    check_empty(instance)
    return bad


def check_empty(instance: ServerUnderTest) -> None:
    """Nobody holds a block, and nothing is kept of those who were there."""
    snapshot, server = instance.scheduler.snapshot, instance.server
    assert (snapshot.queued, snapshot.running, snapshot.blocks_free) == (0, 0, snapshot.blocks_total)
    assert not (server.transcripts or server.batches or server.steps or instance.masks.live)


def logits(value: float, first: int = 0) -> Kind:
    """The model itself computes this for the victim, from its token number `first` on."""

    def poison(instance: ServerUnderTest, patch: Patch) -> GenerationRequest:
        runner = instance.implementation.runner
        run = type(runner).run

        def spoiled(self: Any, row_inputs: Any) -> Any:
            made = run(self, row_inputs)
            yielding = [row_input.row for row_input in row_inputs if row_input.yields]
            for place, row in enumerate(yielding):
                if row.tokens[0] == MARK and len(row.tokens) >= row.request.prompt_len + first:
                    with torch.inference_mode():
                        made.last[place, slice(None) if value == -math.inf else slice(3, 7)] = value
            return made

        patch.setattr(type(runner), "run", spoiled)
        return VICTIM

    return poison


def nan_states(instance: ServerUnderTest, patch: Patch) -> GenerationRequest:
    """The victim's first token has an embedding that is not finite, so that all of its cache is not."""
    runner = instance.implementation.runner
    if hasattr(runner, "packed"):  # it runs from its table
        runner.spoiled = runner.packed.embedding.clone()
        runner.spoiled[MARK] = math.nan
        patch.setattr(runner.packed.model, "embedding", runner.spoiled.data_ptr())
        return VICTIM
    embed = torch.nn.Embedding.forward

    def spoiled(self: torch.nn.Embedding, ids: torch.Tensor) -> torch.Tensor:
        return embed(self, ids).masked_fill((ids == MARK).unsqueeze(-1), math.nan)

    patch.setattr(torch.nn.Embedding, "forward", spoiled)
    return VICTIM


def engine_sampler(instance: ServerUnderTest, patch: Patch) -> GenerationRequest:
    """Choosing the victim's token fails."""
    import tgi_core.engine.sampler as module

    warp = module.warp

    def raising_warp(scores: Any, samplings: Any) -> Any:
        if any(item.temperature == 7.5 for item in samplings):
            raise RuntimeError("no such kernel")
        return warp(scores, samplings)

    patch.setattr(module, "warp", raising_warp)
    return replace(VICTIM, request=replace(VICTIM.request, sampling=Sampling(do_sample=True, temperature=7.5, top_k=40, seed=3)))


def reference_sampler(instance: ServerUnderTest, patch: Patch) -> GenerationRequest:
    """The same in the reference backend."""
    import tgi_core.backend.sampling as module

    warp = module.warp

    def raising_warp(logits: Any, sampling: Sampling) -> Any:
        return warp(logits, sampling) if sampling.temperature != 7.5 else 1 / 0

    patch.setattr(module, "warp", raising_warp)
    return replace(VICTIM, request=replace(VICTIM.request, sampling=Sampling(do_sample=True, temperature=7.5, seed=3)))


IN_THE_DEVICE: dict[str, tuple[str, Kind]] = {
    "nan logits": ("engine", logits(math.nan)),
    "nan logits at the third token": ("engine", logits(math.nan, 2)),
    "nan logits with its last token": ("engine", logits(math.nan, 5)),
    "nan states, so nan logits": ("engine", nan_states),
    "infinite logits": ("engine", logits(math.inf)),
    "no finite logits": ("engine", logits(-math.inf)),
    "sampler": ("engine", engine_sampler),
    "bias that adds up to infinity": ("engine", sampled(logit_bias=((5, 3e38), (5, 3e38)))),
    "sampled with such a bias": ("engine", sampled(do_sample=True, logit_bias=((5, 3e38), (5, 3e38)))),
    "sampler, lock step": ("lock step", reference_sampler),
    "sampler, one ahead": ("one ahead", reference_sampler),
}


@pytest.mark.parametrize("kind", IN_THE_DEVICE)
def test_one_fails_where_tokens_are_made(
    servers: Servers, clean_run: CleanRun, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """What goes wrong in the model or in the sampler for one row is found there, and ends that row alone."""
    house_kind, poison = IN_THE_DEVICE[kind]
    expected = clean_run(house_kind)
    instance = servers.open(house_kind)
    bad = fail_one(instance, poison(instance, monkeypatch), 13, expected)
    error = instance.ended[bad].error
    assert isinstance(error, RequestFailed)
    monkeypatch.undo()
    again = servers.open(house_kind)
    keys = [again.scheduler.add(mate) for mate in mates()]
    again.run()
    assert [again.tokens[key] for key in keys] == expected, "what it has left in the cache is nobody's"
    assert error.kind is (RowFaultKind.NAN if "logits" in kind else RowFaultKind.SAMPLER)


@pytest.mark.parametrize("house_kind", ["lock step", "one ahead"])
@pytest.mark.parametrize("kind", ["nan at the third token", "invalid, unnamed", "no memory in the step", "detokenizer later"])
def test_in_a_cache_so_small_that_rows_are_preempted(
    servers: Servers, clean_run: CleanRun, monkeypatch: pytest.MonkeyPatch, house_kind: str, kind: str
) -> None:
    """The same while rows are preempted and continued, the poisoned one among them."""
    expected = clean_run(house_kind)
    instance = servers.open(house_kind, TIGHT)
    fail_one(instance, KINDS[kind](instance, monkeypatch), 13, expected)


@pytest.mark.parametrize("house_kind", ["lock step", "one ahead", "engine"])
@pytest.mark.parametrize("error", [InvalidRequest("bad"), CapacityExceeded("too long"), OutOfMemory("full")])
def test_refused_when_it_is_to_be_continued(servers: Servers, clean_run: CleanRun, house_kind: str, error: Exception) -> None:
    """The victim has got tokens, its step is lost with all others in it, and it cannot come back."""
    expected = clean_run(house_kind)
    instance = servers.open(house_kind)
    instance.poison.lose_once_at = 3
    instance.poison.refuse = lambda item: error if len(item.tokens) > item.prompt_len else None  # type: ignore[assignment, return-value]
    bad = fail_one(instance, VICTIM, 13, expected)
    assert len(instance.tokens[bad]) == 3 and instance.poison.refusals


@pytest.mark.parametrize("house_kind", ["lock step", "one ahead", "engine"])
def test_a_prompt_too_long_that_slipped_past(servers: Servers, clean_run: CleanRun, house_kind: str) -> None:
    """The backend refuses a row longer than it has promised; the scheduler that believed otherwise loses nobody else."""
    expected = clean_run(house_kind)
    instance = servers.open(house_kind, max_row_tokens=200)
    fail_one(instance, request((MARK, *range(100)), 6), 13, expected)


@pytest.mark.parametrize("house_kind", ["lock step", "one ahead", "engine"])
@pytest.mark.parametrize("kind", ["nan at the third token", "invalid, named", "no memory in the step", "stop matcher"])
@pytest.mark.parametrize("others", [31, 1])
def test_a_client_that_leaves_in_the_same_step(
    servers: Servers, clean_run: CleanRun, monkeypatch: pytest.MonkeyPatch, house_kind: str, kind: str, others: int
) -> None:
    """The victim's client goes while the answer that says it has failed is under way, in any of its turns: the others are untouched."""
    expected = clean_run(house_kind)
    for turns in range(4):
        instance = servers.open(house_kind)
        with monkeypatch.context() as patch:
            bad = instance.scheduler.add(KINDS[kind](instance, patch))
            keys = [instance.scheduler.add(mate) for mate in mates()[:others]]
            for _ in range(turns):
                instance.turn()
            result = instance.exchange(instance.scheduler.plan())
            instance.scheduler.cancel(bad)
            instance.take(instance.scheduler.complete(result))
            instance.run()
        assert {key for key, event in instance.ended.items() if event.error is not None} <= {bad}
        assert [instance.tokens[key] for key in keys] == expected[:others]
        check_empty(instance)
