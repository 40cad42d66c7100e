"""Rendering of responses of OpenAI's Responses API: one object, or a stream of events."""

from __future__ import annotations

from secrets import token_hex
from time import time
from typing import Any

from tgi_core.wire.types import FinishReason, Generation
from tgi_router.blocks import Block, BlockKind, BlockReader, Change
from tgi_router.errors import RouterError
from tgi_router.inference import Choice, Result
from tgi_router.json_text import dumps, shortest
from tgi_router.openai import Dialect
from tgi_router.responses_bodies import FunctionTool, ResponsesBody, ToolParam, full_name
from tgi_router.sse import named_event

_PREFIXES = {BlockKind.TEXT: "msg", BlockKind.REASONING: "rs", BlockKind.CALL: "fc"}
_TEXTS = {BlockKind.TEXT: "response.output_text", BlockKind.REASONING: "response.reasoning_text"}
_ARGUMENTS = "response.function_call_arguments"


class ResponseRendering:
    """Renders one response. `model` is the name that it repeats."""

    def __init__(self, dialect: Dialect, model: str, body: ResponsesBody, reader: BlockReader) -> None:
        self._dialect = dialect
        self._reader = reader
        self._number = 0
        self._functions = _namespaced(body)
        self._head = {
            "id": f"resp_{token_hex(24)}",
            "object": "response",
            "created_at": int(time()),
            "model": model,
            "background": False,
            "previous_response_id": None,
            "store": False,
            **_echoed(body),
        }

    def begin(self) -> bytes:
        """Render the events before the first token."""
        response = self._response("in_progress", None)
        return self._event("response.created", response=response) + self._event("response.in_progress", response=response)

    def events(self, choice: Choice, generation: Generation) -> bytes:
        """Render the events of the result of a step."""
        events = [self._change(*each) for each in self._reader.push(choice, generation)]
        if generation.finished is not None:
            response = self._response(self._status(), choice)
            events.append(self._event(f"response.{response['status']}", response=response))
        return b"".join(events)

    def failed(self, error: RouterError) -> bytes:
        """Render the event of an error that ends the stream."""
        status = self._dialect.status(error)
        code = "rate_limit_exceeded" if status == 429 else "server_error" if status >= 408 and status != 422 else "invalid_prompt"
        response = {**self._response("failed", None), "error": {"code": code, "message": str(error)}}
        return self._event("response.failed", response=response)

    def whole(self, result: Result) -> str:
        """Render the complete response."""
        self._reader.read(result)
        return dumps(self._response(self._status(), result.choice))

    def _status(self) -> str:
        return "incomplete" if self._reader.ending is FinishReason.LENGTH else "completed"

    def _event(self, kind: str, **fields: Any) -> bytes:
        self._number += 1
        return named_event(kind, dumps({"type": kind, "sequence_number": self._number - 1, **fields}))

    def _change(self, change: Change, block: Block, text: str) -> bytes:
        if change is Change.OPENED:
            return self._opened(block)
        if change is Change.CLOSED:
            return self._closed(block)
        place = {"item_id": _id(block), "output_index": block.index}
        if block.kind is BlockKind.CALL:
            return self._event(f"{_ARGUMENTS}.delta", **place, delta=text)
        return self._event(f"{_TEXTS[block.kind]}.delta", **place, content_index=0, delta=text, **_logprobs(block))

    def _opened(self, block: Block) -> bytes:
        added = self._event(
            "response.output_item.added", output_index=block.index, item=self._item(block, "in_progress", opened=True)
        )
        if block.kind is BlockKind.CALL:
            return added
        place = {"item_id": _id(block), "output_index": block.index, "content_index": 0}
        return added + self._event("response.content_part.added", **place, part=_part(block, ""))

    def _closed(self, block: Block) -> bytes:
        place = {"item_id": _id(block), "output_index": block.index}
        if block.kind is BlockKind.CALL:
            done = self._event(f"{_ARGUMENTS}.done", **place, **self._function(block), arguments=block.text)
        else:
            place["content_index"] = 0
            done = self._event(f"{_TEXTS[block.kind]}.done", **place, text=block.text, **_logprobs(block))
            done += self._event("response.content_part.done", **place, part=_part(block, block.text))
        item = self._item(block, self._status_of(block))
        return done + self._event("response.output_item.done", output_index=block.index, item=item)

    def _status_of(self, block: Block) -> str:
        """Return the status of a block: only the last one may be cut off."""
        cut = self._reader.ending is FinishReason.LENGTH and block is self._reader.blocks[-1]
        return "incomplete" if cut else "completed"

    def _response(self, status: str, choice: Choice | None) -> dict[str, Any]:
        """Return the response; `choice` if it is complete."""
        blocks = self._reader.blocks
        return {
            **self._head,
            "status": status,
            "completed_at": int(time()) if status == "completed" else None,
            "error": None,
            "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
            "output": [self._item(block, self._status_of(block)) for block in blocks],
            "usage": None if choice is None else self._usage(choice),
        }

    def _usage(self, choice: Choice) -> dict[str, Any]:
        given = len(choice.request.input_ids)
        generated = 0 if choice.finished is None else choice.finished.generated_tokens
        return {
            "input_tokens": given,
            "input_tokens_details": {"cached_tokens": choice.stream.cached, "cache_write_tokens": 0},
            "output_tokens": generated,
            "output_tokens_details": {"reasoning_tokens": self._reader.reasoning_tokens},
            "total_tokens": given + generated,
        }

    def _item(self, block: Block, status: str, opened: bool = False) -> dict[str, Any]:
        """Return a block as an item of the output; as it begins, if `opened`."""
        head = {"id": _id(block), "status": status}
        text = "" if opened else block.text
        if block.kind is BlockKind.CALL:
            call = {"type": "function_call", **head, "call_id": f"call_{block.id}"}
            return {**call, **self._function(block), "arguments": text}
        content = [] if opened else [_part(block, text)]
        if block.kind is BlockKind.REASONING:
            return {"type": "reasoning", **head, "summary": [], "content": content, "encrypted_content": None}
        return {"type": "message", **head, "role": "assistant", "content": content}

    def _function(self, block: Block) -> dict[str, str]:
        """Return the name of a called function, and its namespace if it has one."""
        return self._functions.get(block.name) or {"name": block.name}


