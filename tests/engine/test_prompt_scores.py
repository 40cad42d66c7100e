"""Logprobs of prompts: in chunks, whatever the engine, with the numbers of whole prompts, in memory that warm-up counts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tests.engine.ahead.late import LateKit, LateQueue
from tests.engine.static.opened import open_on_static
from tests.engine.tiny_configs import TRANSFORMERS_5
from tests.engine.tiny_models import open_cpu, save_tiny, silent
from tgi_core.backend import EMPTY, Capacity, Feature, OpenOptions, OutputOptions, Request, Row, WarmupPlan
from tgi_core.backend.session import Session
from tgi_core.engine import paged_runner, prompt_scores
from tgi_core.engine.decoder.torch_operators import TorchOperators
from tgi_core.engine.decoder.weights import DecoderWeights
from tgi_core.engine.models.shape import ModelShape
from tgi_core.engine.open_model import open_session
from tgi_core.engine.paged_decoder import PagedDecoderRunner

VOCAB = 509
PROMPT = tuple((31 * i + 7) % VOCAB for i in range(100))
CHUNK = 16
PLAN = WarmupPlan(max_rows=2, max_row_tokens=112, max_step_tokens=112)


class Heads(TorchDispatchMode):
    """Notes the rows of the largest tensor of logits."""

    rows = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None) -> Any:
        made = func(*args, **(kwargs or {}))
        if isinstance(made, torch.Tensor) and made.dim() > 1 and made.shape[-1] == VOCAB:
            self.rows = max(self.rows, made.numel() // VOCAB)
        return made


class TableKit(LateKit):
    """A device that runs decoders from their tables."""

    def table_refusal(self) -> str:
        """It does."""
        return ""

    def table_runner(self, weights: DecoderWeights, progress: Any) -> PagedDecoderRunner:
        """With torch's operators."""
        return PagedDecoderRunner(self, weights, (TorchOperators(),), progress)


def opened(kit: LateKit, model: Path) -> tuple[Session, Capacity]:
    """A session in float32, warmed up."""
    session = Session(open_session(OpenOptions(str(model), dtype="float32"), kit, silent), "late")
    return session, session.warmup(PLAN, silent)


class NotesChunks:
    """Notes how many positions are scored in each step."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.scored: list[int] = []
        run = prompt_scores.prompt_logprobs

        def noting(head: Any, hidden: torch.Tensor, following: torch.Tensor) -> torch.Tensor:
            self.scored.append(len(following))
            return run(head, hidden, following)

        patch.setattr(paged_runner, "prompt_logprobs", noting)


Open = Callable[[Path], tuple[Session, Capacity]]
ENGINES: dict[str, tuple[str, Open]] = {
    "table": ("qwen3", lambda model: opened(TableKit(None), model)),
    "table, one step ahead": ("granite", lambda model: opened(TableKit(LateQueue()), model)),
    "modules": ("gemma2", lambda model: opened(LateKit(None), model)),
    "modules, one step ahead": ("gpt2", lambda model: opened(LateKit(LateQueue()), model)),
    "modules with experts": ("mixtral", lambda model: opened(LateKit(None), model)),
    "states": ("mamba", lambda model: opened(LateKit(None), model)),
    "traced attention": ("falcon", lambda model: opened(LateKit(None), model)),
    "traced attention, one step ahead": ("bloom", lambda model: opened(LateKit(LateQueue()), model)),
    "by row": ("doge" if TRANSFORMERS_5 else "jetmoe", lambda model: opened(LateKit(None), model)),
    "own cache": ("rwkv", lambda model: opened(LateKit(None), model)),
    "native": ("llama", lambda model: open_cpu(model, PLAN, dtype="float32")),
    "static": ("llama", lambda model: open_on_static(model, PLAN)),
}


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Session, Capacity]]:
    """A session of each kind."""
    model_type, open_engine = ENGINES[request.param]
    session, capacity = open_engine(save_tiny(model_type, tmp_path, vocab_size=VOCAB))
    yield session, capacity
    session.close()


def first_row(session: Session, capacity: Capacity, want: OutputOptions) -> Row:
    """What a prompt alone gets."""
    count = -(-112 // capacity.groups[0].block_size)
    request = Request(1, PROMPT, len(PROMPT), 0, (tuple(range(1, 1 + count)),) * len(capacity.groups), len(PROMPT), want=want)
    row: Row = session.rows(session.prefill((request,), EMPTY, ())).rows[0]
    session.clear(None)
    return row


@contextmanager
def chunks_of(size: int) -> Iterator[None]:
    """Score so many positions at a time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(prompt_scores, "CHUNK", size)
        yield


