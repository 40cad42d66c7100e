"""Fields of the request bodies of OpenAI, vLLM and SGLang, and how each is handled on the routes under /v1.

A field that changes the response is honoured or refused: if it were dropped silently, the client would get something other than it
asked for. A field that does not is ignored, with its name in the response header `x-warning`; so is an unknown name, which may be
misspelt. docs/request-fields.md and its tests are generated from this table.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from tgi_router.bodies import FurtherSampling
from tgi_router.errors import ValidationFailed

WARNING = "x-warning"
"""Response header that names what a request asked for and did not get."""

_SHOWN = 8
"""Maximum number of fields that a warning names."""
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,40}", re.ASCII)


class Treatment(Enum):
    """How a field is handled."""

    HONOURED = "honoured"
    REFUSED = "refused"
    IGNORED = "ignored, with a warning"


class Route(Enum):
    """The routes that have a field."""

    CHAT = "chat"
    COMPLETIONS = "completions"
    BOTH = "both"
    MESSAGES = "messages"
    RESPONSES = "responses"


@dataclass(frozen=True, slots=True)
class RequestField:
    """One field. `sample` is a value that asks for something; `neutral` are values, besides null, that ask for nothing."""

    name: str
    origin: str
    route: Route
    treatment: Treatment
    sample: Any
    note: str = ""
    neutral: tuple[Any, ...] = ()

    def asks(self, value: object) -> bool:
        """Whether a value asks for something."""
        return value is not None and not any(value == each and type(value) is type(each) for each in self.neutral)


_TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}
_SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
_PREDICTION = {"type": "content", "content": "x"}
_GRAMMAR = 'root ::= "a" | "b"'
_MESSAGES = [{"role": "user", "content": "Hi"}]


def honoured(origin: str, route: Route, **samples: Any) -> Iterator[RequestField]:
    """Yield fields that are honoured, each with its sample."""
    return (RequestField(name, origin, route, Treatment.HONOURED, sample) for name, sample in samples.items())


def refused(origin: str, route: Route, name: str, sample: Any, note: str, *neutral: Any) -> RequestField:
    """Return a field that is refused."""
    return RequestField(name, origin, route, Treatment.REFUSED, sample, note, neutral)


def ignored(origin: str, route: Route, name: str, sample: Any, note: str, *neutral: Any) -> RequestField:
    """Return a field that is ignored."""
    return RequestField(name, origin, route, Treatment.IGNORED, sample, note, neutral)


_CHAT, _COMPLETIONS, _BOTH = Route.CHAT, Route.COMPLETIONS, Route.BOTH
_TEMPLATE = "the server's own chat template is used"
_KEPT = "nothing is stored"
_FURTHER = {name: (spec.examples or [None])[0] for name, spec in FurtherSampling.model_fields.items()}

FIELDS: tuple[RequestField, ...] = (
    *honoured("OpenAI", _BOTH, model="tgi", max_tokens=4, temperature=0.5, top_p=0.9, seed=1, stop=["x"], n=2, stream=True),
    *honoured("OpenAI", _BOTH, max_completion_tokens=4, frequency_penalty=0.5, presence_penalty=0.5, logit_bias={"5": 1}),
    *honoured("OpenAI", _CHAT, messages=_MESSAGES, logprobs=True, top_logprobs=2, tools=[_TOOL]),
    *honoured("OpenAI", _CHAT, tool_choice="auto", parallel_tool_calls=False, response_format={"type": "json_object"}),
    *honoured("OpenAI", _CHAT, reasoning_effort="low"),
    *honoured("OpenAI", _BOTH, stream_options={"include_usage": True}),
    *honoured("OpenAI", _COMPLETIONS, prompt="Hi", logprobs=2, echo=True, best_of=2),
    refused("OpenAI", _COMPLETIONS, "suffix", "x", "put it into the prompt in the format of the model"),
    refused("OpenAI", _CHAT, "functions", [{"name": "f"}], "use `tools`", []),
    refused("OpenAI", _CHAT, "function_call", "auto", "use `tool_choice`", "none"),
    refused("OpenAI", _CHAT, "modalities", ["text", "audio"], "the response is text", ["text"]),
    refused("OpenAI", _CHAT, "audio", {"voice": "alloy", "format": "wav"}, "the response is text"),
    refused("OpenAI", _CHAT, "web_search_options", {}, "the server does not search the web"),
    ignored("OpenAI", _BOTH, "user", "u-1", "clients are distinguished by their keys and addresses"),
    ignored("OpenAI", _CHAT, "safety_identifier", "u-1", _KEPT),
    ignored("OpenAI", _CHAT, "metadata", {"a": "b"}, _KEPT, {}),
    ignored("OpenAI", _CHAT, "store", True, _KEPT, False),
    RequestField(
        "prediction", "OpenAI", _CHAT, Treatment.HONOURED, _PREDICTION, "ignored, with a warning, without `--speculate`"
    ),
    ignored("OpenAI", _CHAT, "prompt_cache_key", "k", "prompts are cached by their tokens; see `x-cache-salt`"),
    ignored("OpenAI", _CHAT, "prompt_cache_retention", "24h", "prompts stay cached while memory lasts", "in_memory"),
    ignored("OpenAI", _CHAT, "service_tier", "flex", "see `x-request-priority`", "auto", "default"),
    ignored("OpenAI", _CHAT, "verbosity", "low", "ask for it in the prompt", "medium"),
    *honoured("vLLM, SGLang", _BOTH, top_k=5, **_FURTHER, repetition_penalty=1.1, ignore_eos=True),
    RequestField("min_tokens", "vLLM, SGLang", _BOTH, Treatment.HONOURED, 1, "not together with a grammar"),
    *honoured("vLLM, SGLang", _BOTH, stop_token_ids=[5], skip_special_tokens=False),
    RequestField("prompt_logprobs", "vLLM", _BOTH, Treatment.HONOURED, 0, "0 only, the prompt's own tokens"),
    *honoured("vLLM", _BOTH, truncate_prompt_tokens=2),
    *honoured("vLLM, SGLang", _CHAT, chat_template_kwargs={"enable_thinking": False}),
    *honoured("vLLM", _BOTH, guided_json=_SCHEMA, guided_regex="a+", guided_choice=["yes", "no"]),
    *honoured("vLLM", _BOTH, structured_outputs={"regex": "a+"}),
    *honoured("SGLang", _BOTH, regex="a+"),
    RequestField("guided_grammar", "vLLM", _BOTH, Treatment.HONOURED, _GRAMMAR, "GBNF or Lark, at most 400 rules"),
    RequestField("ebnf", "SGLang", _BOTH, Treatment.HONOURED, _GRAMMAR, "GBNF or Lark, at most 400 rules"),
    refused("vLLM", _BOTH, "include_stop_str_in_output", True, "/generate keeps the stop string", False),
    refused("SGLang", _BOTH, "no_stop_trim", True, "/generate keeps the stop string", False),
    refused("vLLM", _BOTH, "allowed_token_ids", [5], "use `logit_bias`", []),
    refused("vLLM", _BOTH, "bad_words", ["x"], "use `logit_bias`", []),
    refused("vLLM", _BOTH, "use_beam_search", True, "use `n`, or `best_of` of /v1/completions", False),
    refused("vLLM", _BOTH, "logits_processors", ["x"], "code from requests is never run", []),
    refused("SGLang", _BOTH, "custom_logit_processor", "x", "code from requests is never run"),
    refused("vLLM", _CHAT, "chat_template", "x", _TEMPLATE),
    refused("vLLM", _CHAT, "documents", [{"text": "x"}], "put them into a message", []),
    refused("vLLM", _CHAT, "echo", True, "only /v1/completions has it", False),
    refused("vLLM", _CHAT, "add_generation_prompt", False, "a final assistant message is continued", True),
    ignored("vLLM", _CHAT, "continue_final_message", True, "a final assistant message is always continued", False),
    refused("vLLM", _BOTH, "add_special_tokens", True, "the chat template or the tokenizer adds them"),
    refused("SGLang", _BOTH, "lora_path", "a", "adapters are selected by `model`"),
    refused("SGLang", _BOTH, "return_hidden_states", True, "hidden states are not returned", False),
    refused("vLLM", _BOTH, "return_token_ids", True, "/generate returns the ids with `details`", False),
    refused("vLLM", _BOTH, "return_tokens_as_token_ids", True, "/generate returns the ids with `details`", False),
    ignored("vLLM", _BOTH, "priority", 1, "see `x-request-priority`", 0),
    ignored("vLLM", _BOTH, "request_id", "r-1", "see `x-request-id`"),
    ignored("SGLang", _BOTH, "rid", "r-1", "see `x-request-id`"),
    ignored("vLLM", _BOTH, "cache_salt", "s", "see `x-cache-salt`"),
    ignored("vLLM", _BOTH, "length_penalty", 1.5, "only for beam search", 1.0, 1),
    ignored("vLLM", _BOTH, "spaces_between_special_tokens", False, "nothing is put between special tokens", True),
    ignored("vLLM", _BOTH, "guided_decoding_backend", "xgrammar", "grammars are compiled by llguidance"),
    ignored("vLLM", _BOTH, "guided_whitespace_pattern", " ", "at most one space, as in TGI"),
    ignored("vLLM", _CHAT, "include_reasoning", True, "reasoning is not separated from the answer", False),
    ignored("SGLang", _CHAT, "separate_reasoning", True, "reasoning is not separated from the answer", False),
    ignored("SGLang", _CHAT, "stream_reasoning", True, "reasoning is not separated from the answer", False),
    ignored("vLLM", _CHAT, "mm_processor_kwargs", {"a": 1}, "the server decodes images in its own way", {}),
    ignored("vLLM", _CHAT, "media_io_kwargs", {"a": {}}, "only text input is supported", {}),
    ignored("vLLM", _BOTH, "kv_transfer_params", {"a": 1}, "KV cache transfer is not supported", {}),
    ignored("vLLM", _BOTH, "vllm_xargs", {"a": 1}, "for extensions of vLLM", {}),
)


def others(fields: Iterable[RequestField], route: Route) -> Mapping[str, RequestField]:
    """Return the fields of a route that are not honoured, by name."""
    return {each.name: each for each in fields if each.route in (route, _BOTH) and each.treatment is not Treatment.HONOURED}


OTHERS: Mapping[Route, Mapping[str, RequestField]] = {route: others(FIELDS, route) for route in (_CHAT, _COMPLETIONS)}


def unhonoured(known: Mapping[str, RequestField], given: Mapping[str, Any]) -> list[str]:
    """Return the fields in `given`, those that the body's type does not have, that are ignored. `known` are the fields of the route that
    are not honoured. Raises ValidationFailed for one that is refused."""
    dropped = []
    for name, value in given.items():
        field = known.get(name)
        if field is None:
            if value is not None:
                dropped.append(name)
        elif field.asks(value):
            if field.treatment is Treatment.REFUSED:
                raise ValidationFailed(f"`{name}` is not supported; {field.note}")
            dropped.append(name)
    return dropped


def warning(dropped: Iterable[str]) -> dict[str, str]:
    """Return the header that names ignored fields. Invalid names are counted, not repeated."""
    names = list(dropped)
    shown = [name for name in names if _NAME.fullmatch(name)][:_SHOWN]
    rest = len(names) - len(shown)
    texts = [*shown, *([f"{rest} more"] if rest else [])]
    return {WARNING: f"ignored fields: {', '.join(texts)}"} if names else {}


def table(fields: Iterable[RequestField]) -> str:
    """Return the table for the documentation, in Markdown."""
    head = ["| field | of | route | | |", "|---|---|---|---|---|"]
    rows = [f"| `{each.name}` | {each.origin} | {each.route.value} | {each.treatment.value} | {each.note} |" for each in fields]
    return "\n".join([*head, *rows]) + "\n"
