"""Rendering of chat completions: one object, or a stream of chunks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

from tgi_core.wire.types import FinishReason, Generation, Token
from tgi_router.inference import Choice, Result, tokens_of
from tgi_router.json_text import dumps, quote
from tgi_router.message_reader import MessageReader, Names
from tgi_router.openai import FINGERPRINT, Dialect, Envelope, usage_of
from tgi_router.prompt_logprobs import rendered
from tgi_router.shown_text import HIDDEN, ShownText
from tgi_router.sse import event
from tgi_router.stop_strings import cut
from tgi_router.tool_calls import Piece, ToolCallReader

_ROLE = '"role":"assistant",'
_REST = '"logprobs":null,"finish_reason":null}],"usage":null}'
"""End of every chunk but the last."""


def answer_json(
    dialect: Dialect,
    envelope: Envelope,
    results: Sequence[Result],
    stops: Sequence[str],
    names: Names,
    logprobs: bool,
    shown: ShownText = HIDDEN,
) -> str:
    """Render a complete response. `names` are the functions that may be called. Raises ToolFailed where TGI does."""
    choices = []
    for result in results:
        pieces = _read(cut(shown.whole(result), stops), names)
        called = any(piece.call is not None for piece in pieces)
        choices.append(
            {
                "index": result.choice.index,
                "message": dialect.message(pieces),
                "logprobs": dialect.logprobs(result.tokens) if logprobs else None,
                "finish_reason": dialect.finish_reason(result.text.finish_reason, called),
            }
        )
    prompt = {"prompt_logprobs": rendered(results[0].prompt)} if results[0].choice.request.want.prompt_logprobs else {}
    return dumps(
        {
            "object": "chat.completion",
            "id": envelope.id,
            "created": envelope.created,
            "model": envelope.model,
            "system_fingerprint": FINGERPRINT,
            "choices": choices,
            "usage": usage_of(results),
            **prompt,
        }
    )


def _read(text: str, names: Names) -> list[Piece]:
    if not names:
        return [Piece(text)]
    reader = ToolCallReader(names)
    return [*reader.push(text), *reader.finish()]


class _Speaker(MessageReader):
    """State of one choice of a stream."""

    silent = True
    """Whether nothing has been sent yet."""


class Chunks:
    """Renders the chunks of one stream; repeated parts are rendered only once."""

    def __init__(
        self,
        dialect: Dialect,
        envelope: Envelope,
        stops: Sequence[str],
        names: Names,
        logprobs: bool,
        shown: ShownText = HIDDEN,
    ) -> None:
        self._head = (
            f'{{"object":"chat.completion.chunk","id":{quote(envelope.id)},"created":{envelope.created},'
            f'"model":{quote(envelope.model)},"system_fingerprint":{quote(FINGERPRINT)},"choices":['
        )
        self._dialect = dialect
        self._logprobs = logprobs
        self._shown = shown
        self._plain = not (stops or names or logprobs or shown.special)
        self._role = _ROLE if dialect.strict else ""
        self._speakers: dict[int, _Speaker] = defaultdict(lambda: _Speaker(stops, names))

    def events(self, choice: Choice, generation: Generation) -> bytes:
        """Render the result of a step; without tools, one event per token."""
        if self._plain and generation.finished is None and choice.index in self._speakers:
            return b"".join([self._text(choice.index, token) for token in generation.tokens])
        return b"".join(
            [
                event(chunk)
                for token, ending in tokens_of(generation)
                for chunk in self._token(choice, token, None if ending is None else ending.finish_reason)
            ]
        )

    def _text(self, index: int, token: Token) -> bytes:
        """Render the event of an ordinary token: not the first, not the last, only text."""
        text = '""' if token.special else quote(token.text)
        return f'data: {self._head}{{"index":{index},"delta":{{{self._role}"content":{text}}},{_REST}\n\n'.encode()

    def _token(self, choice: Choice, token: Token, ending: FinishReason | None) -> Iterator[str]:
        """Render the chunks of a token; without tools, exactly one."""
        speaker = self._speakers[choice.index]
        pieces = speaker.push(self._shown.of(choice, token, ending), ending is not None)
        reason = None if ending is None else self._dialect.finish_reason(ending, speaker.called)
        deltas = [self._delta(speaker, piece) for piece in pieces]
        if reason is not None and speaker.called:
            if self._dialect.strict:  # TGI ends a tool call with an empty delta
                reason = None
            else:
                deltas.append("{}")
        if not deltas and (self._logprobs or reason is not None):
            deltas.append(self._delta(speaker, Piece("")))
        logprobs = dumps(self._dialect.logprobs([token])) if self._logprobs else "null"
        for place, delta in enumerate(deltas):
            last = place == len(deltas) - 1
            yield self._chunk(choice.index, delta, "null" if place else logprobs, reason if last else None)

    def _chunk(self, index: int, delta: str, logprobs: str, reason: str | None) -> str:
        ended = "null" if reason is None else quote(reason)
        return f'{self._head}{{"index":{index},"delta":{delta},"logprobs":{logprobs},"finish_reason":{ended}}}],"usage":null}}'

    def _delta(self, speaker: _Speaker, piece: Piece) -> str:
        """Render a delta. Only the first has the role; TGI repeats it, and OpenAI's client would concatenate the repetitions."""
        role = _ROLE if speaker.silent or self._dialect.strict else ""
        speaker.silent = False
        if piece.call is None:
            return f'{{{role}"content":{quote(piece.text)}}}'
        return f'{{{role}"tool_calls":[{dumps(self._dialect.call_delta(piece))}]}}'

    def usage(self, tokens: dict[str, Any]) -> str:
        """Render the last chunk, which has the usage and no choices, for streams that request it."""
        return f'{self._head}],"usage":{dumps(tokens)}}}'
