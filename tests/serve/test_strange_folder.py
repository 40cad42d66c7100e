"""Whatever is run in a model's folder, no code of that folder runs."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.serve.process import TGI, environment, free_port, served
from tgi_core.model_files import DEMO

BIN = Path(sys.executable).parent
MODEL = ("config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json")
INSTALLED = (
    "click", "fastapi", "fastapi_offline", "google", "grpc", "httptools", "jinja2", "llguidance", "numpy", "pluggy", "prometheus_client",
    "pydantic", "rich", "safetensors", "starlette", "tgi_backend_cpu", "tgi_conformance", "tgi_core", "tgi_router", "tokenizers", "torch",
    "transformers", "triton", "uvicorn", "sitecustomize", "usercustomize",
)  # fmt: skip

COMMANDS = {
    "serve, with a model that is missing": ("tgi", "serve", "missing", "--backend", "reference"),
    "backends": ("tgi", "backends"),
    "config": ("tgi", "config"),
    "download-weights": ("tgi", "download-weights", "."),
    "conversion": ("tgi", "download-weights", "pickled", "--auto-convert"),
    "shard": ("tgi", "shard", "missing", "--uds-path", "socket"),
    "router": ("tgi", "router", ".", "--shard", "unix:/missing/socket"),
    "launcher": ("text-generation-launcher", "--model-id", "missing"),
    "print-schema": ("text-generation-router", "print-schema"),
    "server": ("text-generation-server", "download-weights", "."),
    "conformance": ("tgi-conformance", "run", "--backend", "reference", "--level", "L0"),
    "conformance, ranks": ("tgi-conformance", "run", "--backend", "cpu", "--only", "ranks.refusal", "--effort", "0.1"),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demo model, beside files with the names of all modules there are, each of which leaves a trace when it is run."""
    import torch

    folder = tmp_path_factory.mktemp("strange")
    for name in MODEL:
        (folder / name).symlink_to(DEMO / name)
    trap = f"import os\nos.close(os.open({str(folder / 'SPRUNG')!r} + __name__, os.O_CREAT | os.O_WRONLY))\n"
    for name in {*sys.stdlib_module_names, *INSTALLED}:
        (folder / f"{name}.py").write_text(trap)
    (folder / "pickled").mkdir()
    for name in MODEL:
        if name != "model.safetensors":
            (folder / "pickled" / name).symlink_to(DEMO / name)
    torch.save({"weight": torch.ones(2)}, folder / "pickled" / "pytorch_model.bin")
    return folder


@pytest.fixture(autouse=True)
def unsprung(folder: Path) -> Iterator[None]:
    """No trap has been sprung."""
    for trace in folder.glob("SPRUNG*"):
        trace.unlink()
    yield
    assert [path.name for path in folder.glob("SPRUNG*")] == []


@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS)
def test_commands(folder: Path, tmp_path: Path, command: tuple[str, ...]) -> None:
    """Each command and every process that it starts take their modules from the installation alone."""
    cache = {"HF_HOME": str(tmp_path / "hub"), "PORT": str(free_port())}
    program, *arguments = command
    kept = {name: value for name, value in environment(cache).items() if name != "PYTHONPATH"}
    result = subprocess.run(
        [str(BIN / program), *arguments], cwd=folder, capture_output=True, text=True, timeout=280, env=kept, check=False
    )
    assert "Traceback" not in result.stderr and "No such command" not in result.stderr, result.stderr
    assert "No such option" not in result.stderr, result.stderr


def test_a_server(folder: Path) -> None:
    """So does a server with all of its processes: its shard, those that render templates, tokenize, and try grammars."""
    assert "PYTHONPATH" not in os.environ
    with served(".", cwd=folder, tgi=TGI) as server, httpx.Client(base_url=server.url, timeout=60) as client:
        chat = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 3, "response_format": {"type": "json_object"}}
        assert client.post("/v1/chat/completions", json=chat).status_code == 200
        assert client.post("/tokenize", json={"inputs": "word " * 2000}).status_code == 200
        assert client.get("/health").status_code == 200
