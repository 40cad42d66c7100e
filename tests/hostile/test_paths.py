"""Names that clients give are looked up, never opened."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from tests.hostile.server import ServerUnderTest

ROOT = Path(__file__).parents[2]
NAMES = [
    "../../../../etc/passwd", "/etc/passwd", "....//....//etc/passwd", "..\\..\\windows\\win.ini", "C:\\windows\\win.ini",
    "\\\\127.0.0.1\\share\\x",
    "//127.0.0.1/share", "file:///etc/passwd", "%2e%2e%2fetc%2fpasswd", "..%252f..%252fetc%252fpasswd", "..%c0%af..%c0%afetc",
    "x\0.safetensors",
    "/proc/self/environ", "/dev/stdin", "~/.ssh/id_rsa", "$HOME/x", "`id`", "$(id)", "; id", "| id", "x\nlora_b", "nul", "con.txt", ".",
    "..", "/", "",
    "x" * 256, "x" * 4096, "../" * 1000, "a/b@refs/pr/1", "tgi-core/../../x", "\u202e../x", "．．／etc／passwd", "{{7*7}}",
    "%s%n", "a,b=c@d",
]  # fmt: skip


def carriers(name: str) -> list[tuple[str, dict[str, Any]]]:
    """Every field and path that can name an adapter or a model."""
    parameters = {"max_new_tokens": 1, "adapter_id": name}
    chat = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1, "model": name}
    infer = {"id": name, "inputs": [{"name": name, "data": ["Hi"]}], "outputs": [{"name": name}], "parameters": parameters}
    asked: list[tuple[str, dict[str, Any]]] = [
        ("/generate", {"inputs": "Hi", "parameters": parameters}), ("/", {"inputs": "Hi", "parameters": parameters}),
        ("/generate_stream", {"inputs": "Hi", "parameters": parameters}), ("/invocations", {"inputs": "Hi", "parameters": parameters}),
        ("/vertex", {"instances": [{"inputs": "Hi", "parameters": parameters}]}), ("/v1/chat/completions", chat),
        ("/v1/completions", {"prompt": "Hi", "max_tokens": 1, "model": name}), ("/chat_tokenize", chat), ("/v2/models/m/infer", infer),
        ("/v1/load_lora_adapter", {"lora_name": name, "lora_path": name}), ("/v1/unload_lora_adapter", {"lora_name": name}),
    ]  # fmt: skip
    if 0 < len(name) <= 300:
        asked += [(f"/v2/models/{quote(name, safe='')}/infer", infer), (f"/v1/models/{quote(name, safe='')}", {})]
    return asked


@pytest.mark.parametrize("name", NAMES, ids=range(len(NAMES)))
def test_names_are_no_paths(instance: ServerUnderTest, name: str) -> None:
    """A name that nobody knows means the base model or is refused; no file is opened for it, and nobody is called."""
    with instance.watch.watching(instance.served.address) as watch:
        for path, body in carriers(name):
            answer = instance.client.post(path, json=body)
            assert answer.status_code in (200, 404, 405, 422), (path, answer.status_code, answer.text[:200])
        for path in (f"/v1/models/{quote(name, safe='')}", f"/{quote(name)}", f"/docs/{quote(name)}"):
            if len(path) < 4000:
                assert instance.client.get(path).status_code in (200, 404, 405)
        known = (sys.prefix, sys.base_prefix, str(ROOT), os.devnull)  # a template's child process may just be started
        opened = [file for file in watch.files if not file.startswith(known)]
        assert opened == [] and watch.connections == []
        assert not [file for file in watch.files if len(name) > 3 and name.strip("./") in file]
