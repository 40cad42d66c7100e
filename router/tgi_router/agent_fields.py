"""Fields of the request bodies of Anthropic's Messages API and of OpenAI's Responses API, and how each is handled."""

from __future__ import annotations

from tgi_router.request_fields import RequestField, Route, Treatment, honoured, ignored, others, refused
from tgi_router.vllm_fields import ARGUMENTS

_ANTHROPIC, _OPENAI = "Anthropic", "OpenAI"
_MESSAGES, _RESPONSES = Route.MESSAGES, Route.RESPONSES
_KEPT = "nothing is stored"
_TURN = [{"role": "user", "content": "Hi"}]
_FORMAT = {"type": "json_schema", "schema": ARGUMENTS}

MESSAGES: tuple[RequestField, ...] = (
    *honoured(_ANTHROPIC, _MESSAGES, model="tgi", messages=_TURN, max_tokens=4, system="Hi", stop_sequences=["x"], stream=True),
    *honoured(_ANTHROPIC, _MESSAGES, temperature=0.5, top_k=5, top_p=0.9, tools=[{"name": "f", "input_schema": ARGUMENTS}]),
    *honoured(_ANTHROPIC, _MESSAGES, tool_choice={"type": "auto"}, output_config={"format": _FORMAT}),
    RequestField(
        "thinking",
        _ANTHROPIC,
        _MESSAGES,
        Treatment.HONOURED,
        {"type": "enabled"},
        "the template's variable `enable_thinking`; `budget_tokens` is ignored, with a warning",
    ),
    refused(_ANTHROPIC, _MESSAGES, "output_format", _FORMAT, "use `output_config.format`"),
    refused(_ANTHROPIC, _MESSAGES, "container", "c", "the server runs no code"),
    refused(_ANTHROPIC, _MESSAGES, "mcp_servers", [{"name": "m"}], "the server calls no tools", []),
    ignored(_ANTHROPIC, _MESSAGES, "cache_control", {"type": "ephemeral"}, "prompts are cached by their tokens"),
    ignored(_ANTHROPIC, _MESSAGES, "context_management", {"edits": []}, "nothing is removed from a conversation"),
    ignored(_ANTHROPIC, _MESSAGES, "metadata", {"user_id": "u-1"}, _KEPT, {}),
    ignored(_ANTHROPIC, _MESSAGES, "service_tier", "priority", "see `x-request-priority`", "auto", "standard_only"),
    ignored(_ANTHROPIC, _MESSAGES, "speed", "fast", "there is one speed", "standard"),
    ignored(_ANTHROPIC, _MESSAGES, "inference_geo", "eu", "the model runs where the server is"),
    ignored(_ANTHROPIC, _MESSAGES, "diagnostics", {"a": 1}, "see docs/observability.md", {}),
)

RESPONSES: tuple[RequestField, ...] = (
    *honoured(_OPENAI, _RESPONSES, model="tgi", input="Hi", instructions="Hi", max_output_tokens=4, stream=True),
    *honoured(
        _OPENAI, _RESPONSES, temperature=0.5, top_p=0.9, tools=[{"type": "function", "name": "f", "parameters": ARGUMENTS}]
    ),
    *honoured(_OPENAI, _RESPONSES, tool_choice="auto", parallel_tool_calls=False),
    RequestField(
        "text",
        _OPENAI,
        _RESPONSES,
        Treatment.HONOURED,
        {"format": {"type": "json_object"}},
        "`verbosity` is ignored, with a warning",
    ),
    RequestField(
        "reasoning",
        _OPENAI,
        _RESPONSES,
        Treatment.HONOURED,
        {"effort": "low"},
        "reasoning is not summarized: `summary` is ignored, with a warning",
    ),
    RequestField(
        "include",
        _OPENAI,
        _RESPONSES,
        Treatment.HONOURED,
        [],
        "no value has an effect; log probabilities are refused, others ignored",
    ),
    refused(_OPENAI, _RESPONSES, "previous_response_id", "resp_1", "nothing is stored; send the whole conversation as `input`"),
    refused(_OPENAI, _RESPONSES, "conversation", "conv_1", "nothing is stored; send the whole conversation as `input`"),
    refused(_OPENAI, _RESPONSES, "background", True, "nothing is stored; wait for the response", False),
    refused(_OPENAI, _RESPONSES, "prompt", {"id": "pmpt_1"}, "nothing is stored; send `instructions` and `input`"),
    refused(_OPENAI, _RESPONSES, "truncation", "auto", "shorten the `input`", "disabled"),
    refused(_OPENAI, _RESPONSES, "top_logprobs", 2, "/v1/chat/completions returns log probabilities", 0),
    refused(_OPENAI, _RESPONSES, "moderation", {"model": "m"}, "the server does not moderate"),
    ignored(_OPENAI, _RESPONSES, "store", True, _KEPT, False),
    ignored(_OPENAI, _RESPONSES, "metadata", {"a": "b"}, _KEPT, {}),
    ignored(_OPENAI, _RESPONSES, "user", "u-1", "clients are distinguished by their keys and addresses"),
    ignored(_OPENAI, _RESPONSES, "safety_identifier", "u-1", _KEPT),
    ignored(_OPENAI, _RESPONSES, "prompt_cache_key", "k", "prompts are cached by their tokens; see `x-cache-salt`"),
    ignored(_OPENAI, _RESPONSES, "prompt_cache_retention", "24h", "prompts stay cached while memory lasts", "in_memory"),
    ignored(_OPENAI, _RESPONSES, "prompt_cache_options", {"ttl": "30m"}, "prompts are cached by their tokens", {}),
    ignored(_OPENAI, _RESPONSES, "service_tier", "flex", "see `x-request-priority`", "auto", "default"),
    ignored(_OPENAI, _RESPONSES, "max_tool_calls", 2, "limits built-in tools, which the server does not have"),
    ignored(_OPENAI, _RESPONSES, "context_management", [{"type": "compaction"}], "nothing is compacted", []),
    ignored(
        _OPENAI,
        _RESPONSES,
        "stream_options",
        {"include_obfuscation": True},
        "nothing is obfuscated",
        {"include_obfuscation": False},
        {},
    ),
)

OF_MESSAGES, OF_RESPONSES = others(MESSAGES, _MESSAGES), others(RESPONSES, _RESPONSES)
"""Fields that are not honoured, by name."""