def test_chunks_have_the_numbers_of_the_whole(engine: tuple[Session, Capacity]) -> None:
    """Logprobs are the same in chunks and at once, and the sampled token and its logprob are those of a prompt that is not scored: to the
    bit where the engine declares that batches do not change it."""
    scored = OutputOptions(logprobs=True, prompt_logprobs=True)
    with chunks_of(10**6):
        whole = first_row(*engine, scored)
    with chunks_of(CHUNK):
        parts = first_row(*engine, scored)
    plain = first_row(*engine, OutputOptions(logprobs=True))
    assert parts.prompt_logprobs[0] is None and len(parts.prompt_logprobs) == len(PROMPT)
    assert parts.prompt_logprobs[1:] == pytest.approx(whole.prompt_logprobs[1:], abs=1e-5)
    assert parts.tokens == whole.tokens == plain.tokens
    assert parts.logprobs == pytest.approx(whole.logprobs, abs=1e-5) and plain.logprobs == pytest.approx(whole.logprobs, abs=1e-5)
    if Feature.BATCH_INVARIANT in engine[0].capabilities().features:
        assert parts.prompt_logprobs == whole.prompt_logprobs
        assert parts.logprobs == whole.logprobs == plain.logprobs


ALL_LOGITS = ("states", "traced attention, one step ahead", "by row", "own cache")
"""Engines whose models compute the logits of all tokens in transformers 4."""


@pytest.mark.parametrize(
    "engine", [name for name in ENGINES if name != "static" and (TRANSFORMERS_5 or name not in ALL_LOGITS)], indirect=True
)
def test_no_more_logits_than_a_chunk_has(engine: tuple[Session, Capacity]) -> None:
    """A scored prompt has logits and float32 scores of one chunk at a time, one that is not scored those of its last token.

    The static engine's programs compute up to 128 at a time, and bring them to the host, where all of a step are kept.
    """
    with chunks_of(CHUNK), Heads() as heads:
        first_row(*engine, OutputOptions(prompt_logprobs=True))
    assert heads.rows <= CHUNK
    with Heads() as heads:
        first_row(*engine, OutputOptions())
    assert heads.rows <= 8


@pytest.mark.parametrize("kit", [TableKit, LateKit])
def test_warm_up_runs_a_scored_prompt(kit: Callable[[LateQueue], LateKit], llama: Path) -> None:
    """Its peak is measured with the logprobs of the longest prompt that a step can have."""
    session = Session(open_session(OpenOptions(str(llama), dtype="float32"), kit(LateQueue()), silent), "late")
    with pytest.MonkeyPatch.context() as patch:
        chunks = NotesChunks(patch)
        session.warmup(PLAN, silent)
    assert chunks.scored == [111]


def test_memory_for_scores_is_estimated() -> None:
    """Where nothing is measured, a chunk's float32 scores and logprobs are counted: of 512 positions, or of the longest step.

    Where all logits of a step exist at once, they and a copy of them, or a chunk's."""
    shape = ModelShape(torch.bfloat16, 128_256, 8192, 4096, 14336, 0)
    assert shape.scoring_bytes(8192) == 512 * 128_256 * 8 == 525_336_576
    assert shape.scoring_bytes(100) == 100 * 128_256 * 8
    assert replace(shape, whole_head=True).scoring_bytes(8192) == 8192 * 128_256 * (2 + 2)
    assert replace(shape, whole_head=True).scoring_bytes(100) == 100 * 128_256 * (2 + 8)
    without = replace(shape, vocab_size=0).activation_bytes(8, 8192)
    assert shape.activation_bytes(8, 8192) == without + shape.sampling_bytes(8) + shape.scoring_bytes(8192)
    assert replace(shape, dtype=torch.float32).scoring_bytes(100) == 100 * 128_256 * 8


def test_memory_of_a_runner_that_knows_its_own() -> None:
    """Inner states as it says, and whichever needs more: a chunk's float32 logits and logprobs, or rows whose filters sort them all."""
    shape = ModelShape(torch.bfloat16, 128_256, 8192, 4096, 14336, 0, token_bytes=50_000)
    assert shape.activation_bytes(1, 8192) == 8192 * 50_000 + 512 * 128_256 * 8
    assert shape.activation_bytes(64, 8192) == 8192 * 50_000 + 64 * 128_256 * 112
