"""A model of the hub is fetched once, at one commit, and served from the cache ever after."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
from pathlib import Path

import httpx
import pytest

from tests.hub.conftest import Run
from tests.hub.fake_hub import FakeHub, Repository, commit_of
from tests.serve.process import TGI, environment, run, served


@pytest.mark.parametrize("revision", [None, "v1", "commit"])
def test_every_request_names_the_revision(
    hub: FakeHub, tgi: Run, demo_files: dict[str, bytes], revision: str | None, tmp_path: Path
) -> None:
    """Weights, tokenizer, config and templates are all asked for by the commit that the revision had when it was looked up, once."""
    old, new = commit_of("old"), commit_of("new")
    other = dict.fromkeys(demo_files, b"{}")
    hub.repositories["o/m"] = Repository({old: demo_files, new: other}, {"main": new, "v1": old})
    if revision is None:
        hub.repositories["o/m"].references["main"] = old
    asked = old if revision == "commit" else revision
    result = tgi("download-weights", "o/m", *(["--revision", asked] if asked else []))
    directory = Path(result.stdout.strip())
    assert result.returncode == 0 and directory.name == old, result.stderr
    lookups = [item.path for item in hub.asked if item.path.startswith("/api/")]
    assert lookups == [f"/api/models/o/m/revision/{asked}" if asked else "/api/models/o/m"]
    assert {commit for commit, _ in hub.files_asked()} == {old}
    assert {"config.json", "tokenizer.json", "model.safetensors"} <= {name for _, name in hub.files_asked()}
    assert (directory / "model.safetensors").read_bytes() == demo_files["model.safetensors"]


def test_only_what_is_needed(hub: FakeHub, tgi: Run, demo_files: dict[str, bytes]) -> None:
    """Weights in other formats and folders are left on the hub."""
    unwanted = ["pytorch_model.bin", "consolidated.safetensors", "original/model.safetensors", "tf_model.h5", "onnx/config.json"]
    hub.add("o/m", demo_files | dict.fromkeys(unwanted, b"never"))
    assert tgi("download-weights", "o/m").returncode == 0
    assert not {name for _, name in hub.files_asked()} & set(unwanted)


def test_a_speculator_comes_with_its_model(hub: FakeHub, tgi: Run, demo_files: dict[str, bytes]) -> None:
    """Medusa heads have weights of another name; what they are the heads of is fetched too. Both are found again offline."""
    hub.add("o/m", demo_files)
    config = {"medusa_num_heads": 1, "medusa_num_layers": 1, "base_model_name_or_path": "o/m"}
    weights = {"medusa_lm_head.safetensors": b"heads", "medusa_lm_head.pt": b"never"}
    hub.add("o/medusa", {"config.json": json.dumps(config).encode(), **weights})
    for extra in ({}, {"HF_HUB_OFFLINE": "1"}):
        result = tgi("download-weights", "o/medusa", extra=extra)
        assert result.returncode == 0 and (Path(result.stdout.strip()) / "model.safetensors").exists(), result.stderr
    fetched = [name for _, name in hub.files_asked() if name.endswith((".safetensors", ".pt"))]
    assert sorted(set(fetched)) == ["medusa_lm_head.safetensors", "model.safetensors"]


def test_shards_come_from_the_index(hub: FakeHub, tgi: Run, demo_files: dict[str, bytes]) -> None:
    """The files that the index names are fetched; one that leads out of the directory is refused."""
    files = {name: data for name, data in demo_files.items() if name != "model.safetensors"}
    files |= {"model-1.safetensors": b"1", "model-2.safetensors": b"2", "model-3.safetensors": b"3"}
    places = {"a": "model-1.safetensors", "b": "model-2.safetensors"}
    hub.add("o/m", files | {"model.safetensors.index.json": json.dumps({"weight_map": places}).encode()})
    hub.add("o/evil", files | {"model.safetensors.index.json": b'{"weight_map": {"a": "../../evil.safetensors"}}'})
    result = tgi("download-weights", "o/m")
    assert result.returncode == 0, result.stderr
    fetched = {name for _, name in hub.files_asked() if name.endswith(".safetensors")}
    assert fetched == {"model-1.safetensors", "model-2.safetensors"}
    refused = tgi("download-weights", "o/evil")
    assert refused.returncode == 1 and "../../evil.safetensors" in refused.stderr and "Traceback" not in refused.stderr


def test_serve_by_id(hub: FakeHub, hub_environment: dict[str, str], demo_files: dict[str, bytes]) -> None:
    """`tgi serve ID --revision R` fetches and answers; /info names model and commit."""
    commit = hub.add("o/m", demo_files)
    with served("o/m", "--revision", "main", "--backend", "reference", extra=hub_environment) as server:
        info = httpx.get(f"{server.url}/info", timeout=30).json()
    assert (info["model_id"], info["model_sha"]) == ("o/m", commit)
    assert [line for line in server.lines if line.startswith("download weights of o/m: ") and "(100 %)" in line]


def test_the_second_time_without_the_hub(hub: FakeHub, tgi: Run, demo_files: dict[str, bytes]) -> None:
    """What is in the cache is found offline by branch and by commit; a hub that is down costs a warning; a commit is not looked up."""
    commit = hub.add("o/m", demo_files)
    first = tgi("download-weights", "o/m").stdout
    hub.asked.clear()
    assert tgi("download-weights", "o/m", extra={"HF_HUB_OFFLINE": "1"}).stdout == first
    assert tgi("download-weights", "o/m", "--revision", commit).stdout == first
    assert not hub.asked
    hub.fault = 503
    down = tgi("download-weights", "o/m")
    assert down.stdout == first and "returned 503" in down.stderr and commit in down.stderr
    gone = tgi("download-weights", "o/m", extra={"HF_ENDPOINT": "http://127.0.0.1:9"})
    assert gone.stdout == first and "cannot be reached" in gone.stderr


def test_the_token_and_the_cache_are_those_given(hub: FakeHub, tgi: Run, demo_files: dict[str, bytes], tmp_path: Path) -> None:
    """HF_TOKEN and TGI's HF_API_TOKEN reach the hub; --huggingface-hub-cache takes the files."""
    hub.add("o/private", demo_files, token="hf_secret")
    for variable in ("HF_TOKEN", "HF_API_TOKEN"):
        cache = tmp_path / variable
        result = tgi("download-weights", "o/private", "--huggingface-hub-cache", str(cache), extra={variable: "hf_secret"})
        assert Path(result.stdout.strip()).is_relative_to(cache), result.stderr
    assert {item.authorization for item in hub.asked} == {"Bearer hf_secret"}


