"""The worked examples: installed from their folders, held to the suite, and one behind the real router."""

from __future__ import annotations

import json
import shutil
from collections.abc import Generator
from pathlib import Path

import httpx
import pytest

from tests.kit.environment import Environment
from tests.serve.process import served
from tgi_core.backend import CompileFailed

pytestmark = pytest.mark.long

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Generator[Environment, None, None]:
    """With both examples, installed from copies: building leaves folders behind."""
    home = tmp_path_factory.mktemp("examples")
    environment = Environment.make(home / "home")
    ignored = shutil.ignore_patterns("*.egg-info", "build", ".*", "__pycache__")
    names = ("backend-numpy", "backend-static")
    environment.install(*(str(shutil.copytree(EXAMPLES / name, home / name, ignore=ignored)) for name in names))
    yield environment


@pytest.mark.parametrize(("name", "level"), [("numpy", "L2"), ("static", "L3")])
def test_they_keep_the_contract(name: str, level: str, environment: Environment, tmp_path: Path) -> None:
    """text-core is granted, and nothing is inconclusive; the NumPy Llama makes the golden transcripts without torch."""
    options = ("--level", level, "--effort", "0.3", "--report", "report.json")
    done = environment.run("tgi-conformance", "run", "--backend", name, *options, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["text_core"] == "granted" and report["levels"][level] == "granted"
    by_id = {entry["id"]: entry["verdict"] for entry in report["results"]}
    assert by_id["parity.greedy"] == by_id["parity.sampled"] == by_id["parity.end-of-text"] == "pass"


def test_the_numpy_example_is_small_and_needs_no_torch(environment: Environment) -> None:
    """300 lines, and torch stays unloaded while it makes tokens."""
    package = EXAMPLES / "backend-numpy/tgi_backend_numpy"
    assert sum(len(path.read_text().splitlines()) for path in package.glob("*.py")) <= 300
    code = """
import sys
from tgi_conformance.baseline import Alone
from tgi_conformance.subject import resolve
from tgi_core.backend import Request
target = resolve("numpy").target
row = Alone(target).rows(Request(1, (3, 1, 4, 1, 5), 5, 0, (), 5), 1)[0]
print(len(row.tokens), sorted({"torch", "transformers", "safetensors"} & set(sys.modules)))
"""
    assert environment.run("python", "-c", code).stdout == "1 []\n"


def test_the_router_serves_the_numpy_example(environment: Environment) -> None:
    """`tgi serve --backend numpy` answers over a socket, with a stream, with what the demo model says on any backend."""
    with served("--backend", "numpy", tgi=(str(environment.home / "bin/tgi"),)) as server:
        parameters = {"max_new_tokens": 4, "details": True}
        question = {"inputs": "The capital of France is", "parameters": parameters}
        answer = httpx.post(f"{server.url}/generate", json=question, timeout=60).json()
        assert "Paris" in answer["generated_text"]
        streamed = httpx.post(f"{server.url}/generate_stream", json=question, timeout=60).text
        events = [json.loads(line.removeprefix("data:")) for line in streamed.splitlines() if line.startswith("data:")]
        assert [event["token"]["id"] for event in events] == [token["id"] for token in answer["details"]["tokens"]]
        sampled = {"inputs": "The", "parameters": {"max_new_tokens": 6, "do_sample": True, "seed": 7}}
        texts = {httpx.post(f"{server.url}/generate", json=sampled, timeout=60).json()["generated_text"] for _ in range(2)}
        assert len(texts) == 1
        assert server.stop() == 0


def test_the_static_example_compiles_only_in_warmup(environment: Environment) -> None:
    """A shape that was not compiled raises CompileFailed at the device; longer rows and more of them never reach it."""
    code = """
from tgi_conformance.golden import default_model
from tgi_conformance.target import quiet
from tgi_backend_static.device import Call
from tgi_backend_static.plugin import backend_open
from tgi_core.backend import EMPTY, BackendError, OpenOptions, Request, OutputOptions, WarmupPlan
session = backend_open(OpenOptions(str(default_model("none"))), quiet)
capacity = session.warmup(WarmupPlan(max_rows=2, max_row_tokens=40), quiet)
print(capacity.groups[0].block_size, capacity.groups[0].num_blocks, capacity.takes)
def tried(verb):
    try:
        verb()
    except BackendError as error:
        print(type(error).__name__)
tried(lambda: session._device.run(Call(((1,) * 17,), (1,), (0,))))
def request(id, length, take=None):
    return Request(id, (1,) * length, length, 0, ((id,),), take or length, want=OutputOptions(logprobs=False))
tried(lambda: session.prefill((request(1, 41),), EMPTY, ()))
tried(lambda: session.prefill((request(1, 5), request(2, 5), request(3, 5)), EMPTY, ()))
tried(lambda: session.prefill((request(1, 5, 2),), EMPTY, ()))
step = session.prefill((request(1, 20), request(2, 33)), EMPTY, ())
print(len(session.rows(step).rows), session.stats().compiles)
"""
    assert environment.run("python", "-c", code).stdout.splitlines() == [
        "40 2 (16, 32, 40)",
        CompileFailed.__name__,
        "CapacityExceeded",
        "CapacityExceeded",
        "Unsupported",
        "2 4",
    ]
