"""The verbs of a run as values, so that a sequence can be judged, shortened, written to a file and run again.

The suite chooses the ids of requests and blocks, so calls carry them directly. Handles and steps come from the backend; a call
names them by `Ref`, the number of the call that returned them. 0 is the empty batch, and a negative number a handle that was never
issued.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any, TypeAlias
from zlib import crc32

from tgi_core.backend import Grant, OutputOptions, Request, Sampling

Ref: TypeAlias = int

NOTHING: Ref = 0
STRANGER: Ref = -1


@dataclass(frozen=True, slots=True)
class Prefill:
    """Start new requests, together with a live batch or alone."""

    batch: tuple[Request, ...]
    cached: Ref = NOTHING
    grants: tuple[Grant, ...] = ()


@dataclass(frozen=True, slots=True)
class Decode:
    """Run one step of the batches."""

    batches: tuple[Ref, ...]
    grants: tuple[Grant, ...] = ()


@dataclass(frozen=True, slots=True)
class Read:
    """Wait for the step that call `step` launched."""

    step: Ref


@dataclass(frozen=True, slots=True)
class Filter:
    """Keep the named rows of a batch."""

    batch: Ref
    keep: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Clear:
    """Drop a batch, or all batches (None)."""

    batch: Ref | None


@dataclass(frozen=True, slots=True)
class Encode:
    """Encode an image ahead of its request: not a verb, and nothing depends on it."""

    item: bytes


Call: TypeAlias = Prefill | Decode | Read | Filter | Clear | Encode
Trace: TypeAlias = list[tuple[Ref, Call]]
"""Calls with their numbers; a shortened trace has gaps."""

_KINDS: dict[str, type[Call]] = {
    "prefill": Prefill,
    "decode": Decode,
    "rows": Read,
    "filter": Filter,
    "clear": Clear,
    "encode": Encode,
}
_NAMES = {kind: name for name, kind in _KINDS.items()}


def verb(call: Call) -> str:
    """Return the name of the session hook that a call invokes."""
    return _NAMES[type(call)]


def references(call: Call) -> tuple[Ref, ...]:
    """Return the earlier calls whose results this one takes."""
    match call:
        case Prefill():
            named: tuple[Ref | None, ...] = (call.cached,)
        case Decode():
            named = call.batches
        case Read():
            named = (call.step,)
        case Encode():
            named = ()
        case _:
            named = (call.batch,)
    return tuple(ref for ref in named if ref is not None and ref > 0)


def moved(call: Call, now: Callable[[Ref], Ref]) -> Call:
    """Return the call with its references mapped through `now`."""
    match call:
        case Prefill():
            return replace(call, cached=now(call.cached))
        case Decode():
            return replace(call, batches=tuple(map(now, call.batches)))
        case Read():
            return replace(call, step=now(call.step))
        case Filter():
            return replace(call, batch=now(call.batch))
        case Clear():
            return call if call.batch is None else replace(call, batch=now(call.batch))
        case Encode():
            return call


def renumbered(trace: Trace) -> Trace:
    """Return the same calls, numbered without gaps."""
    numbers = {old: new for new, (old, _) in enumerate(trace, 1)}
    return [(numbers[old], moved(call, lambda ref: numbers.get(ref, ref))) for old, call in trace]


def encode(number: Ref, call: Call) -> dict[str, Any]:
    """Return a call as a JSON object."""
    fields = asdict(call)
    if isinstance(call, Prefill):
        for request in fields["batch"]:
            request["media"] = [b64encode(item).decode() for item in request["media"]]
    if isinstance(call, Encode):
        fields["item"] = b64encode(call.item).decode()
    return {"call": number, "verb": verb(call)} | fields


def decode(value: dict[str, Any]) -> tuple[Ref, Call]:
    """Decode what `encode` returned. Raises KeyError, TypeError, ValueError for anything else."""
    kind = _KINDS[value["verb"]]
    fields = {name: item for name, item in value.items() if name not in ("call", "verb", "outcome")}
    if "batch" in fields and kind is Prefill:
        fields["batch"] = tuple(_request(item) for item in fields["batch"])
    if "grants" in fields:
        fields["grants"] = tuple(_grant(item) for item in fields["grants"])
    if kind is Encode:
        fields["item"] = b64decode(fields["item"], validate=True)
    for name in ("batches", "keep"):
        if name in fields:
            fields[name] = tuple(map(int, fields[name]))
    return int(value["call"]), kind(**fields)


def _tables(value: list[list[int]]) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(map(int, table)) for table in value)


def _grant(value: dict[str, Any]) -> Grant:
    drafts = tuple(map(int, value.get("drafts", ())))  # recordings of earlier suites have none
    return Grant(int(value["request_id"]), int(value["take"]), _tables(value["blocks"]), drafts, bool(value.get("propose", True)))


def _request(value: dict[str, Any]) -> Request:
    sampling = dict(value["sampling"])
    sampling["logit_bias"] = tuple((int(token), float(bias)) for token, bias in sampling["logit_bias"])
    fields = dict(value) | {
        "tokens": tuple(value["tokens"]),
        "blocks": _tables(value["blocks"]),
        "sampling": Sampling(**sampling),
        "want": OutputOptions(**value["want"]),
        "media": tuple(b64decode(item, validate=True) for item in value["media"]),
    }
    return Request(**fields)


def sentence(number: Ref, call: Call) -> str:
    """Describe a call in one short line."""
    match call:
        case Prefill():
            rows = ", ".join(_row(request) for request in call.batch) or "nothing"
            beside = f" joining {_name(call.cached)}" if call.cached else ""
            text = f"prefill {rows}{beside}{_grants(call.grants)}"
        case Decode():
            text = f"decode {', '.join(map(_name, call.batches)) or 'nothing'}{_grants(call.grants)}"
        case Read():
            text = f"rows of step {_name(call.step)}"
        case Filter():
            text = f"filter {_name(call.batch)} to rows {list(call.keep)}"
        case Encode():
            text = f"encode an image, {_image(call.item)}"
        case Clear():
            text = f"clear {'everything' if call.batch is None else _name(call.batch)}"
    return f"#{number} {text}"


def _name(ref: Ref) -> str:
    return "the empty batch" if ref == NOTHING else "a made-up handle" if ref < 0 else f"#{ref}"


def _row(request: Request) -> str:
    unusual = {
        "cached": request.cached or None,
        "take": request.take if request.take != len(request.tokens) else None,
        "sampling": request.sampling if request.sampling != Sampling() else None,
        "want": request.want if request.want != OutputOptions(logprobs=False) else None,
        "masked": request.masked or None,
        "adapter": request.adapter,
        "media": f"[{', '.join(map(_image, request.media))}]" if request.media else None,
    }
    extra = "".join(f" {name}={value}" for name, value in unusual.items() if value is not None)
    return f"row {request.id} (tokens {list(request.tokens)}, blocks {[list(table) for table in request.blocks]}{extra})"


def _image(item: bytes) -> str:
    return f"{crc32(item):08x} ({len(item)} bytes)"


def _grants(grants: tuple[Grant, ...]) -> str:
    parts = [
        f"row {grant.request_id} takes {grant.take}"
        + (f" with drafts {list(grant.drafts)}" if grant.drafts else "")
        + (f" +{_tables_text(grant)}" if any(grant.blocks) else "")
        + ("" if grant.propose else " and proposes nothing")
        for grant in grants
    ]
    return f", where {'; '.join(parts)}" if parts else ""


def _tables_text(grant: Grant) -> str:
    return "blocks " + ", ".join(str(list(table)) for table in grant.blocks)
