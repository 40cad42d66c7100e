"""The action and the template that vendors put into their pipelines: their commands exist, and do what they say."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest
import yaml

from tests.kit.environment import Environment

ROOT = Path(__file__).parents[2] / "conformance-tests"


def commands(name: str) -> list[str]:
    """The shell commands, in order, without what installs packages."""
    if name == "action.yml":
        steps = yaml.safe_load((ROOT / name).read_text())["runs"]["steps"]
        found = [step["run"] for step in steps if "run" in step]
    else:
        found = list(yaml.safe_load_all((ROOT / name).read_text()))[1][".tgi-conformance"]["script"]
    return [command for command in found if "install" not in command]


@pytest.mark.parametrize("name", ["action.yml", "ci/gitlab.yml"])
def test_what_they_run(name: str, tmp_path: Path) -> None:
    """On the reference backend, up to L1: a report, a page, JUnit and a badge, and a comparison with a report from before."""
    environment = Environment.make(tmp_path / "home")
    said = {"BACKEND": "reference", "LEVEL": "L1", "ARGUMENTS": "--effort 0.1", "COMMITTED": "conformance-report/report.json"}
    for command in commands(name):
        done = subprocess.run(
            ["bash", "-euc", command], cwd=tmp_path, env=environment.variables | said, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, command + done.stdout + done.stderr
    assert sorted(os.listdir(tmp_path / "conformance-report")) == ["badge.svg", "report.html", "report.json", "report.xml"]


def test_the_action_uses_its_inputs() -> None:
    """Each input is used, none that is not declared, and none is pasted into a shell."""
    text = (ROOT / "action.yml").read_text()
    declared = set(yaml.safe_load(text)["inputs"])
    assert set(re.findall(r"inputs\.([\w-]+)", text)) == declared
    steps = yaml.safe_load(text)["runs"]["steps"]
    assert not [step for step in steps if "${{" in step.get("run", "")]
