"""The question that the scripts for openai ask, and the client that they ask with."""

from __future__ import annotations

from typing import Any

import openai
from calls import QUESTION, Script

script = Script()
client = openai.OpenAI(base_url=f"{script.url}/v1", api_key=script.key, max_retries=0, timeout=60)
MODEL = "tgi"
ASKED: Any = [{"role": "user", "content": QUESTION}]
GREEDY: Any = {"model": MODEL, "messages": ASKED, "temperature": 0, "max_tokens": 40}


def make_client() -> openai.AsyncOpenAI:
    """One per event loop."""
    return openai.AsyncOpenAI(base_url=f"{script.url}/v1", api_key=script.key, max_retries=0, timeout=60)


def create(**more: Any) -> Any:
    """A greedy answer to the question."""
    return client.chat.completions.create(**(GREEDY | more))
