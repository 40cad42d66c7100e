"""Shards that lie, as clients of a router see it: each answer is checked against its turn, and one that is none is a lost shard."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.serve.process import TGI, ServerProcess, served, started
from tests.shards.lying import GARBAGE, Ends, Hang, Liar, Lie, Tell, lying, rows
from tests.shards.lying_child import FOLDER, LIES
from tgi_core.model_files import DEMO
from tgi_core.proto import contract_pb2 as contract
from tgi_core.proto.generate.v3 import generate_pb2 as pb
from tgi_core.tokenizer import Tokenizer

SECONDS = 60
PATIENCE = ("--watchdog-floor", "3")


def parameters(**more: Any) -> dict[str, Any]:
    """A request that goes on for a while."""
    return {"max_new_tokens": 24, "details": True, "return_full_text": False, **more}


BODIES = [
    {"inputs": "What is 7 plus 5?", "parameters": parameters(max_new_tokens=32)},
    {"inputs": "Once upon a time", "parameters": parameters(do_sample=True, seed=3, temperature=1.25)},
    {"inputs": "The sea", "parameters": parameters(repetition_penalty=1.25)},
]


def bare(response: httpx.Response) -> Any:
    """What an answer says, but for what a restart may tell apart: nothing."""
    assert response.status_code == 200, response.text
    answer = response.json()
    return answer["generated_text"], answer["details"]["tokens"]


@dataclass
class House:
    """A router before a liar."""

    liar: Liar
    server: ServerProcess
    path: Path

    def post(self, body: dict[str, Any]) -> httpx.Response:
        """One request."""
        return httpx.post(f"{self.server.url}/generate", json=body, timeout=SECONDS)

    def all(self) -> list[httpx.Response]:
        """All requests at once: the shard makes no step until the router has them all."""
        with ThreadPoolExecutor(len(BODIES)) as threads:
            with self.liar.held():
                answers = [threads.submit(self.post, body) for body in BODIES]
                end = time.monotonic() + SECONDS
                while self.waiting() != len(BODIES):
                    assert time.monotonic() < end
            return [answer.result() for answer in answers]

    def waiting(self) -> int:
        """Requests that wait or run."""
        told = httpx.get(f"{self.server.url}/metrics", timeout=SECONDS).text
        return sum(int(count) for count in re.findall(r"^tgi_(?:queue_size|batch_current_size) (\d+)", told, re.M))

    def wait_healthy(self) -> None:
        """Until requests are served; AssertionError if they never are."""
        end = time.monotonic() + SECONDS
        while httpx.get(f"{self.server.url}/health", timeout=SECONDS).status_code != 200:
            assert time.monotonic() < end

    def losses(self) -> list[str]:
        """The reasons in the log."""
        return re.findall(r"the shard is lost: (.*)", "".join(self.server.lines))


@contextmanager
def house(tokenizer: Tokenizer, folder: Path, foreign: bool, *flags: str, **options: Any) -> Generator[House, None, None]:
    """A router in front of a shard that lies when it is told to."""
    folder.chmod(0o700)
    path = folder / "shard"
    limits = ("--max-total-tokens", "64", "--max-batch-prefill-tokens", "64") if foreign else ()
    command = [*TGI, "router", "--shard", f"unix:{path}", str(DEMO), "--hostname", "127.0.0.1", "--port", "0", *PATIENCE, *limits]
    with lying(tokenizer, path, foreign, **options) as liar, started([*command, "--drain-delay", "0", *flags]) as server:
        yield House(liar, server, path)


@pytest.fixture(scope="module")
def own(demo_tokenizer: Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> Generator[tuple[House, list[Any]], None, None]:
    """A shard of ours, and the answers of one that is true. It ends in good time when it is told to."""
    with house(demo_tokenizer, tmp_path_factory.mktemp("own"), False) as one:
        yield one, list(map(bare, one.all()))
        assert one.server.stop() == 0


@pytest.fixture(scope="module")
def foreign(
    demo_tokenizer: Tokenizer, tmp_path_factory: pytest.TempPathFactory
) -> Generator[tuple[House, list[Any]], None, None]:
    """A shard as TGI's are, likewise."""
    with house(demo_tokenizer, tmp_path_factory.mktemp("foreign"), True) as one:
        yield one, list(map(bare, one.all()))
        assert one.server.stop() == 0


def survives(one: House, wanted: list[Any], lie: Lie, excuse: str = "$.") -> None:
    """The lie is told once: the router says what it was, leaves the shard and comes back to it, and every answer is the one of a shard
    that is true; or an error with that excuse, where the shard cannot go on with it."""
    before = len(one.losses())
    one.liar.arm(lie)
    answers = one.all()
    assert one.liar.told == 1
    [reason] = one.losses()[before:]
    assert re.search(lie.says, reason), reason
    for answer, right in zip(answers, wanted, strict=True):
        assert re.search(excuse, answer.text) or bare(answer) == right
    one.wait_healthy()
    assert one.server.child.poll() is None
    assert bare(one.post(BODIES[0])) == wanted[0]


