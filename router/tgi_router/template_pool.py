"""Rendering of chat templates in worker processes, since a template is an untrusted program."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from tgi_core.workers.command import python
from tgi_core.workers.pool import PoolBusy, TooCostly, WorkerCrashed, WorkerLost, WorkerPool
from tgi_router.errors import ModelOverloaded, TemplateFailed
from tgi_router.validation import Prompt

WAIT_S = 5.0
"""Maximum seconds for which a rendering waits for a worker."""
WAITING = 256
"""Maximum number of waiting renderings."""

_CHILD = Path(__file__).with_name("template_child.py")


class TemplatePool:
    """Renders templates in at most `size` processes. `special` are the texts of the model's special tokens. Used on one event
    loop."""

    def __init__(self, size: int, special: Iterable[str] = ()) -> None:
        greeting = json.dumps(list(special)).encode()
        self._pool = WorkerPool(python(_CHILD), greeting=greeting, size=size, waiting=WAITING, wait_s=WAIT_S)

    async def render(self, job: bytes) -> Prompt:
        """Render a `TemplateJob` in JSON. Raises TemplateFailed; ModelOverloaded if all workers are busy for too long, or are killed
        externally."""
        try:
            answer = json.loads(await self._pool.ask(job))
        except TooCostly:
            raise TemplateFailed("the template took too long") from None
        except WorkerCrashed:
            raise TemplateFailed("the template needs too much memory") from None
        except (PoolBusy, WorkerLost):
            raise ModelOverloaded from None
        if "error" in answer:
            raise TemplateFailed(answer["error"])
        literals = tuple((start, stop) for start, stop in answer["literals"])
        return Prompt(_unicode(answer["text"]), add_special_tokens=False, literals=literals)

    def close(self) -> None:
        """End the worker processes."""
        self._pool.close()


def _unicode(text: str) -> str:
    """Return a rendered text. Raises TemplateFailed for lone surrogates, which no tokenizer accepts."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise TemplateFailed("the prompt is not Unicode") from None
    return text
