"""What the hub refuses, or lacks, is one line that says what to do."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.hub.conftest import Run
from tests.hub.fake_hub import FakeHub


def refused(tgi: Run, names: list[str], *arguments: str, extra: dict[str, str] | None = None) -> None:
    """Exit status 1, a last line with all of `names`, no traceback, and no secret."""
    result = tgi("download-weights", *arguments, extra=extra)
    assert result.returncode == 1 and "Traceback" not in result.stderr and "hf_secret" not in result.stderr, result.stderr
    line = result.stderr.strip().splitlines()[-1]
    assert line.startswith("tgi: error: ") and not [name for name in names if name not in line], line


def test_a_gated_repository(hub: FakeHub, tgi: Run, demo_files: dict[str, bytes]) -> None:
    """Without a token it says where to ask and which variable to set; with one, that its account has no access."""
    hub.add("o/gated", demo_files, gated=True)
    refused(tgi, ["o/gated", "is gated", f"{hub.url}/o/gated", "HF_TOKEN"], "o/gated")
    refused(tgi, ["is gated", "account of HF_TOKEN"], "o/gated", extra={"HF_TOKEN": "hf_secret"})


def test_a_missing_or_private_repository(hub: FakeHub, tgi: Run, demo_files: dict[str, bytes]) -> None:
    """The hub does not tell the two apart, so the line names both remedies."""
    hub.add("o/private", demo_files, token="hf_other")
    for name in ("o/private", "o/nothing"):
        refused(tgi, [name, "not found", "check the name", "HF_TOKEN"], name, extra={"HF_TOKEN": "hf_secret"})


def test_a_missing_revision(hub: FakeHub, tgi: Run, demo_files: dict[str, bytes]) -> None:
    """The line names the flag and its value."""
    hub.add("o/m", demo_files)
    refused(tgi, ["--revision v9", "o/m"], "o/m", "--revision", "v9")


@pytest.mark.parametrize(
    ("name", "files", "says"),
    [
        ("o/bin", {"pytorch_model.bin": b"x"}, ["only .bin weights", "--auto-convert", "--revision"]),
        ("o/none", {}, ["neither model.safetensors nor model.safetensors.index.json"]),
        ("o/lora", {"adapter_config.json": b"{}", "adapter_model.safetensors": b""}, ["is an adapter"]),
        ("o/hole", {"model.safetensors.index.json": b'{"weight_map": {"a": "b.safetensors"}}'}, ["b.safetensors"]),
        ("o/bad", {"model.safetensors.index.json": b"[]"}, ["model.safetensors.index.json", "not an index"]),
    ],
)
def test_no_weights_to_serve(hub: FakeHub, tgi: Run, name: str, files: dict[str, bytes], says: list[str]) -> None:
    """What kind of repository it is, and the way out; no weights are fetched to find out."""
    hub.add(name, {"config.json": b"{}"} | files)
    refused(tgi, [name.removeprefix("o/"), *says], name)
    assert not [file for _, file in hub.files_asked() if file.endswith((".bin", ".safetensors"))]


def test_a_hub_that_cannot_be_reached(hub: FakeHub, tgi: Run) -> None:
    """Down, or not there at all: the line says so, and where the cache is that lacks the model."""
    hub.fault = 502
    refused(tgi, ["o/m", "returned 502", "not in the cache"], "o/m")
    refused(tgi, ["cannot be reached", "not in the cache"], "o/m", extra={"HF_ENDPOINT": "http://127.0.0.1:9"})


def test_offline_without_the_model(hub: FakeHub, tgi: Run, demo_files: dict[str, bytes]) -> None:
    """The line names the variable that forbids fetching, and the command to run elsewhere; nothing is asked."""
    hub.add("o/m", demo_files)
    refused(tgi, ["not in the cache", "HF_HUB_OFFLINE", "tgi download-weights o/m"], "o/m", extra={"HF_HUB_OFFLINE": "1"})
    assert not hub.asked


def test_an_interrupted_download_is_not_taken_for_a_model(hub: FakeHub, tgi: Run, demo_files: dict[str, bytes]) -> None:
    """Offline, a directory of the cache that lacks weights is called incomplete; with the hub, it is completed."""
    hub.add("o/m", demo_files)
    directory = Path(tgi("download-weights", "o/m").stdout.strip())
    (directory / "model.safetensors").unlink()
    refused(tgi, ["incomplete in the cache"], "o/m", extra={"HF_HUB_OFFLINE": "1"})
    assert tgi("download-weights", "o/m").returncode == 0 and (directory / "model.safetensors").exists()


def test_a_cache_that_cannot_be_written(hub: FakeHub, tgi: Run, demo_files: dict[str, bytes], tmp_path: Path) -> None:
    """The line says that it is the cache, and which file."""
    hub.add("o/m", demo_files)
    (tmp_path / "file").write_text("")
    refused(tgi, ["o/m", str(tmp_path / "file")], "o/m", "--huggingface-hub-cache", str(tmp_path / "file"))


@pytest.mark.parametrize("model", ["../o/m", "o/m/n", "o m", "/o/m", "o/..", "https://x/y", "-o/m", "o\0m"])
def test_what_is_no_id(hub: FakeHub, tgi: Run, model: str) -> None:
    """A path that is not there, an address, or a name that could lead out of the cache is no id; the hub is not asked."""
    from tgi_core.errors import StartupError
    from tgi_core.hub import Source, fetch

    with pytest.raises(StartupError, match="no such directory, and not a Hub id"):
        fetch(Source(model), lambda *_: None)
    assert not hub.asked
