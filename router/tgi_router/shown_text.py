"""The text that is shown under /v1: special tokens are hidden or shown (`skip_special_tokens`), the end-of-sequence token never
is."""

from __future__ import annotations

from dataclasses import dataclass

from tgi_core.wire.types import FinishReason, Token
from tgi_router.inference import Choice, Result


@dataclass(frozen=True, slots=True)
class ShownText:
    """The text of special tokens is shown if `special`; that of the token that ends a text never is."""

    special: bool = False

    def of(self, choice: Choice, token: Token, reason: FinishReason | None = None) -> str:
        """Return what a token adds. `reason`: why the text ends with it, None if it does not."""
        if reason is FinishReason.STOP_SEQUENCE and token.id in choice.request.stopping.stop_ids:
            return ""
        if token.special and (reason is FinishReason.EOS_TOKEN or not self.special):
            return ""
        return token.text

    def whole(self, result: Result) -> str:
        """Return the text of a complete result."""
        if not self.special or not result.tokens:
            return result.text.text
        *tokens, last = result.tokens
        pieces = [self.of(result.choice, token) for token in tokens]
        return "".join(pieces) + self.of(result.choice, last, result.text.finish_reason)


HIDDEN = ShownText()