# our own API


def own_lie(name: str, says: str, tell: Tell) -> Lie:
    """A lie on the stream of steps."""
    return Lie(name, "Steps", tell, says)


def put(**fields: Any) -> Callable[[contract.StepResult], None]:
    """Put fields of a step in place of the true ones."""

    def change(step: contract.StepResult) -> None:
        for name, value in fields.items():
            if isinstance(value, list):
                step.ClearField(name)  # type: ignore[arg-type]
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


@pytest.mark.parametrize("lie", OWN, ids=str)
def test_a_lie_of_our_own_shard(own: tuple[House, list[Any]], lie: Lie) -> None:
    """See `survives`."""
    survives(*own, lie)


# a shard as TGI's are


def v3(name: str, says: str, tell: Tell, method: str = "Decode") -> Lie:
    """A lie in the answer to a call."""
    return Lie(name, method, tell, says)


def of_rows(least: int, change: Callable[[Any], Any]) -> Tell:
    """A lie about the rows of a step, told once it has so many of them and none ends."""

    def tell(request: Any, truth: Any) -> Any:
        made = truth.generations
        if len(made) < least or any(item.HasField("generated_text") for item in made):
            return None
        told = change(truth)
        return truth if told is None else told

    return tell


def on_first(change: Callable[[Any], Any]) -> Tell:
    """A lie about the first row."""

    def tell(truth: Any) -> None:
        change(truth.generations[0])

    return of_rows(1, tell)


def ending(change: Callable[[Any], Any]) -> Tell:
    """A lie about the end of a row."""

    def tell(request: Any, truth: Any) -> Any:
        for item in truth.generations:
            if item.HasField("generated_text"):
                change(item)
                return truth
        return None

    return tell


def changed(message: str, value: Any) -> Callable[[Any], None]:
    """Set a field by its path."""

    def change(item: Any) -> None:
        *path, field = message.split(".")
        for step in path:
            item = getattr(item, step)
        setattr(item, field, value)

    return change


def v3_not_utf8(truth: Any) -> bytes:
    """Text that is no text."""
    truth.generations[0].tokens.texts[0] = "XXXX"
    sent: bytes = truth.SerializeToString().replace(b"XXXX", b"\xff\xfe\xff\xfe")
    return sent


def v3_twice(truth: Any) -> None:
    """The first row a second time."""
    truth.generations.append(truth.generations[0])


def v3_two_tokens(item: Any) -> None:
    """A token more than a shard without drafts makes."""
    for column in (item.tokens.ids, item.tokens.texts, item.tokens.logprobs, item.tokens.is_special):
        column.append(column[0])


def told_once(change: Callable[[Any], Any]) -> Tell:
    """A lie about whatever the answer is."""

    def tell(request: Any, truth: Any) -> Any:
        told = change(truth)
        return truth if told is None else told

    return tell


FOREIGN = [
    v3("garbage", NONSENSE + "4 bytes that are no DecodeResponse", told_once(lambda truth: GARBAGE)),
    v3("garbage for a prompt", NONSENSE + "4 bytes that are no PrefillResponse", told_once(lambda truth: GARBAGE), "Prefill"),
    v3("text that is not UTF-8", NONSENSE + r"\d+ bytes that are no DecodeResponse", of_rows(1, v3_not_utf8)),
    v3("nothing", NONSENSE + "it lacks the row of request", told_once(lambda truth: pb.DecodeResponse())),
    v3("no batch", NONSENSE + "no batch, though request", of_rows(1, lambda truth: truth.ClearField("batch"))),
    v3("a batch of others", NONSENSE + r"a batch of the requests \[9999\]",
       of_rows(1, lambda truth: truth.batch.request_ids.__setitem__(slice(None), [9999]))),
    v3("a row is missing", NONSENSE + "it lacks the row of request", of_rows(1, lambda truth: truth.generations.pop() and None)),
    v3("a row twice", NONSENSE + "rows that come twice", of_rows(1, v3_twice)),
    v3("a row of nobody", NONSENSE + "a row of request 9999", on_first(changed("request_id", 9999))),
    v3("more tokens than it can draft", NONSENSE + "2 tokens for request", on_first(v3_two_tokens)),
    v3("a row without tokens", NONSENSE + "0 tokens for request", on_first(lambda item: item.tokens.Clear())),
    v3("columns that differ", NONSENSE, on_first(lambda item: item.tokens.texts.append("more"))),
    v3("candidates that differ", NONSENSE, on_first(lambda item: item.top_tokens.add(ids=[1]))),
    v3("a prompt that differs", NONSENSE, on_first(lambda item: item.prefill_tokens.ids.append(1))),
    v3("a token of no vocabulary", NONSENSE + "token 4294967295", on_first(lambda item: item.tokens.ids.__setitem__(0, 4294967295))),
    v3("an infinite logprob", NONSENSE + "a logprob", on_first(lambda item: item.tokens.logprobs.__setitem__(0, 1e308))),
    v3("an end for no reason", NONSENSE + r"request \d+ ends for a reason of number 99",
       ending(changed("generated_text.finish_reason", 99))),
    v3("an end of too many tokens", NONSENSE + r"request \d+ ends with 999 tokens",
       ending(changed("generated_text.generated_tokens", 999))),
    v3("no end", NONSENSE, ending(lambda item: item.ClearField("generated_text"))),
    v3("garbage for a filter", NONSENSE + "4 bytes that are no FilterBatchResponse", told_once(lambda truth: GARBAGE), "FilterBatch"),
    v3("a filter that keeps others", NONSENSE + r"a batch of the requests \[9999\]",
       told_once(lambda truth: truth.batch.request_ids.__setitem__(slice(None), [9999])), "FilterBatch"),
    v3("it hangs", "the shard hangs", told_once(lambda truth: Hang)),
]  # fmt: skip


