"""Example bodies for the OpenAPI document, by title. Short, so that the bundled demo model completes each of them at once."""

from __future__ import annotations

from typing import Any

Examples = dict[str, Any]

_INPUTS = "My name is Olivier and I"
_QUESTION = {"role": "user", "content": "What is Deep Learning?"}
_PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 8}, "age": {"type": "integer", "minimum": 0, "maximum": 99}},
    "required": ["name", "age"],
}
_WEATHER: Examples = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather in a city",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "maxLength": 12}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}

GENERATE: Examples = {
    "A few tokens": {"inputs": _INPUTS, "parameters": {"max_new_tokens": 20}},
    "Sampled, with details": {
        "inputs": _INPUTS,
        "parameters": {"max_new_tokens": 20, "temperature": 0.5, "top_p": 0.95, "seed": 42, "details": True},
    },
    "With a stop string": {"inputs": _INPUTS, "parameters": {"max_new_tokens": 20, "stop": ["."]}},
    "Constrained by a regular expression": {
        "inputs": "The year is ",
        "parameters": {"max_new_tokens": 20, "grammar": {"type": "regex", "value": "[12][0-9]{3}"}},
    },
}

STREAM: Examples = {"A few tokens": GENERATE["A few tokens"], "Sampled, with details": GENERATE["Sampled, with details"]}

COMPAT: Examples = {
    "Whole": {"inputs": _INPUTS, "parameters": {"max_new_tokens": 20, "return_full_text": False}},
    "As a stream": {"inputs": _INPUTS, "parameters": {"max_new_tokens": 20}, "stream": True},
}

TOKENIZE: Examples = {"A text": {"inputs": _INPUTS}}

CHAT: Examples = {
    "A question": {"model": "tgi", "messages": [_QUESTION], "max_tokens": 32},
    "As a stream": {
        "model": "tgi",
        "messages": [{"role": "system", "content": "You are brief."}, _QUESTION],
        "max_tokens": 32,
        "stream": True,
        "stream_options": {"include_usage": True},
    },
    "Constrained by a JSON Schema": {
        "model": "tgi",
        "messages": [{"role": "user", "content": "Who are you?"}],
        "max_tokens": 64,
        "response_format": {"type": "json_schema", "json_schema": {"name": "person", "schema": _PERSON}},
    },
    "With a tool call": {
        "model": "tgi",
        "messages": [{"role": "user", "content": "How is the weather in Paris?"}],
        "max_tokens": 64,
        "tools": [_WEATHER],
        "tool_choice": {"type": "function", "function": {"name": "weather"}},
    },
}

CHAT_TOKENIZE: Examples = {"A question": {"messages": [_QUESTION]}}

COMPLETIONS: Examples = {
    "One prompt": {"model": "tgi", "prompt": _INPUTS, "max_tokens": 20},
    "Two prompts, with log probabilities": {
        "model": "tgi",
        "prompt": [_INPUTS, "Deep Learning is"],
        "max_tokens": 8,
        "temperature": 0,
        "logprobs": 1,
    },
    "As a stream": {"model": "tgi", "prompt": _INPUTS, "max_tokens": 20, "stream": True},
}

INVOCATIONS: Examples = {
    "A native request": COMPAT["Whole"],
    "A chat": CHAT["A question"],
    "A completion": COMPLETIONS["One prompt"],
}

VERTEX: Examples = {
    "A native request and a chat": {
        "instances": [{"inputs": _INPUTS}, {"messages": [_QUESTION], "max_tokens": 20}],
        "parameters": {"max_new_tokens": 20},
    }
}

INFER: Examples = {
    "As text": {
        "id": "42",
        "parameters": {"max_new_tokens": 20},
        "inputs": [{"name": "prompt", "shape": [1], "datatype": "BYTES", "data": [_INPUTS]}],
        "outputs": [{"name": "text"}],
    },
    "As bytes": {
        "parameters": {"max_new_tokens": 20},
        "inputs": [{"name": "prompt", "shape": [1], "datatype": "BYTES", "data": list(b"Hello")}],
        "outputs": [{"name": "text"}],
    },
}

_TOOL = {"name": "weather", "description": "The weather in a city", "input_schema": _WEATHER["function"]["parameters"]}

MESSAGES: Examples = {
    "A question": {"model": "tgi", "max_tokens": 32, "messages": [_QUESTION]},
    "As a stream": {"model": "tgi", "max_tokens": 32, "system": "You are brief.", "messages": [_QUESTION], "stream": True},
    "Constrained by a JSON Schema": {
        "model": "tgi",
        "max_tokens": 64,
        "messages": [{"role": "user", "content": "Who are you?"}],
        "output_config": {"format": {"type": "json_schema", "schema": _PERSON}},
    },
    "With a tool that must be used": {
        "model": "tgi",
        "max_tokens": 64,
        "messages": [{"role": "user", "content": "How is the weather in Paris?"}],
        "tools": [_TOOL],
        "tool_choice": {"type": "tool", "name": "weather"},
    },
}

COUNT_TOKENS: Examples = {"A question": {"model": "tgi", "messages": [_QUESTION]}}

_FUNCTION = {"type": "function", **_WEATHER["function"]}

RESPONSES: Examples = {
    "A question": {"model": "tgi", "input": "What is Deep Learning?", "max_output_tokens": 32},
    "As a stream": {
        "model": "tgi",
        "instructions": "You are brief.",
        "input": [_QUESTION],
        "max_output_tokens": 32,
        "stream": True,
    },
    "Constrained by a JSON Schema": {
        "model": "tgi",
        "input": "Who are you?",
        "max_output_tokens": 64,
        "text": {"format": {"type": "json_schema", "name": "person", "schema": _PERSON}},
    },
    "With a function that must be called": {
        "model": "tgi",
        "input": "How is the weather in Paris?",
        "max_output_tokens": 64,
        "tools": [_FUNCTION],
        "tool_choice": {"type": "function", "name": "weather"},
    },
}
