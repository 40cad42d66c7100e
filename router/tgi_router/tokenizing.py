"""Tokenization: short texts on the event loop, others in worker processes, so that no text blocks the event loop."""

from __future__ import annotations

import json
from array import array
from collections.abc import Sequence
from pathlib import Path

from tgi_core.literals import Span
from tgi_core.tokenizer import Tokenizer
from tgi_core.workers.command import python
from tgi_core.workers.pool import PoolBusy, TooCostly, WorkerCrashed, WorkerLost, WorkerPool
from tgi_router.errors import ModelOverloaded, ValidationFailed
from tgi_router.tokenizing_child import LENGTH, tokens_of_text

INLINE = 512
"""Number of characters up to which tokenizing takes less time than a round trip to a worker."""
LONG = 1 << 16
"""Number of characters above which texts get a separate worker: they take up to seconds, and must not delay others."""

_WAIT_S = 5.0
"""Maximum seconds for which a text waits for a worker."""
_WAITING, _LONG_WAITING = 256, 8
"""Maximum number of waiting texts."""
_CHILD = Path(__file__).with_name("tokenizing_child.py")


class Tokenizing:
    """A model's tokenizer, in this process and in at most `size` workers, plus one for long texts. Used on one event loop."""

    def __init__(self, tokenizer: Tokenizer, size: int) -> None:
        self._tokenizer = tokenizer
        command, arguments = python(_CHILD), [str(tokenizer.directory)]
        self._lane = WorkerPool(command, arguments, size=size, waiting=_WAITING, wait_s=_WAIT_S)
        self._long_lane = WorkerPool(command, arguments, size=1, waiting=_LONG_WAITING, wait_s=_WAIT_S)

    async def ids(self, text: str, special: bool, literals: Sequence[Span], keep: int) -> tuple[int, tuple[int, ...]]:
        """Return the number of tokens, and the ids of the last `keep`. `special`: include those that the tokenizer adds;
        `literals`: spans in which special tokens are plain text. Raises ValidationFailed, ModelOverloaded."""
        if len(text) <= INLINE:
            known = self._tokenizer.encode(text, special, literals).ids
            return len(known), known[-keep:]
        answer = await self._ask(text, special, literals, keep)
        [length] = LENGTH.unpack_from(answer)
        ids = array("I")
        ids.frombytes(answer[LENGTH.size :])
        return length, tuple(ids)

    async def tokens(self, text: str, special: bool = True, literals: Sequence[Span] = ()) -> bytes:
        """Return all tokens in the format of /tokenize, as JSON. Raises ValidationFailed, ModelOverloaded."""
        if len(text) <= INLINE:
            return tokens_of_text(self._tokenizer, text, special, literals)
        return await self._ask(text, special, literals, None)

    async def _ask(self, text: str, special: bool, literals: Sequence[Span], keep: int | None) -> bytes:
        lane = self._lane if len(text) <= LONG else self._long_lane
        head = json.dumps([special, literals, keep]).encode()
        try:
            return await lane.ask(head + b"\n" + text.encode())
        except TooCostly:
            raise ValidationFailed("the text takes too long to tokenize") from None
        except WorkerCrashed:
            raise ValidationFailed("the text takes too much memory to tokenize") from None
        except (PoolBusy, WorkerLost):
            raise ModelOverloaded from None

    def close(self) -> None:
        """End the worker processes."""
        self._lane.close()
        self._long_lane.close()
