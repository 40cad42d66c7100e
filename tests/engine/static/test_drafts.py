"""Drafts on a device of fixed shapes: rows with several tokens have programs of their own, all of them warmed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tgi_backend_static_cpu.kit import StaticCpuKit

from tests.engine.speculation_clauses import passed
from tests.engine.static.opened import FLAT, TABLES, open_on_static
from tests.engine.tiny_models import drafted_schedule, save_tiny, silent
from tgi_core.backend import Feature, OpenOptions, WarmupPlan
from tgi_core.backend.session import Session
from tgi_core.engine.static.buckets import BucketRules
from tgi_core.engine.static.session import open_static

FEW = WarmupPlan(max_rows=4, max_row_tokens=64, max_step_tokens=64, num_blocks=24, draft=3)


@pytest.fixture(scope="module")
def shallow(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Llama of 1 layer in float32, with the vocabulary of the golden one."""
    return save_tiny("llama", tmp_path_factory.mktemp("llama"), num_hidden_layers=1, vocab_size=250)


@pytest.mark.timeout(600)  # programs that compile, on a machine that may be busy
def test_clauses(shallow: Path) -> None:
    """Every clause about drafts is kept, one step ahead; there are no adapters here, and no proposals."""

    def open(options: OpenOptions) -> object:
        return open_static(options, StaticCpuKit(FLAT), silent)

    assert passed(open, shallow, but=("speculation.adapters", "speculation.proposals", "speculation.silence"), effort=0.1)


@pytest.mark.parametrize("rules", [FLAT, TABLES], ids=["flat", "tables"])
def test_nothing_is_compiled_in_traffic(llama: Path, rules: BucketRules) -> None:
    """Rows keep all drafts, some and none of them, and make the tokens that they make alone, with the programs of warm-up."""
    session, capacity = open_on_static(llama, FEW, StaticCpuKit(rules))
    assert capacity.draft == 3
    _, counts = drafted_schedule(session, replace(capacity, draft=2))
    assert counts == {1, 2, 3}
    assert session.stats().compiles == capacity.compiles


def test_no_programs_for_drafts_that_nobody_asks_for(llama: Path) -> None:
    """A plan without drafts compiles what it always did."""
    kit = StaticCpuKit(FLAT)
    told: list[int] = []
    open_on_static(llama, replace(FEW, draft=0), kit, lambda what, done, total, unit: told.append(total))
    plain = max(told)
    told.clear()
    open_on_static(llama, FEW, kit, lambda what, done, total, unit: told.append(total))
    assert max(told) > plain


def test_drafts_in_bfloat16(shallow: Path) -> None:
    """There several tokens round otherwise than one, as rows of a larger batch do: drafts run, and `/info` says what they may change."""

    def open(options: OpenOptions) -> object:
        return open_static(options, StaticCpuKit(FLAT), silent)

    assert passed(open, shallow, only=("speculation.accept", "speculation.reject"), effort=0.1, dtype="bfloat16")
    session = Session(open(OpenOptions(str(shallow), dtype="bfloat16")), "static-cpu")
    assert Feature.SPECULATION in session.capabilities().features
    told = next(kernel for kernel in session.capabilities().kernels if kernel.part == "drafts")
    assert told.name == "run" and told.reason.startswith("in bfloat16, drafts change the last bits of logits, as batch sizes do")
