"""What dynamo cannot see: XLA counts every compile, also of operators that run on the device between programs, and what it leaves to the
host."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.engine.ahead.opened import open_on
from tests.engine.ahead.test_tokens import KINDS, Chain, mixed_run
from tests.engine.static.opened import FLAT, TABLES, open_on_static
from tests.engine.static.traffic import STEPS, Traffic
from tests.engine.tiny_models import save_tiny
from tests.xla.device import XlaKit, compiles, fallbacks
from tgi_core.engine.static.buckets import BucketRules


@pytest.fixture(scope="session")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Llama of 2 layers in float32."""
    return save_tiny("llama", tmp_path_factory.mktemp("llama"), num_hidden_layers=2)


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("rules", [BucketRules(takes=(16, 48), waste=0.25), TABLES], ids=["flat", "tables"])
def test_nothing_is_compiled_in_traffic(llama: Path, rules: BucketRules) -> None:
    """Over a thousand random steps of a warmed session XLA compiles nothing and leaves no operator to the host; the tokens are those of
    the ragged engine."""
    session, capacity = open_on_static(llama, kit=XlaKit(rules))
    traffic, wanted = Traffic(session, capacity, 1), Traffic(open_on(None, llama)[0], capacity, 1)
    warmed = compiles()
    for _ in range(STEPS):
        assert traffic.step() == wanted.step()
    print(f"\n{capacity.compiles} compiles in warm-up, {compiles() - warmed} over {STEPS} steps, {traffic.next_id - 1} requests")
    assert capacity.compiles > 0 and compiles() == warmed
    assert fallbacks() == {}


@pytest.mark.timeout(3600)
def test_kinds_of_rows(llama: Path) -> None:
    """Draws, filters, penalties, top tokens, prompt logprobs and grammars compile nothing either, and have the ragged engine's tokens."""
    wanted = mixed_run(open_on(None, llama, masks=Chain())[0])
    session, _ = open_on_static(llama, kit=XlaKit(FLAT), masks=Chain())
    warmed = compiles()
    found = mixed_run(session)
    assert all(found.tokens(id) == wanted.tokens(id) for id in range(1, len(KINDS) + 1))
    assert compiles() == warmed and fallbacks() == {}
