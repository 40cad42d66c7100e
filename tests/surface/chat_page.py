"""The page at /ui in a browser, on a scripted model."""

from __future__ import annotations

import math
import random
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from playwright.sync_api import Browser, Locator
from tgi_router import ServedModel, create_app

from tests.router.scripted import EVERYTHING, Script, ScriptedGenerator
from tests.router.serving import Served, already, serving
from tests.surface.browsing import Scheme, Visit
from tgi_core.config import Settings
from tgi_core.model_files import DEMO
from tgi_core.scheduler.types import Limits
from tgi_core.wire.types import Candidate, FinishReason, GeneratedText, Generation, Token

ROOMY = Limits(100_000, 200_000)
"""No script is too long for it."""


@contextmanager
def scripted(
    script: Script,
    name: str = "org/demo-1b",
    adapters: Sequence[str] = (),
    kind: type[ScriptedGenerator] = ScriptedGenerator,
    **settings: Any,
) -> Iterator[tuple[Served, ScriptedGenerator]]:
    """A server whose model says what `script` does."""
    generator = kind(script, replace(EVERYTHING, adapters=tuple(adapters)), ROOMY)
    chosen = Settings(**settings)
    model = replace(ServedModel.load(DEMO, "demo", chosen), name=name)
    with serving(lambda made: create_app(chosen, model, made), already(generator), chosen) as served:
        yield served, generator


def says(texts: Sequence[str], seed: int = 0, others: Sequence[str] = (" a", " the", "\n", " of")) -> list[Generation]:
    """One token per text, each with a probability drawn at random and four alternatives, which are `others`."""
    draw = random.Random(seed)
    tokens = []
    for text in texts:
        share = draw.choice((0.05, 0.3, 0.6, 0.8, 0.97, 0.99, 0.99))
        rest = [(1 - share) / 2**power for power in range(1, len(others) + 1)]
        top = [
            Candidate(20 + each, other, math.log(rest[each]), special=False) for each, other in enumerate(others) if other != text
        ]
        top = sorted([Candidate(10, text, math.log(share), special=False), *top], key=lambda each: -each.logprob)
        tokens.append(Token(10, text, math.log(share), special=False, top=tuple(top)))
    ending = GeneratedText("".join(texts), len(tokens), FinishReason.EOS_TOKEN)
    return [Generation(1, (token,), finished=ending if place == len(tokens) - 1 else None) for place, token in enumerate(tokens)]


def words(text: str) -> list[str]:
    """A text in pieces as tokens have them."""
    return re.findall(r"\s?\w+|[^\w]", text)


class ChatPage(Visit):
    """A visit of the page."""

    def __init__(self, browser: Browser, url: str, scheme: Scheme = "light", width: int = 1280, height: int = 800) -> None:
        super().__init__(browser, url + "/ui", scheme, width, height)

    def ready(self) -> ChatPage:
        """Wait until it knows the model."""
        self.page.locator("#state[data-state=ready]").wait_for()
        return self

    def ask(self, text: str) -> None:
        """Write a message and send it with Enter."""
        self.page.locator("#prompt").fill(text)
        self.page.locator("#prompt").press("Enter")

    def answer(self) -> Locator:
        """The last answer, once it is complete."""
        last = self.page.locator("#messages > .assistant").last
        last.locator(".stats").wait_for()
        return last

    def text(self) -> str:
        """The text of the last answer, once it is complete."""
        return self.answer().locator(".text").evaluate("(found) => found.textContent")

    def settings(self) -> None:
        """Open the panel and all of its parts."""
        if not self.page.locator("#panel").is_visible():
            self.page.locator("#toggle-panel").click()
        self.page.locator("#panel details:not([open]) > summary").evaluate_all("(all) => all.forEach((each) => each.click())")
