"""--ngrok, with a module in the place of the package that records what it is asked."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from tests.serve.process import run, served

FAKE = """
import os

class Listener:
    def url(self):
        return "https://tunnel.example"

def forward(address, authtoken=None, **rest):
    if authtoken == "bad":
        raise ValueError("failed to connect session", "bad is no authtoken")
    with open(os.environ["RECORD"], "a") as stream:
        print("forward", address, authtoken, sorted(rest.items()), file=stream)
    return Listener()

def disconnect(url=None):
    with open(os.environ["RECORD"], "a") as stream:
        print("disconnect", url, file=stream)
"""


@pytest.fixture
def ngrok(tmp_path: Path) -> dict[str, str]:
    """The environment in which the module is found."""
    (tmp_path / "ngrok.py").write_text(FAKE)
    return {"PYTHONPATH": str(tmp_path), "RECORD": str(tmp_path / "record")}


def test_a_tunnel(ngrok: dict[str, str]) -> None:
    """It forwards to the port of this server through the edge, the address is printed, and it ends with the server."""
    extra = {**ngrok, "NGROK": "true", "NGROK_AUTHTOKEN": "t0ken"}
    with served("--ngrok-edge", "edghts_1", "--backend", "reference", extra=extra) as server:
        assert httpx.get(f"{server.url}/health", timeout=30).status_code == 200
        address = server.url.removeprefix("http://")
        assert server.stop() == 0
    record = Path(ngrok["RECORD"]).read_text().splitlines()
    assert record == [
        f"forward {address} t0ken [('labels', 'edge:edghts_1'), ('proto', 'labeled')]",
        "disconnect https://tunnel.example",
    ]
    assert "ngrok: https://tunnel.example\n" in server.lines
    assert [line for line in server.lines if "--ngrok without --api-key" in line]
    assert not [line for line in server.lines if "t0ken" in line]


@pytest.mark.parametrize(
    ("arguments", "with_module", "says"),
    [
        (["--ngrok-authtoken", "t"], False, "pip install 'tgi-core[ngrok]'"),
        ([], True, "--ngrok-authtoken"),
        (["--ngrok-authtoken", "bad"], True, "cannot open a tunnel: "),
    ],
)
def test_no_tunnel(ngrok: dict[str, str], arguments: list[str], with_module: bool, says: str) -> None:
    """A missing extra, a missing token and ngrok's own refusal are one line each; the token is in none of them."""
    address = ["--hostname", "127.0.0.1", "--port", "0"]
    result = run("serve", "--ngrok", "--backend", "reference", *address, *arguments, extra=ngrok if with_module else {})
    line = result.stderr.strip().splitlines()[-1]
    assert result.returncode == 1 and line.startswith("tgi: error: --ngrok: ") and says in line, result.stderr
    assert "bad" not in line and "Traceback" not in result.stderr