def test_weights_from_another_folder(hub: FakeHub, tgi: Run, demo_files: dict[str, bytes], tmp_path: Path) -> None:
    """With --weights-cache-override the weights come from that folder, and are not fetched."""
    commit = hub.add("o/m", demo_files)
    weights = tmp_path / "weights"
    weights.mkdir()
    (weights / "model.safetensors").write_bytes(b"mine")
    result = tgi("download-weights", "o/m", "--weights-cache-override", str(weights))
    directory = Path(result.stdout.strip())
    assert directory.name == commit and (directory / "config.json").read_bytes() == demo_files["config.json"], result.stderr
    assert (directory / "model.safetensors").read_bytes() == b"mine"
    assert "model.safetensors" not in {name for _, name in hub.files_asked()}


def test_progress_on_a_terminal(hub: FakeHub, hub_environment: dict[str, str], demo_files: dict[str, bytes]) -> None:
    """A bar where standard error is a terminal; elsewhere plain lines without control characters, as in the other tests."""
    hub.add("o/m", demo_files)
    mine, theirs = pty.openpty()
    extra = environment(hub_environment) | {"TERM": "xterm", "COLUMNS": "120"}
    with subprocess.Popen([*TGI, "download-weights", "o/m"], stderr=theirs, stdout=subprocess.DEVNULL, env=extra) as child:
        os.close(theirs)
        text = b"".join(iter(lambda: read_terminal(mine), b"")).decode()
    os.close(mine)
    assert child.returncode == 0 and "download weights of o/m" in text and "\x1b[" in text and "━" in text, text


def read_terminal(terminal: int) -> bytes:
    """What was written; nothing once the other side is closed, which Linux reports as an error."""
    try:
        return os.read(terminal, 65536)
    except OSError:
        return b""


def test_an_interrupt_ends_a_download(hub: FakeHub, hub_environment: dict[str, str], demo_files: dict[str, bytes]) -> None:
    """Ctrl-C is not kept waiting by a file that does not arrive; the next run completes the model."""
    hub.add("o/m", demo_files)
    hub.stall = "model.safetensors"
    command = [*TGI, "serve", "o/m", "--backend", "reference", "--hostname", "127.0.0.1", "--port", "0"]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL, env=environment(hub_environment)) as child:
        assert hub.stalled.wait(60)
        child.send_signal(signal.SIGINT)
        assert child.wait(30) == -signal.SIGINT
    hub.go_on.set()
    again = run("download-weights", "o/m", extra=hub_environment)
    assert (Path(again.stdout.strip()) / "model.safetensors").read_bytes() == demo_files["model.safetensors"], again.stderr
