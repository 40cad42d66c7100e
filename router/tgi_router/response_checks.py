"""Checks of the complete responses of a call, for the keywords of JSON schemas that masks do not enforce."""

from __future__ import annotations

from collections.abc import Iterable

from tgi_core.scheduler.types import GenerationRequest
from tgi_core.wire.types import FinishReason, GeneratedText
from tgi_router.grammars import CheckedGrammar, GrammarChecker
from tgi_router.request_fields import WARNING


class ResponseChecks:
    """The grammars of one call."""

    def __init__(self, checker: GrammarChecker) -> None:
        self._checker = checker
        self._grammars: list[CheckedGrammar] = []

    def add(self, grammars: Iterable[CheckedGrammar | None]) -> None:
        """Add the grammars of valid requests."""
        self._grammars += [each for each in grammars if each is not None]

    def warn(self, headers: dict[str, str]) -> None:
        """Add to a response's headers what the masks do not enforce."""
        found = dict.fromkeys(each.warning for each in self._grammars if each.warning)
        if found:
            headers[WARNING] = "; ".join([*([headers[WARNING]] if WARNING in headers else []), *found])

    def apply_to(self, request: GenerationRequest, text: GeneratedText | None) -> bool:
        """Return whether a text must be checked: it is complete, and its masks do not enforce everything."""
        complete = text is not None and text.finish_reason is FinishReason.EOS_TOKEN
        return complete and request.grammar is not None and self._of(request).report.checked != ()

    async def verify(self, request: GenerationRequest, text: GeneratedText) -> None:
        """Check a text. Raises FormatViolated, ModelOverloaded."""
        await self._checker.verify(self._of(request), text.text)

    def _of(self, request: GenerationRequest) -> CheckedGrammar:
        return next(each for each in self._grammars if each.grammar is request.grammar)
