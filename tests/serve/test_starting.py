"""The socket answers while the model loads."""

from __future__ import annotations

import subprocess
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from tests.hub.fake_hub import FakeHub, fake_hub
from tests.serve.process import TGI, ServerProcess, environment, free_port, run
from tgi_core.model_files import DEMO


@contextmanager
def loading(hub: FakeHub, home: Path) -> Generator[ServerProcess, None, None]:
    """A server whose model has not come yet: the hub holds back its tokenizer."""
    hub.add("o/m", {path.name: path.read_bytes() for path in DEMO.iterdir() if path.is_file()})
    hub.stall = "tokenizer.json"
    port = free_port()
    extra = {"HF_HUB_OFFLINE": "0", "HF_ENDPOINT": hub.url, "HF_HOME": str(home), "HF_TOKEN": ""}
    command = [*TGI, "serve", "o/m", "--backend", "reference", "--hostname", "127.0.0.1", "--port", str(port)]
    command += ["--drain-delay", "0"]
    child = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment(extra))
    server = ServerProcess(child)
    server.url = f"http://127.0.0.1:{port}"
    try:
        assert hub.stalled.wait(30), "".join(server.lines)
        yield server
    finally:
        server.close()


@pytest.fixture
def hub() -> Generator[FakeHub, None, None]:
    """A hub of its own."""
    with fake_hub() as made:
        yield made


def test_probes_while_the_model_loads(hub: FakeHub, tmp_path: Path) -> None:
    """From the start the process is alive and not ready and says how far it is; then it serves on the same socket."""
    with loading(hub, tmp_path) as server, httpx.Client(base_url=server.url, timeout=30) as client:
        assert client.get("/livez").status_code == 200
        told = client.get("/readyz")
        assert told.status_code == 503 and told.json()["phase"] == "starting"
        while "progress" not in told.json():  # the first file has not begun
            told = client.get("/readyz")
        assert set(told.json()["progress"]) == {"what", "done", "total", "unit"}
        assert client.get("/health").json() == {"error": "unhealthy", "error_type": "healthcheck"}
        refused = client.post("/v1/completions", json={"prompt": "Hi"})
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
        assert refused.json()["error"]["code"] == "unavailable"
        hub.go_on.set()
        server.wait_ready(60)
        assert client.get("/readyz").json() == {"phase": "serving"}
        assert client.get("/info").json()["model_id"] == "o/m"
        assert [line for line in server.lines if line.rstrip().endswith("Connected")]
        assert server.stop() == 0


def test_told_to_stop_while_the_model_loads(hub: FakeHub, tmp_path: Path) -> None:
    """SIGTERM ends a server that has not served yet, at once and with status 0."""
    with loading(hub, tmp_path) as server:
        assert server.stop() == 0
        assert not [line for line in server.lines if "Traceback" in line]


def test_a_model_that_cannot_be_loaded(hub: FakeHub, tmp_path: Path) -> None:
    """What is wrong is told in one line, with status 1, though the socket was open already."""
    hub.fault = 500
    with loading_of_nothing(hub, tmp_path) as child:
        _, errors = child.communicate(timeout=60)
        assert child.returncode == 1 and "Traceback" not in errors and errors.splitlines()[-1].startswith("tgi: error: ")


@contextmanager
def loading_of_nothing(hub: FakeHub, home: Path) -> Generator[subprocess.Popen[str], None, None]:
    """A server whose hub is out of order."""
    extra = {"HF_HUB_OFFLINE": "0", "HF_ENDPOINT": hub.url, "HF_HOME": str(home), "HF_TOKEN": ""}
    command = [*TGI, "serve", "o/m", "--backend", "reference", "--hostname", "127.0.0.1", "--port", "0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment(extra)) as child:
        yield child


def test_the_first_line_comes_at_once(tmp_path: Path) -> None:
    """Whoever starts a server reads what it is doing before it does anything that takes long: it is the first line of all."""
    result = run("serve", "--backend", "reference", "--hostname", "127.0.0.1", "--port", "0", str(tmp_path / "nothing"))
    assert result.stderr.splitlines()[0] == f"starting to serve {tmp_path / 'nothing'}"
