"""Where a server's secrets may not be seen."""

from __future__ import annotations

from pathlib import Path

import httpx
import psutil

from tests.serve.process import run, served
from tgi_core.shard_access import TOKEN_VARIABLE

SECRETS = {name: f"secret-{name.lower()}" for name in ("API_KEY", "NGROK_AUTHTOKEN", "HF_TOKEN", TOKEN_VARIABLE)}


def test_secrets_stay_inside() -> None:
    """Keys and tokens are in no command line of the server's or its children's, no line of its log, no page and no error; the child shard,
    which inherits the shards' token, does without it on its socket."""
    with served("--backend", "reference", extra={**SECRETS, "LOG_LEVEL": "debug"}) as server:
        tree = [psutil.Process(server.child.pid), *psutil.Process(server.child.pid).children(recursive=True)]
        assert len(tree) > 1
        seen = [Path(f"/proc/{process.pid}/cmdline").read_text() for process in tree]
        key = {"authorization": f"Bearer {SECRETS['API_KEY']}"}
        with httpx.Client(base_url=server.url, timeout=60) as client:
            for path in ("/info", "/metrics", "/readyz", "/docs", "/v1/models", "/nowhere", "/generate"):
                for headers in (key, {"authorization": f"Bearer {SECRETS['API_KEY']}x"}):
                    seen += [client.get(path, headers=headers).text, client.post(path, json={}, headers=headers).text]
            assert client.post("/generate", json={"inputs": "a"}, headers=key).status_code == 200
        assert server.stop() == 0
        server.close()
        seen += server.lines
    seen.append(run("config", "show", "--origin", extra=SECRETS).stdout)
    assert not [text for text in seen for secret in SECRETS.values() if secret in text]
