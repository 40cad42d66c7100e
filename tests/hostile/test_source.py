"""Nothing in the tree runs, loads or fetches what somebody sends."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ("tgi_core", "router", "backends", "conformance-tests")
FORBIDDEN_CALLS = {
    "eval", "exec", "compile", "__import__", "ast.literal_eval", "os.system", "os.popen", "pickle.load", "pickle.loads", "marshal.loads",
    "yaml.load",
    "numpy.load", "np.load", "tempfile.mktemp",
}  # fmt: skip
FORBIDDEN_MODULES = {"pickle", "dill", "cloudpickle", "marshal", "shelve", "jsonpickle", "xmlrpc", "telnetlib"}
FETCHERS = {"requests", "urllib.request", "urllib3", "httpx", "aiohttp", "http.client"}
MAY_FETCH = ("tgi_core/hub", "tgi_core/benchmark/target.py", "tgi_core/cli/chat_client.py", "router/tgi_router/fetching.py")
"""Only these turn to addresses: the hub's client to the operator's, `tgi bench` and `tgi chat` to the one that they are given, and the
router to public ones of hosts from which the operator lets it fetch images."""
MAY_START_PYTHON = "tgi_core/workers/command.py"
"""The one place that knows how to start Python without modules from the current directory."""


def sources() -> list[Path]:
    """Every source file that is ours."""
    return sorted(
        path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py") if not path.stem.endswith(("_pb2", "_pb2_grpc"))
    )


def faults(path: Path) -> Iterator[str]:
    """What a file does that it should not."""
    inside = path.relative_to(ROOT).as_posix()
    for node in ast.walk(ast.parse(path.read_text())):
        where = f"{inside}:{getattr(node, 'lineno', 0)}"
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or ""]
            if {name.split(".")[0] for name in names} & FORBIDDEN_MODULES:
                yield f"{where} imports {names}"
            if set(names) & FETCHERS and not inside.startswith(MAY_FETCH):
                yield f"{where} may fetch with {names}"
        elif isinstance(node, ast.Call):
            called, given = ast.unparse(node.func), {keyword.arg: keyword.value for keyword in node.keywords}
            if called in FORBIDDEN_CALLS:
                yield f"{where} calls {called}"
            if called.endswith("torch.load") and not is_true(given.get("weights_only")):
                yield f"{where} loads a pickle whole"
            if is_true(given.get("shell")) or (is_true(given.get("trust_remote_code")) and "transformers" in called):
                yield f"{where} runs a stranger's code"
        elif isinstance(node, ast.Attribute) and ast.unparse(node) == "sys.executable" and inside != MAY_START_PYTHON:
            yield f"{where} starts Python in a way of its own"
        elif isinstance(node, ast.Assert) and not inside.startswith("conformance-tests"):
            yield f"{where} asserts, which python -O does not"


def is_true(value: ast.expr | None) -> bool:
    """Whether an argument is the constant True."""
    return isinstance(value, ast.Constant) and value.value is True


def test_the_tree() -> None:
    """No eval, exec, pickle, literal_eval, shell, asserts, unsafe torch.load, or fetching outside the hub's client; Python is started in
    one way."""
    found = [fault for path in sources() for fault in faults(path)]
    assert len(sources()) > 100 and not found, "\n".join(found)


@pytest.mark.parametrize(
    ("source", "told"),
    [
        ("eval(x)", "calls eval"), ("import pickle", "imports"), ("from dill import loads", "imports"), ("import httpx", "may fetch"),
        ("torch.load(f)", "pickle whole"), ("torch.load(f, weights_only=False)", "pickle whole"), ("run(x, shell=True)", "stranger"),
        ("assert key == given", "asserts"), ("ast.literal_eval(x)", "calls ast"),
    ],
)  # fmt: skip
def test_the_test(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, told: str) -> None:
    """Each of these would be found."""
    monkeypatch.setattr(f"{__name__}.ROOT", tmp_path)
    (tmp_path / "x.py").write_text(source)
    assert told in next(faults(tmp_path / "x.py"))