def _id(block: Block) -> str:
    return f"{_PREFIXES[block.kind]}_{block.id}"


def _logprobs(block: Block) -> dict[str, Any]:
    """Return the field that events of text have."""
    return {"logprobs": []} if block.kind is BlockKind.TEXT else {}


def _part(block: Block, text: str) -> dict[str, Any]:
    if block.kind is BlockKind.REASONING:
        return {"type": "reasoning_text", "text": text}
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def _namespaced(body: ResponsesBody) -> dict[str, dict[str, str]]:
    """Return the names of functions in namespaces by the names that the model knows."""
    return {
        full_name(param.name, tool.name): {"name": tool.name, "namespace": param.name}
        for param in body.tools or ()
        for tool in param.tools or ()
        if param.name is not None and tool.name is not None
    }


def _echoed(body: ResponsesBody) -> dict[str, Any]:
    """Return what a response repeats of its request, with OpenAI's defaults."""
    choice, reasoning, text = body.tool_choice, body.reasoning, body.text
    format = {"type": "text"} if text is None or text.format is None else text.format.model_dump(by_alias=True, exclude_none=True)
    return {
        "instructions": body.instructions,
        "max_output_tokens": body.max_output_tokens,
        "temperature": shortest(1.0 if body.temperature is None else body.temperature),
        "top_p": shortest(1.0 if body.top_p is None else body.top_p),
        "tools": [_tool(tool) for tool in body.tools or ()],
        "tool_choice": choice.model_dump(exclude_none=True)
        if choice is not None and not isinstance(choice, str)
        else choice or "auto",
        "parallel_tool_calls": body.parallel_tool_calls is not False,
        "text": {"format": format},
        "reasoning": {"effort": None if reasoning is None else reasoning.effort, "summary": None},
        "truncation": "disabled",
        "metadata": {},
    }


def _tool(param: ToolParam) -> dict[str, Any]:
    if param.type == "namespace":
        tools = [_function(tool) for tool in param.tools or ()]
        return {"type": "namespace", "name": param.name, "description": param.description or "", "tools": tools}
    return _function(param)


def _function(tool: FunctionTool) -> dict[str, Any]:
    described = {"type": tool.type, "name": tool.name, "description": tool.description}
    return {**described, "parameters": tool.parameters, "strict": bool(tool.strict)}
