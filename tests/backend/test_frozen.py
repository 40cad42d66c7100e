"""What vendors have shipped goes on working: frozen plugins of every released minor run against this core."""

from __future__ import annotations

import hashlib
import importlib
import re
from collections.abc import Callable
from dataclasses import replace
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest
from tgi_conformance import conformance_tests
from tgi_conformance.golden import default_model
from tgi_conformance.subject import packaged

from tests.backend import frozen
from tests.scheduler.device import Device, quiet
from tests.scheduler.device import request as generation
from tgi_core.backend import (
    API_VERSION,
    EMPTY,
    SAMPLING,
    BackendBug,
    CacheKind,
    Capabilities,
    Encoded,
    InvalidRequest,
    OpenOptions,
    OutputOptions,
    Request,
    Sampling,
    SamplingField,
    SamplingSpec,
    Unsupported,
    WarmupPlan,
    hookimpl,
)
from tgi_core.backend.reference import ReferenceSession
from tgi_core.backend.reference_windows import WindowedReferenceSession
from tgi_core.backend.registry import PluginStatus, load
from tgi_core.backend.session import Session
from tgi_core.scheduler import Scheduler
from tgi_core.server.model_server import ModelServer
from tgi_core.tokenizer import Tokenizer
from tgi_core.wire.types import ShardInfo

