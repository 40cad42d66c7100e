"""Adapters of the hub: fetched once, each at one commit, and found without the hub ever after."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import httpx
import pytest
import torch
from safetensors.torch import load_file, save

from tests.hub.conftest import Run
from tests.hub.fake_hub import FakeHub, Repository, commit_of
from tests.hub.test_offline import connections
from tests.serve.process import ServerProcess, environment, served
from tgi_core.engine.weights.headers import read_header
from tgi_core.model_files import DEMO

CONFIG = b'{"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": 2, "lora_alpha": 64}'
Q = "base_model.model.model.layers.0.self_attn.q_proj"


@pytest.fixture(scope="module")
def files() -> dict[str, bytes]:
    """A small adapter of the demo model, and what repositories have besides."""
    outputs, inputs = read_header(DEMO / "model.safetensors")[f"{Q.removeprefix('base_model.model.')}.weight"].shape
    generator = torch.Generator().manual_seed(0)
    tensors = {
        f"{Q}.lora_A.weight": torch.randn(2, inputs, generator=generator),
        f"{Q}.lora_B.weight": torch.randn(outputs, 2, generator=generator),
    }
    return {
        "adapter_config.json": CONFIG,
        "adapter_model.safetensors": save(tensors),
        "README.md": b"never",
        "tokenizer.json": b"no",
    }


def failed(tgi: Run, *arguments: str, extra: dict[str, str] | None = None) -> str:
    """The last line of a command that does not start."""
    result = tgi("download-weights", str(DEMO), "--lora-adapters", *arguments, extra=extra)
    assert result.returncode == 1 and "Traceback" not in result.stderr, result.stderr
    return result.stderr.strip().splitlines()[-1]


def test_each_is_taken_at_one_commit(hub: FakeHub, tgi: Run, files: dict[str, bytes]) -> None:
    """Only config and weights are fetched, by the commit that the revision had when it was looked up, once."""
    old, new = commit_of("old"), commit_of("new")
    hub.repositories["o/a"] = Repository({old: files, new: files | {"adapter_config.json": b"{}"}}, {"main": new, "v1": old})
    hub.add("o/b", files)
    result = tgi("download-weights", str(DEMO), "--lora-adapters", "o/a@v1,short=o/b")
    assert result.returncode == 0 and result.stdout.strip() == str(DEMO), result.stderr
    assert [item.path for item in hub.asked if item.path.startswith("/api/")] == [
        "/api/models/o/a/revision/v1",
        "/api/models/o/b",
    ]
    names = ("adapter_config.json", "adapter_model.safetensors")
    assert set(hub.files_asked()) == {(commit, name) for commit in (old, commit_of("o/b")) for name in names}


def test_a_pinned_list_asks_nobody(hub: FakeHub, tgi: Run, hub_environment: dict[str, str], files: dict[str, bytes]) -> None:
    """A shard that is started again gets the commits of the first start, whatever the hub has by then, and asks for nothing."""
    commit = hub.add("o/a", files)
    code = (
        "from tgi_core.cli.weights import pin_adapters; from tgi_core.config import Settings\n"
        "settings = Settings(lora_adapters='o/a,x=o/a@main')\n"
        "print(pin_adapters(settings, lambda *_: None).lora_adapters)"
    )
    command = [sys.executable, "-c", code]
    pinned = subprocess.run(command, capture_output=True, text=True, env=environment(hub_environment), check=True).stdout.strip()
    assert pinned == f"o/a@{commit},x=o/a@{commit}"
    hub.asked.clear()
    hub.repositories["o/a"].references["main"] = commit_of("newer")
    assert tgi("download-weights", str(DEMO), "--lora-adapters", pinned).returncode == 0
    assert not hub.asked


def test_served_without_the_hub(
    hub: FakeHub, tgi: Run, hub_environment: dict[str, str], watched: dict[str, str], files: dict[str, bytes], tmp_path: Path
) -> None:
    """Fetched by `tgi download-weights`, then served offline without any connection, beside one from a directory: requests that name
    them get other answers than the model's, each its own."""
    hub.add("o/a", files)
    folder = tmp_path / "own"
    folder.mkdir()
    (folder / "adapter_config.json").write_bytes(CONFIG.replace(b"64", b"-48"))
    (folder / "adapter_model.safetensors").write_bytes(files["adapter_model.safetensors"])
    assert tgi("download-weights", str(DEMO), "--lora-adapters", "o/a").returncode == 0
    hub.asked.clear()
    extra = hub_environment | watched | {"HF_HUB_OFFLINE": "1", "LORA_ADAPTERS": f"o/a,own={folder}"}
    with served("--backend", "cpu", "--dtype", "float32", extra=extra) as server:
        texts = [answer(server, name) for name in (None, "o/a", "own", "nobody")]
        info = httpx.get(f"{server.url}/info", timeout=30).json()
    assert len(set(texts[:3])) == 3 and texts[3] == texts[0]
    assert info["adapters"] == ["o/a", "own"]
    assert any("adapters" in line for line in server.lines), server.lines
    assert not connections(watched) and not hub.asked


