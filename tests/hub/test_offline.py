"""Offline means offline: no process of the server looks a name up or connects."""

from __future__ import annotations

from pathlib import Path

from tests.hub.conftest import Run
from tests.hub.fake_hub import FakeHub
from tests.serve.process import served
from tgi_core.model_files import DEMO


def connections(watched: dict[str, str]) -> set[str]:
    """What was connected to; at least one process must have had the hook."""
    lines = Path(watched["CONNECTIONS"]).read_text().splitlines()
    assert "start" in lines
    return set(lines) - {"start"}


def test_the_hook_sees_connections(hub: FakeHub, tgi: Run, demo_files: dict[str, bytes], watched: dict[str, str]) -> None:
    """A download is noticed: the test below is not blind."""
    hub.add("o/m", demo_files)
    assert tgi("download-weights", "o/m", extra=watched).returncode == 0
    assert f"socket.connect {hub.url.removeprefix('http://')}" in connections(watched)


def test_a_directory(watched: dict[str, str], hub: FakeHub, hub_environment: dict[str, str]) -> None:
    """Serving a directory connects to nothing, even where the hub could be reached."""
    with served(str(DEMO), "--backend", "cpu", extra=hub_environment | watched) as server:
        assert server.url
    assert not connections(watched) and not hub.asked


def test_the_cache(
    watched: dict[str, str], hub: FakeHub, tgi: Run, hub_environment: dict[str, str], demo_files: dict[str, bytes]
) -> None:
    """With HF_HUB_OFFLINE=1 a model of the cache is served without any connection."""
    hub.add("o/m", demo_files)
    tgi("download-weights", "o/m")
    hub.asked.clear()
    with served("o/m", "--backend", "reference", extra=hub_environment | watched | {"HF_HUB_OFFLINE": "1"}) as server:
        assert server.url
    assert not connections(watched) and not hub.asked
