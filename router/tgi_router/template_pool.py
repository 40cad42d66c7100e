"""Where chat templates are rendered: in worker processes, since a template is a program of a stranger's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tgi_core.workers.command import python
from tgi_core.workers.pool import PoolBusy, TooCostly, WorkerCrashed, WorkerLost, WorkerPool
from tgi_router.errors import ModelOverloaded, TemplateFailed

WAIT_S = 5.0
"""How long a rendering may wait for those before it."""
WAITING = 256
"""Renderings that may wait."""

_CHILD = Path(__file__).with_name("template_child.py")


class TemplatePool:
    """Renders templates in at most `size` processes, each to at most `longest` characters. Used on one event loop."""

    def __init__(self, size: int, longest: int) -> None:
        self._longest = longest
        self._pool = WorkerPool(python(_CHILD), size=size, waiting=WAITING, wait_s=WAIT_S)

    async def render(self, source: str, variables: dict[str, Any], continued: str | None = None) -> str:
        """The text of a template, up to the end of `continued`, the last message, where that is to be continued.

        Raises TemplateFailed, and ModelOverloaded where all processes are busy for too long or are ended from outside.
        """
        return await self.rendered(self.request(source, variables, continued))

    def request(self, source: str, variables: dict[str, Any], continued: str | None = None) -> bytes:
        """What a worker is told; takes time in proportion to the variables."""
        asked = {"source": source, "variables": variables, "longest": self._longest, "continued": continued}
        return json.dumps(asked).encode()

    async def rendered(self, request: bytes) -> str:
        """See `render`."""
        try:
            answer = json.loads(await self._pool.ask(request))
        except TooCostly:
            raise TemplateFailed("the template took too long") from None
        except WorkerCrashed:
            raise TemplateFailed("the template needs too much memory") from None
        except (PoolBusy, WorkerLost):
            raise ModelOverloaded from None
        if "error" in answer:
            raise TemplateFailed(answer["error"])
        return _unicode(answer["text"])

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
