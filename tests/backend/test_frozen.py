"""What vendors have shipped goes on working: frozen plugins of every released minor run against this core."""

from __future__ import annotations

import hashlib
import importlib
import re
from collections.abc import Callable
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
from tgi_conformance import conformance_tests
from tgi_conformance.golden import default_model
from tgi_conformance.subject import packaged

from tests.backend import frozen
from tests.scheduler.device import quiet
from tgi_core.backend import API_VERSION, EMPTY, OpenOptions, Request, Want, WarmupPlan
from tgi_core.backend.registry import PluginStatus, load
from tgi_core.backend.session import Session

FOLDER = Path(frozen.__file__).parent
DIGESTS = {
    (1, 0): "06fe1c9730cdb73c1357a4cf76f54c1db501bf4f4a0feb9f1b0626cf7652e9cb",
    (1, 1): "31a813ffab0d8a16b19004b79777e347f06966bdc9a4076b6e1d6f2ddbbb986b",
}
MINORS = [version for version in DIGESTS if version <= API_VERSION]


def entry(version: tuple[int, int]) -> EntryPoint:
    """As if it were installed."""
    major, minor = version
    return EntryPoint(f"frozen-{major}-{minor}", f"tests.backend.frozen.plugin_{major}_{minor}", "tgi.backends")


def conformance(version: tuple[int, int]) -> Callable[..., None]:
    """The suite on one of them."""
    return conformance_tests(packaged(entry(version)).target, "L2", effort=0.3)


test_1_0_keeps_the_contract = conformance((1, 0))
if API_VERSION >= (1, 1):
    test_1_1_keeps_the_contract = conformance((1, 1))


def test_every_released_minor_has_one() -> None:
    """Whoever raises API_VERSION adds a plugin that was built against it."""
    assert API_VERSION in DIGESTS
    major, minor = API_VERSION
    assert (FOLDER / f"api_{major}_{minor}.json").exists()  # a copy of api.json, which later minors are held against
    assert {path.stem for path in FOLDER.glob("plugin_*.py")} == {entry(version).module.rpartition(".")[2] for version in DIGESTS}


@pytest.mark.parametrize("version", DIGESTS)
def test_they_are_frozen(version: tuple[int, int]) -> None:
    """A plugin that had to be changed for this core to run it is a broken promise."""
    path = FOLDER / f"{entry(version).module.rpartition('.')[2]}.py"
    assert hashlib.sha256(path.read_bytes()).hexdigest() == DIGESTS[version]


@pytest.mark.parametrize("version", MINORS)
def test_they_know_the_contract_only(version: tuple[int, int]) -> None:
    """They import nothing of the core that may change without notice."""
    text = FOLDER.joinpath(f"{entry(version).module.rpartition('.')[2]}.py").read_text()
    assert set(re.findall(r"from (tgi_\S+) import (\w+)", text)) == {("tgi_core", "backend")}


@pytest.mark.skipif(API_VERSION < (1, 1), reason="adapters came with 1.1")
def test_adapters_of_1_1() -> None:
    """The plugin of 1.1 gets the adapters that it asks API 1.1 for, and a row with one makes other tokens."""
    types = importlib.import_module("tgi_core.backend.types")
    options = OpenOptions(str(default_model("none")), adapters=(types.Adapter("pirate", "/nowhere"),))
    session = Session(load(entry((1, 1))).open(options, quiet), "frozen")
    session.warmup(WarmupPlan(max_rows=2), quiet)
    tokens, plain = (3, 1, 4, 1, 5), Want(logprobs=False)
    rows = [Request(id, tokens, 5, 0, ((id,),), 5, want=plain, adapter=name) for id, name in ((1, None), (2, "pirate"))]
    step = session.prefill(tuple(rows), EMPTY, ())
    one, other = session.rows(step).rows
    assert one.tokens != other.tokens


def test_a_newer_minor_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A plugin that requires what this core lacks is a record with one clear line, and its hooks are not called."""
    major, minor = API_VERSION
    newer = f"({major}, {minor + 1})"
    text = FOLDER.joinpath("plugin_1_0.py").read_text().replace("(1, 0), (1, 0)", f"{newer}, {newer}")
    (tmp_path / "newer.py").write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    plugin = load(EntryPoint("newer", "newer", "tgi.backends"))
    assert plugin.status is PluginStatus.INCOMPATIBLE
    assert plugin.reason == f"needs backend API {major}.{minor + 1}, this tgi-core has {major}.{minor}"
