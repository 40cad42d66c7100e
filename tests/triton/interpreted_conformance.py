"""The contract's clauses over a model that runs wholly by Triton's kernels, in its interpreter and one step ahead.

`test_conformance.py` runs this file in a process of its own. The model has one layer, since a step takes the interpreter a quarter of a
second; the golden checkpoints, which have two, make their greedy tokens. With TGI_TRITON_CLAUSES=all every clause of `CHOSEN` is tried.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import pytest
import triton
from tgi_conformance.baseline import Alone
from tgi_conformance.clause import Clause
from tgi_conformance.clause_run import run_clause
from tgi_conformance.clauses import CLAUSES
from tgi_conformance.target import Target
from tgi_conformance.verdict import Level, Verdict

from tests.engine.ahead.late import LateKit, LateQueue
from tests.engine.tiny_models import save_tiny, silent
from tgi_core.backend import OpenOptions, Progress
from tgi_core.engine.attention.provider import AttentionProvider
from tgi_core.engine.decoder.weights import DecoderWeights
from tgi_core.engine.device import TableRunner
from tgi_core.engine.device_queue import StepSampler, Usage, Work
from tgi_core.engine.open_model import open_session
from tgi_core.engine.paged_decoder import PagedDecoderRunner
from tgi_core.engine.triton.operators import TritonOperators
from tgi_core.engine.triton.provider import TritonAttention
from tgi_core.engine.triton.sampling import TritonSampler
from tgi_core.engine.triton.tiles import Phase, Tile, TileRow, TileTable

pytestmark = [
    pytest.mark.skipif(not triton.knobs.runtime.interpret, reason="needs the interpreter"),
    pytest.mark.filterwarnings("ignore::RuntimeWarning:triton.*"),  # the interpreter is numpy, which warns of what is not finite
]

TILES = TileTable(
    "none", 1 << 20, (TileRow(Phase.DECODE, 4, 256, Tile(16, 32, 4, 2)), TileRow(Phase.PREFILL, 4, 256, Tile(128, 64, 4, 2)))
)
"""Large ones: the interpreter's time is by program, not by number."""

ELSEWHERE = (
    "machine.",  # drawn at random, in hundreds of steps
    "formula.",  # of samplers alone, which other tests compare token for token
    "mates.sampling",
    "continue.sampled",
    "lora.",  # adapters run module by module
    *("pairs.", "capacity.thousand", "mates.wide", "invariant.wide"),  # hundreds of steps
    *("growth.long", "chunks.long", "prefix.long"),  # thousands of positions
)
"""What topics or clauses of the first two levels are not tried here, and why."""

SAMPLE = ("drop.reuse-after-filter", "mixing.chunks", "speculation.join")
"""What `make test` tries: blocks with another's leavings, prefill mixed with decode, and drafts that are right and wrong."""


def _chosen() -> list[Clause]:
    """The clauses about a device that can be tried on one that is not installed; of parity those that need no sampler."""
    found = [
        clause
        for clause in CLAUSES
        if clause.level in (Level.L1, Level.L2)
        and not clause.id.startswith(ELSEWHERE)
        and "tensor_parallel" not in clause.needs
        and (clause.topic != "parity" or clause.id == "parity.greedy")
    ]
    everything = os.environ.get("TGI_TRITON_CLAUSES") == "all"
    return found if everything else [clause for clause in found if clause.id in SAMPLE]


class TritonQueue(LateQueue):
    """A late device whose plain rows get their tokens by the kernels. Nothing is captured: recorded operators are torch's."""

    def __init__(self) -> None:
        super().__init__(graphs="nothing is captured in the interpreter")

    def sampler(self) -> StepSampler:
        """Triton's."""
        return TritonSampler()

    def measured(self, work: Work) -> Usage:
        """Nothing, and nothing is run: the largest steps would take the interpreter ten seconds at every opening."""
        return Usage(0, 0)


class CheckedAttention(TritonAttention):
    """The provider, without the check of every opening, which `interpreted_attention.py` tries."""

    def self_check(self, *asked: object) -> str:
        """Nothing is wrong."""
        return ""


class TritonKit(LateKit):
    """A late device that runs decoders from their table, with Triton's kernels for all but the products."""

    def attention(self) -> Sequence[AttentionProvider]:
        """Triton's alone."""
        return (CheckedAttention(TILES, 4),)

    def table_refusal(self) -> str:
        """It runs every table."""
        return ""

    def table_runner(self, weights: DecoderWeights, progress: Progress) -> TableRunner:
        """The runner with the kernels."""
        return PagedDecoderRunner(self, weights, (TritonOperators(),), progress)


@pytest.fixture(scope="module")
def tried(tmp_path_factory: pytest.TempPathFactory) -> tuple[Target, Alone]:
    """A session on a model of one layer, and what requests make alone there."""
    sizes = {"hidden_size": 32, "intermediate_size": 48, "vocab_size": 250}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1}
    folder = save_tiny("llama", tmp_path_factory.mktemp("model"), num_hidden_layers=1, **sizes, **heads)
    target = _target(folder)
    return target, Alone(target)


def _target(folder: Path) -> Target:
    def open_late(options: OpenOptions) -> object:
        return open_session(options, TritonKit(TritonQueue()), silent)

    return Target("triton", open_late, folder, device_kind="cpu")


@pytest.mark.parametrize("clause", _chosen(), ids=lambda clause: clause.id)
def test_clause(clause: Clause, tried: tuple[Target, Alone]) -> None:
    """A clause is kept; one about a feature that is not declared sees it refused."""
    result = run_clause(clause, *tried, effort=0.1)
    assert result.verdict in (Verdict.PASS, Verdict.UNSUPPORTED), "\n".join((clause.sentence, result.message, *result.sequence))
