"""vLLM's field `prompt_logprobs`: log probabilities of the prompt's tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tgi_core.wire.types import PromptToken
from tgi_router.json_text import shortest


def rendered(prompt: Sequence[PromptToken]) -> list[dict[str, Any] | None]:
    """Return one entry per token of a prompt, by its id; None for the first, which has no log probability. Ranks are not known."""
    return [
        None
        if token.logprob is None
        else {str(token.id): {"logprob": shortest(token.logprob), "rank": None, "decoded_token": token.text}}
        for token in prompt
    ]
