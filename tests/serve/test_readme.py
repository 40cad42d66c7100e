"""The README is true: every command in it works as written."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.serve.process import ServerProcess, environment, served
from tgi_core.model_files import DEMO

ROOT = Path(__file__).parents[2]
COMMANDS = re.findall(r"```sh\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
CURLS = [command for command in COMMANDS if command.startswith("curl")]


def test_which_commands_there_are() -> None:
    """The README shows these, in this order; this very run is `make test`, and the wheels have tests of their own."""
    others = [command.strip() for command in COMMANDS if command not in CURLS]
    expected = ["make serve", "make test", ".venv/bin/tgi serve PATH_OR_HUB_ID", "pip install tgi-core tgi-backend-cpu"]
    assert others == expected and len(CURLS) == 3


@pytest.mark.parametrize("command", CURLS)
def test_curl(demo_server: ServerProcess, command: str) -> None:
    """Each curl is answered with text."""
    line = command.replace("127.0.0.1:3000", demo_server.url.removeprefix("http://"))
    result = subprocess.run(["sh", "-c", f"{line.strip()} --fail -sS"], capture_output=True, text=True, check=True)
    assert "generated_text" in result.stdout or '"content"' in result.stdout


@pytest.mark.skipif(shutil.which("make") is None, reason="this machine has no make")
def test_make_serve() -> None:
    """`make serve` starts a server on the loopback; SIGTERM ends it."""
    child = subprocess.Popen(
        ["make", "--no-print-directory", "-C", str(ROOT), "serve", "PORT=0"],
        stderr=subprocess.PIPE, text=True, env=environment(), start_new_session=True,
    )  # fmt: skip
    server = ServerProcess(child)
    try:
        server.wait_ready(240)
        assert server.url.startswith("http://127.0.0.1:")
    finally:
        server.close(group=True)


def test_serve_a_path(tmp_path: Path) -> None:
    """A directory is served as it is."""
    model = shutil.copytree(DEMO, tmp_path / "model")
    with served(str(model)) as server:
        assert server.url
