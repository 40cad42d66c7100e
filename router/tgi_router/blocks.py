"""A response as a sequence of blocks: reasoning, text and tool calls, as Anthropic's and OpenAI's newer APIs have them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from secrets import token_hex

from tgi_core.wire.types import FinishReason, Generation, Token
from tgi_router.inference import Choice, Result, tokens_of
from tgi_router.message_reader import MessageReader
from tgi_router.shown_text import HIDDEN
from tgi_router.stop_strings import matched
from tgi_router.tool_calls import Piece


class BlockKind(Enum):
    """What a block is."""

    REASONING = "reasoning"
    TEXT = "text"
    CALL = "call"


@dataclass(slots=True)
class Block:
    """One block. `name` is that of the called function, whose arguments are the text."""

    index: int
    kind: BlockKind
    call: int | None = None
    name: str = ""
    id: str = field(default_factory=lambda: token_hex(12))
    parts: list[str] = field(default_factory=list)

    @property
    def text(self) -> str:
        """All text so far."""
        return "".join(self.parts)


class Change(Enum):
    """What happens to a block."""

    OPENED = "opened"
    ADDED = "added"
    CLOSED = "closed"


BlockEvent = tuple[Change, Block, str]
"""A change of a block, and the text that it adds."""


class BlockReader:
    """Reads the blocks of one response from its tokens. `shown` are special tokens whose text counts."""

    def __init__(self, reader: MessageReader, stops: Sequence[str], shown: Iterable[str] = ()) -> None:
        self.blocks: list[Block] = []
        self.ending: FinishReason | None = None
        self.stop: str | None = None
        """The stop string that ended the response."""
        self.reasoning_tokens = 0
        self._reader = reader
        self._stops = stops
        self._shown = frozenset(shown)
        self._open = False

    @property
    def called(self) -> bool:
        """Whether the response has tool calls."""
        return self._reader.called

    def read(self, result: Result) -> list[Block]:
        """Return the blocks of a complete response."""
        for _ in self.push(result.choice, Generation(1, tuple(result.tokens), finished=result.text)):
            pass
        return self.blocks

    def push(self, choice: Choice, generation: Generation) -> Iterator[BlockEvent]:
        """Yield the changes that the result of a step makes."""
        for token, ending in tokens_of(generation):
            reason = None if ending is None else ending.finish_reason
            pieces = self._reader.push(self._text(choice, token, reason), ending is not None)
            self.reasoning_tokens += self._reader.reasoning or any(piece.reasoning for piece in pieces)
            for piece in pieces:
                yield from self._add(piece)
            if ending is not None:
                self.ending = reason
                self.stop = matched(ending.text, self._stops) if reason is FinishReason.STOP_SEQUENCE else None
                yield from self._finish()

    def _text(self, choice: Choice, token: Token, reason: FinishReason | None) -> str:
        return token.text if token.special and token.text in self._shown else HIDDEN.of(choice, token, reason)

    def _add(self, piece: Piece) -> Iterator[BlockEvent]:
        if not piece.text and piece.name is None:
            return
        kind = BlockKind.REASONING if piece.reasoning else BlockKind.TEXT if piece.call is None else BlockKind.CALL
        if not self._open or (self.blocks[-1].kind, self.blocks[-1].call) != (kind, piece.call):
            yield from self._start(Block(len(self.blocks), kind, piece.call, piece.name or ""))
        block = self.blocks[-1]
        block.parts.append(piece.text)
        if piece.text:
            yield Change.ADDED, block, piece.text

    def _start(self, block: Block) -> Iterator[BlockEvent]:
        yield from self._close()
        self.blocks.append(block)
        self._open = True
        yield Change.OPENED, block, ""

    def _close(self) -> Iterator[BlockEvent]:
        if self._open:
            self._open = False
            yield Change.CLOSED, self.blocks[-1], ""

    def _finish(self) -> Iterator[BlockEvent]:
        """End the last block. A response without any has an empty text."""
        if not self.blocks:
            yield from self._start(Block(0, BlockKind.TEXT))
        yield from self._close()
