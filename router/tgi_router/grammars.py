"""Checking grammars before they reach the shard, so that a bad one is told as what it is: a fault of the request."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from tgi_core.backend import Capabilities, Feature
from tgi_core.config import Settings
from tgi_core.grammar import Grammar, GrammarError, UnsupportedGrammar, parse_grammar
from tgi_core.grammar.checking import GrammarTrials
from tgi_router.errors import ModelOverloaded, ValidationFailed

WAIT_SECONDS = 10.0
"""How long a grammar may wait for those before it and compile; each takes milliseconds, a hostile one a second or two."""


class GrammarChecker:
    """Parses and tries in a thread of its own: hostile grammars hold up other grammars, but no tokenizing."""

    def __init__(self, settings: Settings, capabilities: Capabilities) -> None:
        self._possible = Feature.MASKS in capabilities.features and not settings.disable_grammar_support
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="grammar-check")
        self._trials = GrammarTrials()

    async def check(self, shape: Mapping[str, Any], strict: bool) -> Grammar | None:
        """What a client asks for, as a grammar that compiles; None for plain text. `strict` takes TGI's shapes only.

        Raises ValidationFailed, ModelOverloaded.
        """
        if not self._possible:
            raise ValidationFailed(str(UnsupportedGrammar()))
        try:
            async with asyncio.timeout(WAIT_SECONDS):
                return await asyncio.get_running_loop().run_in_executor(self._thread, self._tried, shape, strict)
        except GrammarError as error:
            raise ValidationFailed(str(error)) from error
        except TimeoutError:
            raise ModelOverloaded from None

    def _tried(self, shape: Mapping[str, Any], strict: bool) -> Grammar | None:
        grammar = parse_grammar(shape, strict_tgi=strict)
        if grammar is not None:
            self._trials.check(grammar)
        return grammar

    def close(self) -> None:
        """Take no more work, and end the child process in which grammars are tried."""
        self._thread.shutdown(wait=False, cancel_futures=True)
        self._trials.close()
