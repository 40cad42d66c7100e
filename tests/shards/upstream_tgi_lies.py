"""Lies in the answers of a shard that speaks TGI's API alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.shards.lying import GARBAGE, Hang, Lie, Tell
from tests.shards.own_lies import NONSENSE
from tgi_core.proto.generate.v3 import generate_pb2 as pb


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


UPSTREAM_TGI = [
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
