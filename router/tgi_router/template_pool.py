"""Where chat templates are rendered: in worker processes, since a template is a program of a stranger's."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from tgi_core.literals import Span
from tgi_core.workers.command import python
from tgi_core.workers.pool import PoolBusy, TooCostly, WorkerCrashed, WorkerLost, WorkerPool
from tgi_router.errors import ModelOverloaded, TemplateFailed

WAIT_S = 5.0
"""How long a rendering may wait for those before it."""
WAITING = 256
"""Renderings that may wait."""

_CHILD = Path(__file__).with_name("template_child.py")


@dataclass(frozen=True, slots=True)
class Rendered:
    """A prompt, and where in it special tokens are only text."""

    text: str
    literals: tuple[Span, ...] = ()


class TemplatePool:
    """Renders templates in at most `size` processes. `special` are the model's special tokens as they are written. Used on one event
    loop."""

    def __init__(self, size: int, special: Iterable[str] = ()) -> None:
        greeting = json.dumps(list(special)).encode()
        self._pool = WorkerPool(python(_CHILD), greeting=greeting, size=size, waiting=WAITING, wait_s=WAIT_S)

    async def render(self, draft: bytes) -> Rendered:
        """The prompt of a `Draft` in JSON. Raises TemplateFailed, and ModelOverloaded where all workers are busy for too long, or ended
        from outside."""
        try:
            answer = json.loads(await self._pool.ask(draft))
        except TooCostly:
            raise TemplateFailed("the template took too long") from None
        except WorkerCrashed:
            raise TemplateFailed("the template needs too much memory") from None
        except (PoolBusy, WorkerLost):
            raise ModelOverloaded from None
        if "error" in answer:
            raise TemplateFailed(answer["error"])
        return Rendered(_unicode(answer["text"]), tuple((start, stop) for start, stop in answer["literals"]))

    def close(self) -> None:
        """End the processes."""
        self._pool.close()


def _unicode(text: str) -> str:
    """The text, or TemplateFailed where it holds halves of characters, which no tokenizer takes."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise TemplateFailed("the prompt is not Unicode") from None
    return text