def answer(server: ServerProcess, name: str | None) -> str:
    """What the model says, greedily."""
    body = {"inputs": "Once upon a time", "parameters": {"adapter_id": name, "max_new_tokens": 12}}
    text: str = httpx.post(f"{server.url}/generate", json=body, timeout=60).json()["generated_text"]
    return text


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("o/empty", {"README.md": b""}, "has no adapter_config.json"),
        ("o/half", {"adapter_config.json": CONFIG}, "has no adapter_model.safetensors"),
        ("o/bin", {"adapter_config.json": CONFIG, "adapter_model.bin": b"x"}, "--auto-convert"),
    ],
)
def test_what_is_no_adapter(hub: FakeHub, tgi: Run, name: str, content: dict[str, bytes], says: str) -> None:
    """The line names the flag and the item; no weights are fetched to find out."""
    hub.add(name, content)
    line = failed(tgi, name)
    assert line.startswith(f"tgi: error: --lora-adapters {name}: ") and says in line
    assert not [file for _, file in hub.files_asked() if file.endswith((".bin", ".safetensors"))]


def test_what_the_hub_refuses(hub: FakeHub, tgi: Run, files: dict[str, bytes], tmp_path: Path) -> None:
    """Gated, missing, without that revision, out of reach, offline, or no place at all: one line each, which speaks of an adapter."""
    hub.add("o/gated", files, gated=True)
    hub.add("o/a", files)
    assert "adapter o/gated: is gated" in failed(tgi, "o/gated")
    assert "adapter o/nothing: not found" in failed(tgi, "x=o/nothing")
    assert "--lora-adapters o/a@v9: adapter o/a has no such branch" in failed(tgi, "o/a@v9")
    offline = failed(tgi, "o/a@v1", extra={"HF_HUB_OFFLINE": "1"})
    assert "adapter o/a at revision v1: not in the cache" in offline
    assert "tgi download-weights MODEL --lora-adapters o/a@v1" in offline
    hub.fault = 503
    assert "returned 503" in failed(tgi, "o/a")
    (tmp_path / "file").write_text("")
    assert "is a file" in failed(tgi, f"x={tmp_path}/file")
    assert "no such directory, and not a Hub id" in failed(tgi, "x=/no/such/directory")
    assert "a directory has no revision" in failed(tgi, f"x={tmp_path}@v1")


def test_bins_are_converted_where_that_is_allowed(
    hub: FakeHub, tgi: Run, hub_environment: dict[str, str], files: dict[str, bytes], tmp_path: Path
) -> None:
    """With --auto-convert an adapter of .bin weights has the same tensors as safetensors, beside its config."""
    (tmp_path / "tensors").write_bytes(files["adapter_model.safetensors"])
    tensors = load_file(tmp_path / "tensors")
    torch.save(tensors, tmp_path / "adapter_model.bin")
    hub.add("o/bin", {"adapter_config.json": CONFIG, "adapter_model.bin": (tmp_path / "adapter_model.bin").read_bytes()})
    result = tgi("download-weights", str(DEMO), "--lora-adapters", "o/bin", "--auto-convert")
    assert result.returncode == 0, result.stderr
    [made] = Path(hub_environment["HF_HOME"]).glob("**/tgi/snapshots/*/adapter_model.safetensors")
    assert {name: value.tolist() for name, value in load_file(made).items()} == {k: v.tolist() for k, v in tensors.items()}
    assert (made.parent / "adapter_config.json").read_bytes() == CONFIG and made.parent.name == commit_of("o/bin")