FOLDER = Path(frozen.__file__).parent
DIGESTS = {
    (1, 0): "06fe1c9730cdb73c1357a4cf76f54c1db501bf4f4a0feb9f1b0626cf7652e9cb",
    (1, 1): "31a813ffab0d8a16b19004b79777e347f06966bdc9a4076b6e1d6f2ddbbb986b",
    (1, 2): "9d0f8910e41d5654771433dec7475fe2a87c5c33a924ce672efc39025d69efed",
    (1, 3): "fb1716c394c5e213ce3a0705a306fd5c88d5f9346da6f8f4d6d721051467412f",
    (1, 4): "5ff4dbb29eb2e49a5ea24da78ab1ba7741fb903674d27f305b6758a12b13d7dc",
    (1, 5): "fb6ca7671b8a2d20616f3d705ec669c8e6625a96234be8aff192569bfc990777",
    (1, 6): "d7c0b7c92867d21f14a7f8b6341fe73bf4cb70263118fff1ccc2410b511ac1f4",
    (1, 7): "7645535e53c6fd17027db38b2d34f3b6b272895576beed3299eedcc397df3293",
    (1, 8): "3c83734a9ba5f3ccefc1ed49017f29747951e8367a4dbe3fb4667142254d8f62",
    (1, 9): "46a4fe24f446a0ff58ede43e6b9a905624daa6d70791b8a687e3add6386d6b82",
    (1, 10): "f2837c28a30854943638d75a1c805dd5f765b8b7854e4723a8ef2e4182c0b2bf",
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
if API_VERSION >= (1, 2):
    test_1_2_keeps_the_contract = conformance((1, 2))
if API_VERSION >= (1, 3):
    test_1_3_keeps_the_contract = conformance((1, 3))
if API_VERSION >= (1, 4):
    test_1_4_keeps_the_contract = conformance((1, 4))
if API_VERSION >= (1, 5):
    test_1_5_keeps_the_contract = conformance((1, 5))
if API_VERSION >= (1, 6):
    test_1_6_keeps_the_contract = conformance((1, 6))
if API_VERSION >= (1, 7):
    test_1_7_keeps_the_contract = conformance((1, 7))
if API_VERSION >= (1, 8):
    test_1_8_keeps_the_contract = conformance((1, 8))
if API_VERSION >= (1, 9):
    test_1_9_keeps_the_contract = conformance((1, 9))
if API_VERSION >= (1, 10):
    test_1_10_keeps_the_contract = conformance((1, 10))


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
    tokens, plain = (3, 1, 4, 1, 5), OutputOptions(logprobs=False)
    rows = [Request(id, tokens, 5, 0, ((id,),), 5, want=plain, adapter=name) for id, name in ((1, None), (2, "pirate"))]
    step = session.prefill(tuple(rows), EMPTY, ())
    one, other = session.rows(step).rows
    assert one.tokens != other.tokens


def opened(version: tuple[int, int], implementation: object = None) -> Session:
    """A warmed session of one of them, or of what stands for it, as the server calls it."""
    plugin = load(entry(version))
    if implementation is None:
        implementation = plugin.open(OpenOptions(str(default_model("none"))), quiet)
    session = Session(implementation, "frozen", built=plugin.built)
    session.warmup(WarmupPlan(max_rows=2), quiet)
    return session


def request(sampling: Sampling, id: int = 1) -> Request:
    """A prompt of five tokens."""
    return Request(id, (3, 1, 4, 1, 5), 5, 0, ((id,),), 5, sampling, OutputOptions(logprobs=False))


@pytest.mark.parametrize("spec", [spec for spec in SAMPLING if spec.since > (1, 0)], ids=lambda spec: spec.name)
@pytest.mark.parametrize("version", [version for version in MINORS if version < API_VERSION])
def test_a_field_that_came_later_is_refused(version: tuple[int, int], spec: SamplingSpec) -> None:
    """A plugin that has never heard of a sampling field would pass over it: its session refuses it, and goes on."""
    if spec.since <= version:
        pytest.skip("it knows the field")
    session = opened(version)
    assert spec.field is not None
    values: Any = {"do_sample": True, spec.name: spec.tried[0]}
    with pytest.raises(Unsupported, match=f"request 2 needs sampling by {spec.field.value}"):
        session.prefill((request(Sampling(), 1), request(Sampling(**values), 2)), EMPTY, ())
    assert session.rows(session.prefill((request(Sampling(True)),), EMPTY, ())).rows[0].tokens


def test_whoever_claims_all_fields_is_believed_for_those_of_its_day() -> None:
    """A plugin of 1.1 that lists `frozenset(SamplingField)`, and so finds the fields of this core, does not get to declare them."""

    class Greedy(ReferenceSession):
        @hookimpl
        def capabilities(self) -> Capabilities:
            """Whatever the installed contract has."""
            return replace(super().capabilities(), sampling=frozenset(SamplingField))

    session = opened((1, 1), Greedy())
    later = {spec.field for spec in SAMPLING if spec.since > (1, 1)}
    assert SamplingField.MIN_P in later and session.capabilities().sampling == frozenset(SamplingField) - later
    with pytest.raises(Unsupported):
        session.prefill((request(Sampling(True, min_p=0.5)),), EMPTY, ())
    assert opened(API_VERSION, Greedy()).capabilities().sampling == frozenset(SamplingField)


@pytest.mark.parametrize(("built", "kind"), [((1, 7), CacheKind.FULL), ((1, 8), CacheKind.WINDOW)])
def test_window_groups_of_older_plugins_keep_all_blocks(built: tuple[int, int], kind: CacheKind) -> None:
    """A plugin that was built before blocks were taken back expects them to stay: to the core, its group is one of all positions."""
    session = Session(WindowedReferenceSession(), "old", built=built)
    assert [group.kind for group in session.warmup(WarmupPlan(max_rows=2), quiet).groups] == [CacheKind.FULL, kind]


@pytest.mark.skipif(API_VERSION < (1, 9), reason="prompts that see all of themselves came with 1.9")
def test_prompts_of_1_9_run_whole(demo_tokenizer: Tokenizer) -> None:
    """However many prompts wait, no step ends inside one."""
    plugin = load(entry((1, 9)))
    inner: Any = plugin.open(OpenOptions(str(default_model("none"))), quiet)
    session = Session(inner, "frozen", built=plugin.built)
    info = ShardInfo("toy", "frozen", "none", "none", (1, 9), session.capabilities())
    server = ModelServer(session, demo_tokenizer, info)
    capacity = server.warmup(WarmupPlan(max_rows=8, max_row_tokens=128, max_step_tokens=24), quiet)
    one = Device(Scheduler(info.capabilities, capacity), server, inner)
    keys = {one.scheduler.add(generation(tuple(range(3, 8 + number)), whole_prompt=True)) for number in range(16)}
    one.run()
    assert one.ended.keys() == keys and not inner.cut


@pytest.mark.skipif(API_VERSION < (1, 10), reason="images are encoded ahead since 1.10")
def test_images_of_1_10_are_encoded_ahead() -> None:
    """The plugin gets the item, and a refusal is the caller's; nothing happens to the items of an older plugin."""
    plugin = load(entry((1, 10)))
    inner: Any = plugin.open(OpenOptions(str(default_model("none"))), quiet)
    session = Session(inner, "frozen", built=plugin.built)
    assert session.encode(b"picture") == opened((1, 9)).encode(b"picture") == Encoded()
    with pytest.raises(InvalidRequest, match="an empty image"):
        session.encode(b"")
    assert inner.encoded == [b"picture"]


@pytest.mark.parametrize("gone", ["shapes=((1, 16),)", "max_step_blocks=4"])
def test_a_field_that_is_gone_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gone: str) -> None:
    """A plugin that sets what the drafts of the contract had fails in one line, which says what."""
    text = FOLDER.joinpath("plugin_1_0.py").read_text()
    assert text.count("256, rows)") == 1
    name = f"draft_{gone.partition('=')[0]}"
    (tmp_path / f"{name}.py").write_text(text.replace("256, rows)", f"256, rows, {gone})"))
    monkeypatch.syspath_prepend(str(tmp_path))
    plugin = load(EntryPoint(name, name, "tgi.backends"))
    session = Session(plugin.open(OpenOptions(str(default_model("none"))), quiet), "draft", built=plugin.built)
    with pytest.raises(BackendBug, match=gone.partition("=")[0]) as raised:
        session.warmup(WarmupPlan(max_rows=2), quiet)
    assert "\n" not in str(raised.value)


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
