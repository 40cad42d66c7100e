"""Validation of grammars before they reach the shard, so that an invalid one fails only its request."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from tgi_core.backend import Capabilities, Feature
from tgi_core.config import Settings
from tgi_core.grammar import Grammar, GrammarError, GrammarReport, GrammarsBusy, UnsupportedGrammar, parse_grammar
from tgi_core.grammar.validator import GrammarValidator
from tgi_router.errors import FormatViolated, ModelOverloaded, RouterError, ValidationFailed

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,40}", re.ASCII)


@dataclass(frozen=True, slots=True)
class CheckedGrammar:
    """A valid grammar and its properties."""

    grammar: Grammar
    report: GrammarReport

    @property
    def warning(self) -> str:
        """What the masks do not enforce; "" if they enforce everything."""
        checked, formats = self.report.checked, self.report.formats
        parts = [f"keywords checked only at the end of the response: {', '.join(checked)}"] if checked else []
        named = [each for each in formats if _NAME.fullmatch(each)]
        parts += [f"formats not checked: {', '.join(named or ['names that are none'])}"] if formats else []
        return "; ".join(parts)


class GrammarChecker:
    """Parses grammars in a thread and test-compiles them in worker processes. Used on one event loop."""

    def __init__(self, settings: Settings, capabilities: Capabilities) -> None:
        self.possible = Feature.MASKS in capabilities.features and not settings.disable_grammar_support
        """Whether the tokens of a request can be masked."""
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="grammar-parse")
        self._validator = GrammarValidator(settings.max_grammar_bytes)
        self._max_bytes = settings.max_grammar_bytes

    async def check(self, shape: Mapping[str, Any], strict: bool) -> CheckedGrammar | None:
        """Return the requested grammar if it compiles; None for plain text. `strict` accepts only TGI's formats.

        Raises ValidationFailed, ModelOverloaded.
        """
        if not self.possible:
            raise ValidationFailed(str(UnsupportedGrammar()))
        with reporting_errors():
            parsing = asyncio.get_running_loop().run_in_executor(self._thread, _parsed, shape, strict, self._max_bytes)
            grammar = await parsing
            return None if grammar is None else CheckedGrammar(grammar, await self._validator.validate(grammar))

    async def warning(self, shape: Mapping[str, Any], strict: bool) -> str:
        """Return what the masks of a grammar do not enforce; "" if they enforce everything, or if it is refused."""
        try:
            checked = await self.check(shape, strict)
        except RouterError:
            return ""
        return "" if checked is None else checked.warning

    async def verify(self, checked: CheckedGrammar, text: str) -> None:
        """Check a complete response for what its masks do not enforce. Raises FormatViolated, ModelOverloaded."""
        with reporting_errors():
            found = await self._validator.violation(checked.grammar, text)
        if found:
            raise FormatViolated(found)

    async def close(self) -> None:
        """Stop accepting work, and end the worker processes."""
        self._thread.shutdown(wait=False, cancel_futures=True)
        await self._validator.close()


@contextmanager
def reporting_errors() -> Iterator[None]:
    """Convert errors of a grammar to errors of its request. Raises ValidationFailed, ModelOverloaded."""
    try:
        yield
    except GrammarsBusy:
        raise ModelOverloaded from None
    except GrammarError as error:
        raise ValidationFailed(str(error)) from error


def _parsed(shape: Mapping[str, Any], strict: bool, max_bytes: int) -> Grammar | None:
    return parse_grammar(shape, strict_tgi=strict, max_bytes=max_bytes)
