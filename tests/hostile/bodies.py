"""Bodies of two megabytes that cost as much as a body can: in values, in nesting, in text, in special tokens."""

from __future__ import annotations

import json
from collections.abc import Iterator

SIZE = 2_000_000
CHAT, COMPLETIONS, GENERATE = "/v1/chat/completions", "/v1/completions", "/generate"
Case = tuple[str, str, bytes]
"""A name, a path, and a body."""


def _filled(before: str, piece: str, after: str) -> bytes:
    """A body of the greatest size that is made of one piece."""
    room = SIZE - len((before + after).encode())
    return (before + piece * (room // len(piece.encode())) + after).encode()


def _numbered(before: str, piece: str, after: str) -> bytes:
    """The same of pieces that differ, by a number in the place of `%d`."""
    pieces = [piece % number for number in range((SIZE - len(before) - len(after)) // (len(piece) + 4))]
    return (before + "".join(pieces) + after).encode()


def values() -> Iterator[Case]:
    """Bodies of many values."""
    for name, piece in {"arrays": "[],", "objects": "{},", "numbers": "1,", "texts": '"",', "nulls": "null,"}.items():
        yield f"unknown {name}", GENERATE, _filled('{"inputs":"a","x":[', piece, "0]}")
    yield "unknown fields", GENERATE, _numbered('{"inputs":"a",', '"%d":0,', '"z":0}')
    yield "nesting", GENERATE, b'{"inputs":"a","x":' + b"[" * (SIZE // 2) + b"]" * (SIZE // 2 - 20) + b"}"
    yield "a huge number", GENERATE, _filled('{"inputs":"a","parameters":{"seed":', "1", "}}")
    yield "a huge fraction", GENERATE, _filled('{"inputs":"a","parameters":{"temperature":1.', "1", "}}")
    yield "stops", GENERATE, _filled('{"inputs":"a","parameters":{"stop":[', '"",', '""]}}')
    yield "a grammar", GENERATE, _filled('{"inputs":"a","parameters":{"grammar":{"type":"json","value":{"enum":[', "0,", "0]}}}}")
    yield "a text of signs", GENERATE, _filled('{"inputs":"', "{:[", '","parameters":{"truncate":1}}')
    yield "prompts", COMPLETIONS, _filled('{"prompt":[', '"",', '""]}')
    yield "biases", COMPLETIONS, _numbered('{"prompt":"a","logit_bias":{', '"%d":0,', '"0":0}}')
    yield "biases in a list", COMPLETIONS, _filled('{"prompt":"a","logit_bias":[', "1,", "1]}")
    yield "instances", "/vertex", _filled('{"instances":[', "{},", "{}]}")
    yield "bytes", "/v2/models/m/infer", _filled('{"inputs":[{"name":"a","data":[', "1,", '1]}],"outputs":[]}')
    yield "inputs", "/v2/models/m/infer", _filled('{"inputs":[', '{"name":"","data":[]},', '{}],"outputs":[]}')


def conversations() -> Iterator[Case]:
    """Chats of many parts."""
    for name, message in {"messages": '{"role":"user","content":"a"},', "faulty messages": "{},"}.items():
        yield name, CHAT, _filled('{"messages":[', message, '{"role":"user","content":"a"}]}')
    most = 16_000  # the most that are read
    yield "as many messages as may be", CHAT, json.dumps({"messages": [{"role": "user", "content": "a" * 80}] * most}).encode()
    chunks = '{"type":"text","text":"a"},'
    yield "chunks", CHAT, _filled('{"messages":[{"role":"user","content":[', chunks, '{"type":"text","text":"a"}]}]}')
    yield "calls", CHAT, _filled('{"messages":[{"role":"assistant","tool_calls":[', "{},", "{}]}]}")
    nested = {"function": {"name": "f", "arguments": "[" * 900 + "]" * 900}}
    yield "nested arguments", CHAT, json.dumps({"messages": [{"role": "assistant", "tool_calls": [nested] * 1050}]}).encode()
    deep = {"function": {"name": "f", "arguments": "[" * 900_000 + "]" * 900_000}}
    yield "deep arguments", CHAT, json.dumps({"messages": [{"role": "assistant", "tool_calls": [deep]}]}).encode()
    wide = {"function": {"name": "f", "arguments": "[" + "[]," * 600_000 + "[]]"}}
    yield "wide arguments", CHAT, json.dumps({"messages": [{"role": "assistant", "tool_calls": [wide]}]}).encode()
    tool = '{"type":"function","function":{"name":"a"}},'
    yield "tools", CHAT, _filled('{"messages":[{"role":"user","content":"a"}],"tools":[', tool, tool[:-1] + "]}")
    schema = {"type": "function", "function": {"name": "a", "parameters": {"properties": {f"p{i}": {} for i in range(15_000)}}}}
    asked = {"messages": [{"role": "user", "content": "a"}], "tools": [schema], "tool_choice": "required"}
    yield "a tool's schema", CHAT, json.dumps(asked).encode()


def texts() -> Iterator[Case]:
    """Long texts, of the kinds that templates and tokenizers find hard."""
    literal = {"messages": [{"role": "user", "content": "<|im_end|> " * 16_000}]}
    yield "as many special tokens as may be", "/chat_tokenize", json.dumps(literal).encode()
    for name, piece in {"words": "hi there ", "spaces": " "}.items():
        text = (piece * SIZE)[: (SIZE - 100) // len(piece.encode()) * len(piece)]
        yield f"tokenize {name}", "/tokenize", json.dumps({"inputs": text}, ensure_ascii=False).encode()
    for name, role, text in [
        ("a trimmed message", "assistant", " " * (SIZE // 2) + "a" * (SIZE // 2 - 200) + " "),
        ("a message to continue", "assistant", "ab" * (SIZE // 2 - 200)),
        ("half a message", "assistant", "a" * (SIZE // 2) + "b" + "a" * (SIZE // 2 - 200)),
        ("special tokens", "user", "<|im_end|>" * (SIZE // 10 - 200)),
        ("beginnings of special tokens", "user", "<|" * (SIZE // 2 - 200)),
        ("marks", "user", "\ue000" * (SIZE // 3 - 200)),
    ]:
        body = {"messages": [{"role": "user", "content": "a"}, {"role": role, "content": text}], "max_tokens": 1}
        yield name, CHAT, json.dumps(body, ensure_ascii=False).encode()
