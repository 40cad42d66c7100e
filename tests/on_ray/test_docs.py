"""docs/ray.md is true: its commands are run up to what needs a cluster."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tgi_core.config import Settings
from tgi_core.ray import settings_of

COMMANDS = re.findall(r"```sh\n(.*?)\n```", (Path(__file__).parents[2] / "docs/ray.md").read_text(encoding="utf-8"), re.DOTALL)
SERVES = [command for command in COMMANDS if command.startswith("tgi serve")]


def test_which_commands_there_are() -> None:
    """Those below, Ray's own, and a request that tests/on_ray/test_ray.py sends."""
    others = [command for command in COMMANDS if command not in SERVES]
    expected = ['pip install "tgi-core[ray]" tgi-backend-cpu', "ray start --head", "curl http://127.0.0.1:3000/info"]
    assert others == [*expected, "serve run tgi_core.ray:app replicas=2 ray_resources=CPU=1"] and len(SERVES) == 3


@pytest.mark.parametrize("command", SERVES)
def test_serve(command: str) -> None:
    """Each command gets as far as Ray, on a machine without it: its settings are valid."""
    code = "import sys; sys.modules['ray'] = None; from tgi_core.cli import main; main()"
    result = subprocess.run(
        [sys.executable, "-c", code, *shlex.split(command)[1:]], capture_output=True, text=True, check=False, timeout=60
    )
    assert "--engine ray: the package ray is not installed; pip install 'tgi-core[ray]'" in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_the_application(monkeypatch: pytest.MonkeyPatch) -> None:
    """The arguments of `serve run` are settings."""
    (command,) = (each for each in COMMANDS if each.startswith("serve run"))
    arguments = dict(word.split("=", 1) for word in command.split()[3:])
    monkeypatch.setattr("tgi_core.cli.ray_engine.find_spec", lambda name: name)
    assert settings_of(arguments) == Settings(engine="ray", replicas=2, ray_resources="CPU=1")
