"""The model server: turns in, text out; one request's trouble is its own."""

from __future__ import annotations

import pytest

from tests.scheduler.device import device, request
from tgi_core.backend import BackendBug, InvalidRequest, Row, RowFault, RowFaultKind, Rows, Sampling, Scope, Step
from tgi_core.backend.session import Session
from tgi_core.scheduler import GenerationRequest
from tgi_core.tokenizer import Tokenizer
from tgi_core.wire.types import Clear, Decode, FinishReason, Stopping, Turn


def test_tokens_add_up_to_the_generated_text(demo_tokenizer: Tokenizer) -> None:
    """The streamed pieces of a request, special tokens left out, are its generated text."""
    one = device(demo_tokenizer)
    prompt = demo_tokenizer.encode("Once upon a time").ids
    one.scheduler.add(GenerationRequest.of(prompt, Sampling(), Stopping(40, ignore_eos=True)))
    pieces, finished = [], None
    while finished is None:
        for event in one.scheduler.complete(one.server.exchange(one.scheduler.plan())):
            assert event.generation is not None
            pieces += [token.text for token in event.generation.tokens if not token.special]
            finished = event.generation.finished
    assert "".join(pieces) == finished.text
    assert (finished.finish_reason, finished.generated_tokens) == (FinishReason.LENGTH, 40)


def test_an_unknown_batch_is_refused(demo_tokenizer: Tokenizer) -> None:
    """A verb for a batch that the shard does not have is refused with the scope of a request."""
    result = device(demo_tokenizer).server.exchange(Turn(launch=Decode(1, (77,))))
    assert result.refused is not None and result.refused.kind == "UnknownBatch"


@pytest.mark.parametrize(("named", "scope"), [((), Scope.SESSION), ((1,), Scope.REQUEST)])
def test_a_step_that_the_backend_does_not_know(
    demo_tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch, named: tuple[int, ...], scope: Scope
) -> None:
    """An InvalidRequest of rows: one that names a request is that request's, one that names none is about the step, which the backend
    should know: nothing of it can be trusted."""
    one = device(demo_tokenizer)
    one.scheduler.add(request((1, 2), 6))

    def rows(step: Step) -> Rows:
        raise InvalidRequest(f"step {step.id} was read before, or never launched", request_ids=named)

    monkeypatch.setattr(one.server.session, "rows", rows)
    result = one.server.exchange(one.scheduler.plan())
    while result.result is None:
        result = one.server.exchange(one.scheduler.plan())
    assert result.result.fault is not None and result.result.fault.scope is scope
    assert result.result.fault.lost is (scope is Scope.SESSION)


def test_clear_everything(demo_tokenizer: Tokenizer) -> None:
    """After Clear(None) the shard has no batches."""
    one = device(demo_tokenizer)
    one.scheduler.add(request((1, 2), 9))
    turn = one.turn()
    assert turn.launch is not None
    one.server.exchange(Turn((Clear(None),)))
    refused = one.server.exchange(Turn(launch=Decode(99, (turn.launch.step,)))).refused
    assert refused is not None


@pytest.mark.parametrize(
    "broken", [{"tokens": (-1,)}, {"tokens": (10**6,)}, {"fault": RowFault(RowFaultKind.NAN, "logits are not numbers")}]
)
def test_one_bad_row_ends_one_request(
    demo_tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch, broken: dict[str, object]
) -> None:
    """A row with a fault, or with a token that does not exist, fails its request; its mate goes on unchanged."""
    one = device(demo_tokenizer)
    good, bad = one.scheduler.add(request((1, 2), 6)), one.scheduler.add(request((3, 4), 6))
    run = one.session._run

    def sometimes(work: object) -> Row:
        row = run(work)  # type: ignore[arg-type]
        return Row(2, **broken) if row.request_id == 2 and len(one.tokens.get(bad, [])) == 2 else row  # type: ignore[arg-type]

    monkeypatch.setattr(one.session, "_run", sometimes)
    one.run()
    assert one.ended[bad].error is not None and len(one.tokens[bad]) == 2
    assert len(one.tokens[good]) == 6 and one.ended[good].error is None
    assert one.scheduler.snapshot.blocks_free == one.scheduler.snapshot.blocks_total


def test_a_session_without_hooks_is_named() -> None:
    """An object that implements no hook is a bug of its backend, and the message says which hooks are missing."""
    with pytest.raises(BackendBug, match="backend empty: its session implements no capabilities, warmup"):
        Session(object(), "empty")


def test_a_foreign_exception_becomes_a_fault(demo_tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a backend raises outside the tree is BackendBug: the shard is lost with that reason, the process lives."""
    one = device(demo_tokenizer)
    one.scheduler.add(request((1, 2), 6))
    monkeypatch.setattr(one.session, "_compute", lambda launch: 1 / 0)
    one.run()
    assert one.scheduler.lost is not None and "rows raised ZeroDivisionError" in str(one.scheduler.lost)
