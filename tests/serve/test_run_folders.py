"""What a run keeps in the temporary folder goes with it, and what a killed one has left goes with the next."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.serve.process import TGI, environment
from tgi_core.model_files import DEMO
from tgi_core.run_folder import RunFolder

MAKER = "import sys; from tgi_core.run_folder import RunFolder; print(RunFolder(sys.argv[1]).path, flush=True); sys.stdin.read()"


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The temporary folder of this process and its children."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    return tmp_path


def maker(kind: str) -> tuple[subprocess.Popen[str], Path]:
    """A process that has made a folder, and where it is."""
    pipe = subprocess.PIPE
    child = subprocess.Popen([sys.executable, "-c", MAKER, kind], stdin=pipe, stdout=pipe, text=True)
    assert child.stdout is not None
    return child, Path(child.stdout.readline().strip())


@pytest.mark.parametrize("kind", ["shard", "ranks"])
def test_what_a_killed_process_leaves(place: Path, kind: str) -> None:
    """kill -9 leaves a folder; the next to make one takes it away, with the socket in it, and leaves alone one that is in use."""
    killed, left = maker(kind)
    (left / "shard").touch()
    living, used = maker(kind)
    killed.kill()
    killed.communicate()
    assert left.exists() and used.stat().st_mode & 0o077 == 0
    mine = RunFolder("shard")
    assert not left.exists() and used.exists() and mine.path.parent == place
    living.communicate()
    assert not used.exists()
    mine.remove()
    mine.remove()
    assert not list(place.iterdir())


def test_what_is_not_ours(place: Path) -> None:
    """A folder without a lock, another's name, a link to somewhere and a lock that is a link: nothing of it is touched."""
    elsewhere = place / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "lock").touch()
    (place / "tgi-shard-link").symlink_to(elsewhere)
    for name in ("tgi-shard-open", "tgi-kernels-x", "tgi-ranks-linked"):
        (place / name).mkdir()
    (place / "tgi-kernels-x" / "lock").touch()
    (place / "tgi-ranks-linked" / "lock").symlink_to(elsewhere / "lock")
    (place / "tgi-ranks-file").touch()
    before = sorted(place.rglob("*"))
    RunFolder("ranks").remove()
    assert sorted(place.rglob("*")) == before


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_a_server_that_ends_early(place: Path, number: int) -> None:
    """However a server ends before it serves, its next start leaves nothing behind."""
    command = [*TGI, "serve", "--backend", "reference", "--hostname", "127.0.0.1", "--port", "0", str(DEMO)]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL, env=environment()) as child:
        while not list(place.glob("tgi-shard-*")):
            assert child.poll() is None
        os.kill(child.pid, number)
    assert (number == signal.SIGKILL) or not list(place.glob("tgi-*"))
    while list(place.glob("tgi-*")):  # a child that the server forked just before holds its lock until it comes to exec
        RunFolder("shard").remove()
