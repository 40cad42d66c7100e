"""The README and the tutorial are true: every command in them works as written."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.serve.process import ServerProcess, environment, served
from tgi_core.model_files import DEMO

ROOT = Path(__file__).parents[2]
COMMANDS = re.findall(r"```sh\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
CURLS = [command for command in COMMANDS if command.startswith("curl")]
TUTORIAL = re.findall(r"```(\w+)\n(.*?)```", (ROOT / "docs/tutorial.md").read_text(), re.DOTALL)
TUTORIAL_ANSWERS = {
    "/generate ": "generated_text",
    "/generate_stream ": "generated_text",
    "/metrics": "tgi_request_count",
    "/info": "model_id",
    "OpenAI": "",
}


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


def test_the_tutorial(demo_server: ServerProcess) -> None:
    """Its requests are answered, in order; `make serve` and a directory have tests of their own below."""
    requests = [(kind, text) for kind, text in TUTORIAL if kind == "python" or text.startswith("curl")]
    others = [text for kind, text in TUTORIAL if (kind, text) not in requests]
    serve = "cp -r tgi_core/demo my-model\n.venv/bin/tgi serve my-model --hostname 127.0.0.1 --port 3000\n"
    assert others == ["make serve\n", serve] and len(requests) == 6
    for kind, text in requests:
        code = text.replace("127.0.0.1:3000", demo_server.url.removeprefix("http://"))
        command = [sys.executable, "-c", code] if kind == "python" else ["sh", "-c", f"{code.strip()} --fail -sS"]
        result = subprocess.run(command, capture_output=True, text=True, check=True, env=environment())
        expected = next(answer for part, answer in TUTORIAL_ANSWERS.items() if part in text)
        assert result.stdout.strip() and expected in result.stdout


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
