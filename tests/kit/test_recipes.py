"""The Dockerfile and the workflow that the kit writes: the first says what an image needs, the second is run, step by step."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest
from tgi_conformance.kit.writing import new_backend

from tests.kit.environment import Environment

INSTRUCTIONS = {"FROM", "COPY", "RUN", "USER", "ENV", "EXPOSE", "ENTRYPOINT"}
"""What the template may use; others would have to be looked at here."""


@pytest.fixture
def acme(tmp_path: Path) -> Path:
    """A generated package."""
    new_backend("acme", tmp_path / "acme")
    return tmp_path / "acme"


def instructions(dockerfile: Path) -> list[tuple[str, str]]:
    """Instruction and argument, line by line."""
    lines = [line for line in dockerfile.read_text().splitlines() if line and not line.startswith("#")]
    return [(name, argument) for name, _, argument in (line.partition(" ") for line in lines)]


def steps(workflow: Path) -> list[str]:
    """The shell commands of its job."""
    return re.findall(r"^ +- run: (.+)$", workflow.read_text(), re.MULTILINE)


def test_the_dockerfile(acme: Path) -> None:
    """It starts from a base, copies what is there, installs it as root and serves as somebody else, on the port that it opens."""
    found = instructions(acme / "Dockerfile")
    assert {name for name, _ in found} <= INSTRUCTIONS and found[0][0] == "FROM"
    said = dict(found)
    source, target = said["COPY"].split()
    assert (acme / source / "pyproject.toml").exists() and shlex.split(said["RUN"])[-1] == target
    order = [name for name, _ in found]
    assert order.index("RUN") < order.index("USER") < order.index("ENTRYPOINT") and said["USER"] not in ("root", "0")
    command = json.loads(said["ENTRYPOINT"])
    assert command[:4] == ["tgi", "serve", "--backend", "acme"] and command[command.index("--port") + 1] == said["EXPOSE"]


def test_what_the_image_runs(acme: Path, tmp_path: Path) -> None:
    """Its RUN installs the package from the copy, and its ENTRYPOINT finds the backend there."""
    said = dict(instructions(acme / "Dockerfile"))
    environment = Environment.make(tmp_path / "home")
    environment.install(*(str(acme) if part == said["COPY"].split()[1] else part for part in shlex.split(said["RUN"])[2:]))
    done = environment.run(*json.loads(said["ENTRYPOINT"]), "no-such-model", cwd=tmp_path)
    assert done.returncode == 1 and "no-such-model" in done.stderr and "not installed" not in done.stderr


def test_the_workflow(acme: Path, tmp_path: Path) -> None:
    """Each of its steps succeeds in a fresh environment, in its order, and leaves the reports that it uploads."""
    environment = Environment.make(tmp_path / "home")
    commands = steps(acme / ".github/workflows/conformance.yml")
    assert len(commands) == 3
    for command in commands:
        done = environment.run("bash", "-euc", command, cwd=acme)
        assert done.returncode == 0, command + done.stdout + done.stderr
    assert json.loads((acme / "acme.json").read_text())["levels"]["L3"] == "granted" and (acme / "acme.xml").exists()
