"""The commands of docs/kubernetes.md, run as far as no cluster is needed."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.deploy.cluster_tools import documents, program
from tests.router.serving import Served
from tests.telemetry.server import instance
from tgi_core.telemetry.catalog import METRICS

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "kubernetes.md").read_text(encoding="utf-8")
COMMANDS = [
    shlex.split(line)
    for block in re.findall(r"^```sh\n(.*?)^```", PAGE, re.M | re.S)
    for line in block.replace("\\\n", " ").splitlines()
    if line.strip()
]


def ran(*command: str) -> str:
    """The output of a command that must succeed."""
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{shlex.join(command)}: {done.stderr}"
    return done.stdout


def helm(command: list[str]) -> None:
    """Rendered where the command would install."""
    verb, *rest = command[1:]
    if verb in ("install", "upgrade"):
        verb, rest = "template", [item for item in rest if item != "--install"]
    text = ran(program("helm"), verb, *rest)
    assert documents(text) if verb == "template" else text


def kubectl(command: list[str]) -> None:
    """A Secret is made without sending it; of other commands, the files and the objects that they name must exist."""
    if command[1] == "create":
        text = ran(program("kubectl"), *command[1:], "--dry-run=client", "--output=yaml")
        assert [document["kind"] for document in documents(text)] == ["Secret"]
    elif command[1] == "apply":
        assert command[2] == "-f" and documents((ROOT / command[3]).read_text(encoding="utf-8"))
    else:
        (kind, name), *_ = [item.split("/") for item in command if re.fullmatch(r"\w+/\w+", item)]
        found = documents((ROOT / "deploy" / "kubernetes" / "cuda.yaml").read_text(encoding="utf-8"))
        assert (kind, name) in {(item["kind"].lower(), item["metadata"]["name"]) for item in found}


def docker(command: list[str]) -> None:
    """The files that it names exist."""
    named = [command[index + 1] for index, item in enumerate(command) if item == "-f"]
    assert all((ROOT / name).exists() for name in named) and (named or command[1] == "push")


RUNS: dict[str, Callable[[list[str]], None]] = {"helm": helm, "kubectl": kubectl, "docker": docker}


@pytest.mark.parametrize("command", [command for command in COMMANDS if command[0] != "curl"], ids=shlex.join)
def test_a_command(command: list[str]) -> None:
    """What a newcomer types is understood by the program that it is for."""
    RUNS[command[0]](command)


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    """A server in place of the one behind kubectl port-forward."""
    with instance() as found:
        yield found


def test_requests(served: Served) -> None:
    """Both requests are answered, at the forwarded port's place."""
    if shutil.which("curl") is None:
        pytest.skip("no curl here")
    asked = [command for command in COMMANDS if command[0] == "curl"]
    assert "port-forward" in PAGE and len(asked) == 2
    here = str(served.client.base_url).rstrip("/")
    chat, metrics = (ran(*(item.replace("http://127.0.0.1:8080", here) for item in command), "--silent") for command in asked)
    assert '"chat.completion"' in chat and "vllm:num_requests_waiting" in metrics


def test_metrics_and_values_exist() -> None:
    """Each value of the chart that the page names is one, and each metric is in the catalogue."""
    assert set(re.findall(r"\b(?:vllm:|tgi_)\w+", PAGE)) - {"tgi_core"} <= {metric.name for metric in METRICS}
    text = (ROOT / "deploy" / "helm" / "tgi-core" / "values.yaml").read_text(encoding="utf-8")
    for name in re.findall(r"`(?:settings|persistence|gateway|networkPolicy|serviceMonitor|autoscaling)?\.(\w+)[`=]", PAGE):
        assert re.search(rf"^ *{name}:", text, re.M), name