@pytest.mark.parametrize("lie", FOREIGN, ids=str)
def test_a_lie_of_a_foreign_shard(foreign: tuple[House, list[Any]], lie: Lie) -> None:
    """See `survives`. A request can go on there only if what it has made so far is a text that makes the same tokens again."""
    survives(*foreign, lie, "the prompt has no text that this shard would read as the same tokens")


# for ever

FOR_EVER = [
    (False, own_lie("nothing", NONSENSE + "it lacks the rows of step", at_read(lambda turn, truth: pb.TurnResult()))),
    (False, own_lie("garbage", NONSENSE + "4 bytes that are no TurnResult", at_read(lambda turn, truth: GARBAGE))),
    (True, v3("no batch", NONSENSE + "no batch, though request", of_rows(1, lambda truth: truth.ClearField("batch")), "Prefill")),
    (True, v3("it hangs", "the shard hangs", told_once(lambda truth: Hang), "Prefill")),
]


@pytest.mark.parametrize(
    ("is_foreign", "lie"), FOR_EVER, ids=[f"{'foreign' if foreign else 'own'}, {lie}" for foreign, lie in FOR_EVER]
)
def test_a_shard_that_lies_for_ever(demo_tokenizer: Tokenizer, tmp_path: Path, is_foreign: bool, lie: Lie) -> None:
    """It is tried again, in vain: the client gets the reason, and the router ends with a status that is not 0 and one line that says
    why."""
    with house(demo_tokenizer, tmp_path, is_foreign, "--shard-restarts", "1") as one:
        one.liar.arm(lie, forever=True)
        answer = one.post(BODIES[0])
        assert answer.status_code == 424 and re.search(lie.says, answer.json()["error"]), answer.text
        assert one.server.child.wait(SECONDS) == 1
    assert re.search(f"tgi: error: the shard is lost: .*{lie.says}", one.server.lines[-1]), one.server.lines[-1]
    assert "Traceback" not in "".join(one.server.lines)


@pytest.mark.parametrize("is_foreign", [False, True], ids=["own", "foreign"])
def test_sigterm_while_a_shard_hangs(demo_tokenizer: Tokenizer, tmp_path: Path, is_foreign: bool) -> None:
    """A router whose shard does not answer ends when it is told to, with status 0, and its client hears why."""
    hang = Lie("it hangs", "Decode" if is_foreign else "Steps", at_read(lambda turn, truth: Hang) if not is_foreign else
               told_once(lambda truth: Hang), "")  # fmt: skip
    flags = ("--watchdog-floor", "600", "--graceful-termination-timeout", "2")
    with house(demo_tokenizer, tmp_path, is_foreign, *flags) as one, ThreadPoolExecutor(1) as threads:
        one.liar.arm(hang, forever=True)
        asked = threads.submit(one.post, BODIES[0])
        while not one.liar.told:
            assert not asked.done()
        assert one.server.stop() == 0
        assert asked.result().status_code in (424, 503), asked.result().text


# a child of the server's own


def test_lies_of_a_child(tmp_path: Path) -> None:
    """Where the server has started the shard itself, each lie costs that shard its life, and the requests that run go on with the next:
    every answer is the one of a server whose shards are true."""
    lies, site = tmp_path / "lies", tmp_path / "site"
    for folder in (lies, site):
        folder.mkdir()
    (site / "sitecustomize.py").write_text("from tests.shards.lying_child import install\n\ninstall()\n")
    for place, name in enumerate(LIES):
        (lies / f"{place} {name}").touch()
    extra = {"PYTHONPATH": f"{site}:{Path(__file__).parents[2]}", FOLDER: str(lies)}
    with served("--backend", "reference") as server:
        wanted = [bare(House(Liar(), server, tmp_path).post(body)) for body in BODIES]
    with served("--backend", "reference", extra=extra) as server:
        one = House(Liar(), server, tmp_path)
        while list(lies.iterdir()):
            assert [bare(one.post(body)) for body in BODIES] == wanted
        one.wait_healthy()
        assert [bare(one.post(body)) for body in BODIES] == wanted
        assert server.stop() == 0
    for (_, says), reason in zip(LIES.values(), one.losses(), strict=True):
        assert re.search(says, reason), reason
