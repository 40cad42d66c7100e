"""A fake hub, and `tgi` commands that know no other."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Generator
from pathlib import Path

import pytest

from tests.hub.fake_hub import FakeHub, fake_hub
from tests.serve.process import run
from tgi_core.model_files import DEMO

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def hub() -> Generator[FakeHub, None, None]:
    """Empty; see `FakeHub.add`."""
    with fake_hub() as made:
        yield made


@pytest.fixture
def hub_environment(hub: FakeHub, tmp_path: Path) -> dict[str, str]:
    """An empty cache, no login, the fake hub as the only one, and what TGI's images set."""
    images = {"HF_HUB_ENABLE_HF_TRANSFER": "1"}
    return {"HF_HUB_OFFLINE": "0", "HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "home"), "HF_TOKEN": "", **images}


@pytest.fixture
def tgi(hub_environment: dict[str, str]) -> Run:
    """Run `tgi` to its end, with more variables as `extra`."""

    def start(*arguments: str, extra: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        return run(*arguments, extra={**hub_environment, **(extra or {})})

    return start


@pytest.fixture(scope="session")
def demo_files() -> dict[str, bytes]:
    """The demo model as a repository's files."""
    return {path.name: path.read_bytes() for path in DEMO.iterdir() if path.is_file()}


# Every Python process of the server imports it at start, also the children that probe backends.
HOOK = """
import os, sys

def hook(event, arguments):
    if event == "socket.connect":
        target = arguments[1]
    elif event == "socket.getaddrinfo":
        target = arguments[0]
        if target in ("127.0.0.1", "localhost", None):
            return  # its own address to listen on
    else:
        return
    if isinstance(target, tuple):
        line = f"{event} {target[0]}:{target[1]}"
    elif isinstance(target, (str, bytes)) and event == "socket.connect":
        return  # a socket of this machine's file system
    else:
        line = f"{event} {target}"
    with open(os.environ["CONNECTIONS"], "a") as stream:
        stream.write(line + "\\n")

sys.addaudithook(hook)
with open(os.environ["CONNECTIONS"], "a") as stream:
    stream.write("start\\n")
"""


@pytest.fixture
def watched(tmp_path: Path) -> dict[str, str]:
    """The environment of a process whose connections are written down."""
    folder = tmp_path / "hook"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(HOOK)
    return {"PYTHONPATH": str(folder), "CONNECTIONS": str(tmp_path / "connections")}
