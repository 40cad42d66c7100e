"""Validation of grammars before they reach the shard, so that an invalid one fails only its request."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from tgi_core.backend import Capabilities, Feature
from tgi_core.config import Settings
from tgi_core.grammar import Cost, Grammar, GrammarError, GrammarsBusy, UnsupportedGrammar, parse_grammar
from tgi_core.grammar.judging import GrammarJudge
from tgi_router.errors import ModelOverloaded, ValidationFailed


@dataclass(frozen=True, slots=True)
class CheckedGrammar:
    """A valid grammar with the cost of compiling it."""

    grammar: Grammar
    cost: Cost


class GrammarChecker:
    """Parses grammars in a thread and test-compiles them in worker processes. Used on one event loop."""

    def __init__(self, settings: Settings, capabilities: Capabilities) -> None:
        self._possible = Feature.MASKS in capabilities.features and not settings.disable_grammar_support
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="grammar-parse")
        self._judge = GrammarJudge()

    async def check(self, shape: Mapping[str, Any], strict: bool) -> CheckedGrammar | None:
        """Return the requested grammar if it compiles; None for plain text. `strict` accepts only TGI's formats.

        Raises ValidationFailed, ModelOverloaded.
        """
        if not self._possible:
            raise ValidationFailed(str(UnsupportedGrammar()))
        with reporting_errors():
            parsing = asyncio.get_running_loop().run_in_executor(self._thread, _parsed, shape, strict)
            grammar = await parsing
            return None if grammar is None else CheckedGrammar(grammar, await self._judge.cost(grammar))

    async def close(self) -> None:
        """Stop accepting work, and end the worker processes."""
        self._thread.shutdown(wait=False, cancel_futures=True)
        await self._judge.close()


@contextmanager
def reporting_errors() -> Iterator[None]:
    """Convert errors of a grammar to errors of its request. Raises ValidationFailed, ModelOverloaded."""
    try:
        yield
    except GrammarsBusy:
        raise ModelOverloaded from None
    except GrammarError as error:
        raise ValidationFailed(str(error)) from error


def _parsed(shape: Mapping[str, Any], strict: bool) -> Grammar | None:
    return parse_grammar(shape, strict_tgi=strict)
