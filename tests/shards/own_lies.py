"""Lies on the stream of steps of a shard of ours."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.shards.lying import GARBAGE, Ends, Hang, Lie, Tell, rows
from tgi_core.proto import contract_pb2 as contract
from tgi_core.proto.generate.v3 import generate_pb2 as pb


def own_lie(name: str, says: str, tell: Tell) -> Lie:
    """A lie on the stream of steps."""
    return Lie(name, "Steps", tell, says)


def put(**fields: Any) -> Callable[[contract.StepResult], None]:
    """Put fields of a step in place of the true ones."""

    def change(step: contract.StepResult) -> None:
        for name, value in fields.items():
            if isinstance(value, list):
                step.ClearField(name)
                getattr(step, name).extend(value)
            else:
                setattr(step, name, value)

    return change


def first_of(column: str, value: Any) -> Tell:
    """A wrong first value in a column of a step."""

    def change(step: contract.StepResult) -> None:
        getattr(step, column)[0] = value

    return rows(1, change)


def answering(step: contract.StepResult) -> pb.TurnResult:
    """The message around a step."""
    return pb.TurnResult(result=step)


def not_utf8(step: contract.StepResult) -> bytes:
    """Text that is no text."""
    step.texts[0] = "XXXX"
    return answering(step).SerializeToString().replace(b"XXXX", b"\xff\xfe\xff\xfe")


def lacking(step: contract.StepResult) -> None:
    """Without the last row."""
    for column in (step.request_ids, step.ids, step.texts, step.logprobs):
        del column[-1]


def twice(step: contract.StepResult) -> None:
    """The first row a second time."""
    for column in (step.request_ids, step.ids, step.texts, step.logprobs):
        column.append(column[0])


def more(step: contract.StepResult) -> None:
    """Three tokens for the first row."""
    for column in (step.ids, step.texts, step.logprobs):
        column.extend([column[0]] * 2)
    step.token_counts.extend([3] + [1] * (len(step.request_ids) - 1))


def swapped(step: contract.StepResult) -> None:
    """Each row under the name of another."""
    step.request_ids[:] = list(step.request_ids)[::-1]


def at_read(change: Callable[[pb.Turn, pb.TurnResult], Any]) -> Tell:
    """A lie in place of the rows of a step."""
    return lambda turn, truth: change(turn, truth) if truth.HasField("result") else None


def refusing(**fields: Any) -> Tell:
    """A launch is refused, for the reason of that fault."""

    def tell(turn: pb.Turn, truth: pb.TurnResult) -> Any:
        if turn.WhichOneof("launch") != "decode":
            return None
        return pb.TurnResult(refused=contract.Fault(kind="OutOfMemory", message="so there", **fields), result=truth.result)

    return tell


def place(column: str, made: Any) -> Tell:
    """Something said of a row that is not there."""

    def change(step: contract.StepResult) -> None:
        getattr(step, column).append(made)

    return rows(1, change)


NONSENSE = "makes no sense: "

OWN = [
    own_lie("garbage", NONSENSE + "4 bytes that are no TurnResult", at_read(lambda turn, truth: GARBAGE)),
    own_lie("text that is not UTF-8", NONSENSE + r"\d+ bytes that are no TurnResult", rows(1, not_utf8)),
    own_lie("nothing", NONSENSE + "it lacks the rows of step", at_read(lambda turn, truth: pb.TurnResult())),
    own_lie("an answer twice", NONSENSE + "rows of step", at_read(lambda turn, truth: [truth, truth])),
    own_lie("another step", NONSENSE + r"rows of step 9999 in place of step", rows(1, put(step=9999))),
    own_lie("a row is missing", NONSENSE + "it lacks the row of request", rows(2, lacking)),
    own_lie("a row twice", NONSENSE + "rows that come twice", rows(1, twice)),
    own_lie("rows swapped", NONSENSE + "rows that come twice, or not in the order of the batch", rows(2, swapped)),
    own_lie("a row of nobody", NONSENSE + "it lacks the row|a row of request 9999", first_of("request_ids", 9999)),
    own_lie("more tokens than asked", NONSENSE + "3 tokens for request", rows(1, more)),
    own_lie("a row without tokens", NONSENSE, rows(2, put(token_counts=[0, 2]))),
    own_lie("counts of nothing", NONSENSE, rows(1, put(token_counts=[1] * 99))),
    own_lie("a token of no vocabulary", NONSENSE + "token 4294967295 of a vocabulary", first_of("ids", 4294967295)),
    own_lie("a logprob that is none", NONSENSE + "a logprob", first_of("logprobs", 1e308)),
    own_lie("an infinite logprob", NONSENSE + "a logprob", first_of("logprobs", float("inf"))),
    own_lie("columns that differ", NONSENSE, rows(1, lambda step: step.texts.append("more"))),
    own_lie("an end of nobody", NONSENSE + "a place", place("finished", contract.Finished(generation=99, reason="length"))),
    own_lie("an end for no reason", NONSENSE, place("finished", contract.Finished(reason="whim"))),
    own_lie("an end of too many tokens", NONSENSE + r"request \d+ ends with 999 tokens",
            place("finished", contract.Finished(reason="eos_token", generated_tokens=999))),
    own_lie("no end", NONSENSE + r"request \d+ has all of its tokens and no end",
            lambda turn, truth: without_end(truth)),
    own_lie("a fault of nobody", NONSENSE + "a place", place("faults", contract.RowFault(generation=99, kind="nan"))),
    own_lie("a fault of no kind", NONSENSE, place("faults", contract.RowFault(kind="whim"))),
    own_lie("candidates of nobody", NONSENSE + "a place", place("candidates", contract.Candidates(token=99))),
    own_lie("a special token that is not there", NONSENSE + "special token 99", rows(1, put(special=[99]))),
    own_lie("a step's fault of nobody", NONSENSE + "a fault of request 9999",
            rows(1, lambda step: step.fault.CopyFrom(contract.Fault(scope="batch", request_ids=[9999])))),
    own_lie("a refusal of somebody else", NONSENSE + "a fault of request 9999", refusing(scope="request", request_ids=[9999])),
    own_lie("a refusal of nothing", NONSENSE + "it refuses a turn that asks for nothing",
            lambda turn, truth: refusal() if turn.WhichOneof("launch") is None and not turn.bookkeeping else None),
    own_lie("a refusal of everything", "so there", refusing(scope="session")),
    own_lie("a refusal of another kind", "so there", refusing(scope="galaxy")),
    own_lie("rows that nobody wants", NONSENSE + r"rows of step \d+",
            lambda turn, truth: answering(contract.StepResult(step=1)) if not turn.HasField("read") else None),
    own_lie("the stream ends", "ended the stream", at_read(lambda turn, truth: [Ends])),
    own_lie("it hangs", "the shard hangs", at_read(lambda turn, truth: Hang)),
]  # fmt: skip


def refusal() -> pb.TurnResult:
    """Of nobody, for nothing."""
    return pb.TurnResult(refused=contract.Fault(scope="request", kind="InvalidRequest", message="no"))


def without_end(truth: pb.TurnResult) -> pb.TurnResult | None:
    """A row's last token, and not that it is the last."""
    if not truth.result.finished:
        return None
    truth.result.ClearField("finished")
    return truth
