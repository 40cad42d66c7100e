"""Rendering of messages of Anthropic's API: one object, or a stream of events."""

from __future__ import annotations

from secrets import token_hex
from typing import Any

from pydantic_core import from_json

from tgi_core.wire.types import FinishReason, Generation
from tgi_router.anthropic_errors import PATH, error_object
from tgi_router.blocks import Block, BlockKind, BlockReader, Change
from tgi_router.errors import RouterError
from tgi_router.inference import Choice, Result
from tgi_router.json_text import dumps
from tgi_router.openai import Dialect
from tgi_router.sse import named_event

SIGNATURE = "unsigned"
"""Signature of reasoning. Some clients send reasoning back only if it has one."""

_DELTAS = {
    BlockKind.TEXT: ("text_delta", "text"),
    BlockKind.REASONING: ("thinking_delta", "thinking"),
    BlockKind.CALL: ("input_json_delta", "partial_json"),
}


class MessageRendering:
    """Renders one message. `model` is the name that the response repeats."""

    def __init__(self, dialect: Dialect, model: str, reader: BlockReader) -> None:
        self._dialect = dialect
        self._model = model
        self._reader = reader
        self._begun = False
        self._id = f"msg_{token_hex(12)}"

    def begin(self) -> bytes:
        """Render nothing: the first event contains the number of cached tokens, which is known only after the first step."""
        return b""

    def events(self, choice: Choice, generation: Generation) -> bytes:
        """Render the events of the result of a step."""
        events = []
        if not self._begun:
            self._begun = True
            events.append(_event("message_start", message=self._message(choice, [])))
        events += [self._change(*each) for each in self._reader.push(choice, generation)]
        if generation.finished is not None:
            events.append(_event("message_delta", delta=self._stop(), usage=self._usage(choice)))
            events.append(_event("message_stop"))
        return b"".join(events)

    def failed(self, error: RouterError) -> bytes:
        """Render the event of an error that ends the stream."""
        return named_event("error", dumps(error_object(self._dialect.status(error, PATH), str(error))))

    def whole(self, result: Result) -> str:
        """Render the complete message."""
        content = [_block(block) for block in self._reader.read(result)]
        return dumps({**self._message(result.choice, content), **self._stop()})

    def _change(self, change: Change, block: Block, text: str) -> bytes:
        if change is Change.OPENED:
            return _event("content_block_start", index=block.index, content_block=_opened(block))
        kind, field = _DELTAS[block.kind]
        if change is Change.ADDED:
            return _event("content_block_delta", index=block.index, delta={"type": kind, field: text})
        signature = b""
        if block.kind is BlockKind.REASONING:
            delta = {"type": "signature_delta", "signature": SIGNATURE}
            signature = _event("content_block_delta", index=block.index, delta=delta)
        return signature + _event("content_block_stop", index=block.index)

    def _message(self, choice: Choice, content: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "id": self._id,
            "type": "message",
            "role": "assistant",
            "model": self._model,
            "content": content,
            "stop_reason": None,
            "stop_sequence": None,
            "usage": self._usage(choice),
        }

    def _stop(self) -> dict[str, Any]:
        reader = self._reader
        if reader.ending is FinishReason.LENGTH:
            return {"stop_reason": "max_tokens", "stop_sequence": None}
        if reader.called:
            return {"stop_reason": "tool_use", "stop_sequence": None}
        return {"stop_reason": "stop_sequence" if reader.stop else "end_turn", "stop_sequence": reader.stop or None}

    def _usage(self, choice: Choice) -> dict[str, int]:
        """Return the number of tokens. Cached tokens are not counted as input, as in Anthropic's API."""
        cached = choice.stream.cached
        return {
            "input_tokens": len(choice.request.input_ids) - cached,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": cached,
            "output_tokens": 0 if choice.finished is None else choice.finished.generated_tokens,
        }


def _event(kind: str, **fields: Any) -> bytes:
    return named_event(kind, dumps({"type": kind, **fields}))


def _opened(block: Block) -> dict[str, Any]:
    if block.kind is BlockKind.CALL:
        return {"type": "tool_use", "id": f"toolu_{block.id}", "name": block.name, "input": {}}
    if block.kind is BlockKind.REASONING:
        return {"type": "thinking", "thinking": "", "signature": ""}
    return {"type": "text", "text": ""}


def _block(block: Block) -> dict[str, Any]:
    if block.kind is BlockKind.CALL:
        return {**_opened(block), "input": _input(block.text)}
    if block.kind is BlockKind.REASONING:
        return {"type": "thinking", "thinking": block.text, "signature": SIGNATURE}
    return {"type": "text", "text": block.text}


def _input(arguments: str) -> Any:
    """Return the arguments of a call; of one that is cut off, what there is of them, as Anthropic's client reads them in a stream."""
    try:
        found = from_json(arguments, allow_partial="trailing-strings")
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
