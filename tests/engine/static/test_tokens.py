"""On a device that runs programs of fixed shapes, tokens are those of the ragged engine and of `generate`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tgi_backend_static_cpu.kit import StaticCpuKit

from bench.scheduling import trace
from tests.engine.ahead.opened import open_on
from tests.engine.ahead.test_tokens import KINDS, Chain, mixed_run
from tests.engine.static.opened import FLAT, TABLES, open_on_static
from tests.engine.static.trace_run import compared, script
from tests.engine.tiny_models import expected_tokens, open_cpu, ragged_schedule, save_tiny
from tgi_core.engine.static.buckets import BucketRules
from tgi_core.grammar.compiler import GrammarCompiler
from tgi_core.model_files import DEMO
from tgi_core.tokenizer import Tokenizer


@pytest.fixture
def compiler(demo_tokenizer: Tokenizer) -> Iterator[GrammarCompiler]:
    """Of the demo model's grammars."""
    made = GrammarCompiler.for_model(DEMO, demo_tokenizer.eos_ids)
    assert made is not None
    yield made
    made.close()


@pytest.mark.parametrize("rules", [FLAT, TABLES], ids=["flat", "tables"])
def test_chunks_joins_and_leaving(llama: Path, rules: BucketRules) -> None:
    """Prompts in chunks, beside rows that decode, and a row that leaves: as on the ragged engine, and as `generate` has them."""
    session, capacity = open_on_static(llama, kit=StaticCpuKit(rules))
    found = ragged_schedule(session, capacity)
    assert found == ragged_schedule(*open_cpu(llama, dtype="float32"))
    expected = expected_tokens(llama)
    assert any(tokens == expected[0] for tokens in found.values())


def test_windows(tmp_path: Path) -> None:
    """Layers with a window see no further than it, over flat lists too."""
    model = save_tiny("mistral", tmp_path, num_hidden_layers=2)
    assert ragged_schedule(*open_on_static(model)) == ragged_schedule(*open_cpu(model, dtype="float32"))


def test_kinds_of_rows(llama: Path) -> None:
    """Draws, filters, penalties, top tokens, prompt logprobs and grammars: what the device cannot do, the host does from its logits."""
    wanted = mixed_run(open_on(None, llama, masks=Chain())[0])
    found = mixed_run(open_on_static(llama, masks=Chain())[0])
    for id in range(1, len(KINDS) + 1):
        assert found.tokens(id) == wanted.tokens(id) and len(found.tokens(id)) >= 13
        for mine, theirs in zip(found.of(id), wanted.of(id), strict=True):
            assert mine.logprobs == pytest.approx(theirs.logprobs, abs=1e-5)
            assert [[top.id for top in tops] for tops in mine.top] == [[top.id for top in tops] for tops in theirs.top]
            assert mine.prompt_logprobs == pytest.approx(theirs.prompt_logprobs, abs=1e-5)


def test_trace(demo_tokenizer: Tokenizer, compiler: GrammarCompiler, tmp_path: Path) -> None:
    """Under the scheduler, with a cache that is too small: chunks, rows that join, common beginnings, preemption, clients that leave,
    draws and grammars. `python -m tests.engine.static.trace_run` is the long form."""
    vocab_size = demo_tokenizer.vocab_size
    model = save_tiny("llama", tmp_path, num_hidden_layers=1, vocab_size=vocab_size)
    ragged, static = compared(script(trace.make(24, 0), vocab_size), demo_tokenizer, compiler, model, FLAT)
    assert static.differing(ragged) == [] and static.errors == ragged.errors == []
    assert all(static.seen[kind] for kind in ("chunks", "filters", "joins", "left", "preempted", "prefix hits"))
    assert static.compiles == static.capacity.compiles
