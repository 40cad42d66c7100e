"""Tiny random checkpoints of any model type, and the comparison with transformers' `generate`."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText, PretrainedConfig, PreTrainedModel
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

from tests.engine.tiny_configs import VOCAB, tiny_config
from tgi_core.backend import (
    EMPTY,
    BackendError,
    CacheKind,
    Capacity,
    Feature,
    Grant,
    Handle,
    OpenOptions,
    OutputOptions,
    Request,
    WarmupPlan,
)
from tgi_core.backend.session import Session
from tgi_core.engine.models.loading import looks_at_images

NEW_TOKENS = 10
PROMPTS = ((11, 45, 7, 300, 28, 91, 5, 211, 64), (99, 17, 250, 33, 8), (21, 400, 31, 41, 59, 26, 53, 58, 97, 93, 23, 84, 62))


TRANSFORMERS = "transformers"
"""How a note begins on what transformers itself cannot run."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of one type: `verdict` is exact, differs or unsupported; `path` is that of `path_of`, or batched for
    encoder-decoders."""

    verdict: str
    path: str
    note: str = ""
    images: str = ""
    """What came of prompts with images, for types that see them."""


def save_tiny(model_type: str, folder: Path, **overrides: Any) -> Path:
    """Write a random checkpoint, and return its directory."""
    torch.manual_seed(0)
    config = tiny_config(model_type, **overrides)
    model = _class_of(config).from_config(config, dtype=torch.float32).eval()
    scatter(model)
    model.save_pretrained(folder)
    if type(model.config) not in MODEL_FOR_CAUSAL_LM_MAPPING:
        config.save_pretrained(folder)  # a text model of a config with several parts, which alone has no name
    return folder


def _class_of(config: PretrainedConfig) -> Any:
    """The class that reads checkpoints of a type: where layers look at images, these are never without a vision tower."""
    return AutoModelForImageTextToText if looks_at_images(config) else AutoModelForCausalLM


def scatter(model: PreTrainedModel) -> None:
    """Give vectors that start as zeros or ones some spread: norms, biases and sinks that are wrong should show."""
    generator = torch.Generator().manual_seed(1)
    for name, value in model.named_parameters():
        if (
            value.ndim == 1
            and value.is_floating_point()
            and ("norm" in name or "bias" in name or "sink" in name or "ln_" in name)
        ):
            value.data += 0.1 * torch.randn(value.shape, generator=generator)


def expected_tokens(folder: Path) -> list[list[int]]:
    """Greedy tokens of transformers' own `generate`, prompt by prompt."""
    return greedy_tokens(_class_of(AutoConfig.from_pretrained(folder)).from_pretrained(folder, dtype=torch.float32))


def greedy_tokens(model: Any) -> list[list[int]]:
    """Greedy tokens that a model of transformers generates, prompt by prompt."""
    model.eval()
    for name in ("eos_token_id", "forced_bos_token_id", "forced_eos_token_id"):
        setattr(model.generation_config, name, None)
    made = []
    for prompt in PROMPTS:
        ids = torch.tensor([prompt])
        out = model.generate(
            ids, attention_mask=torch.ones_like(ids), do_sample=False, num_beams=1, max_new_tokens=NEW_TOKENS, pad_token_id=0
        )
        made.append(out[0, -NEW_TOKENS:].tolist())
    return made


class Schedule:
    """Drives a session as the scheduler would, giving every request enough blocks for its whole life."""

    def __init__(self, session: Session, capacity: Capacity) -> None:
        self.session, self.capacity = session, capacity
        self.handle: Handle = EMPTY
        self.tokens: dict[int, list[int]] = {}
        self.next_block = 1

    def request(self, id: int, prompt: tuple[int, ...], take: int) -> Request:
        """A greedy request whose blocks nobody else has, one of them where there are states."""
        blocks = []
        for group in self.capacity.groups:
            states = group.kind is CacheKind.STATE
            first = len(self.tokens) + 1 if states else self.next_block
            count = 1 if states else -(-(len(prompt) + NEW_TOKENS) // group.block_size)
            blocks.append(tuple(range(first, first + count)))
        self.next_block += max(map(len, blocks))
        self.tokens[id] = []
        return Request(id, prompt, len(prompt), 0, tuple(blocks), take)

    def step(self, *requests: Request, grants: tuple[Grant, ...] = ()) -> None:
        """One step: join if there are requests, else go on."""
        step = self.session.prefill(requests, self.handle, grants) if requests else self.session.decode((self.handle,), grants)
        self.handle = step.handle
        for row in self.session.rows(step).rows:
            if row.fault:
                raise RuntimeError(row.fault.message)
            self.tokens[row.request_id] += row.tokens

    def leave(self, id: int) -> None:
        """Filter a request away."""
        self.handle = self.session.filter(self.handle, tuple(i for i in self.live() if i != id))

    def live(self) -> Iterator[int]:
        """Requests that have not left."""
        return (i for i in self.tokens if i not in self.gone)

    gone: frozenset[int] = frozenset()


def ragged_schedule(session: Session, capacity: Capacity) -> dict[int, list[int]]:
    """The first prompt in chunks, the second joins, the third joins in chunks while the others decode, the second leaves."""
    chunked = Feature.CHUNKED_PREFILL in session.capabilities().features
    run = Schedule(session, capacity)
    run.step(run.request(1, PROMPTS[0], 4 if chunked else len(PROMPTS[0])))
    run.step(run.request(2, PROMPTS[1], len(PROMPTS[1])), grants=(Grant(1, 5),) if chunked else ())
    run.step()
    run.step(run.request(3, PROMPTS[2], 6 if chunked else len(PROMPTS[2])))
    if chunked:
        run.step(grants=(Grant(3, 5),))
        run.step(grants=(Grant(3, 2),))
    run.step()
    run.leave(2)
    run.gone = frozenset({2})
    for _ in range(NEW_TOKENS):
        for id in tuple(run.live()):
            if len(run.tokens[id]) >= NEW_TOKENS:
                run.leave(id)
                run.gone |= {id}
        if not tuple(run.live()):
            break
        run.step()
    return run.tokens


def drafted_schedule(session: Session, capacity: Capacity) -> tuple[dict[int, list[int]], set[int]]:
    """The tokens of the first two prompts, made with drafts: in turn all right, wrong at the second place, and none for the second row.

    Also how many tokens rows made in a step. Raises AssertionError if they are others than without drafts.
    """
    plain, run, counts = ragged_schedule(session, capacity), Schedule(session, capacity), set[int]()
    session.clear(None)
    run.step(*(run.request(id, PROMPTS[id - 1], len(PROMPTS[id - 1])) for id in (1, 2)))
    for turn in range(3):
        grants = []
        for id in (1, 2) if turn < 2 else (1,):
            made = len(run.tokens[id])
            drafts = plain[id][made : made + capacity.draft]
            if turn == 1:
                drafts[1:2] = [(token + 1) % VOCAB for token in drafts[1:2]]
            grants.append(Grant(id, 1 + len(drafts), drafts=tuple(drafts)))
        before = {id: len(tokens) for id, tokens in run.tokens.items()}
        run.step(grants=tuple(grants))
        counts |= {len(tokens) - before[id] for id, tokens in run.tokens.items()}
    session.clear(None)
    assert all(tokens[: len(plain[id])] == plain[id][: len(tokens)] for id, tokens in run.tokens.items())
    return run.tokens, counts


def silent(what: str, done: int, total: int, unit: str) -> None:
    """Progress that nobody watches."""


def scored_prompt(session: Session, capacity: Capacity) -> list[float]:
    """Logprobs of the tokens of a prompt after its first."""
    asked = replace(
        Schedule(session, capacity).request(99, PROMPTS[2], len(PROMPTS[2])), want=OutputOptions(prompt_logprobs=True)
    )
    (row,) = session.rows(session.prefill((asked,), EMPTY, ())).rows
    session.clear(None)
    return [value for value in row.prompt_logprobs if value is not None]


def open_cpu(folder: Path, plan: WarmupPlan | None = None, **options: Any) -> tuple[Session, Capacity]:
    """The CPU backend's session on a checkpoint, behind the core's own wrapper."""
    from tgi_backend_cpu import plugin

    session = Session(plugin.backend_open(OpenOptions(str(folder), **options), silent), "cpu")
    return session, session.warmup(plan or WarmupPlan(max_rows=4, max_row_tokens=64), silent)


ANY_ERROR = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    BackendError,
    ImportError,
    LookupError,
    OSError,
    RuntimeError,
    StrictDataclassError,
    TypeError,
    ValueError,
)
"""What a model's code may raise on a blindly shrunk config; the table says which it was."""


def compare(model_type: str, folder: Path) -> Outcome:
    """Make, run and compare one type; never raises for what a model's code does."""
    logging.disable(logging.WARNING)
    try:
        save_tiny(model_type, folder)
        AutoConfig.from_pretrained(folder)
        expected = expected_tokens(folder)
    except ANY_ERROR as error:
        return Outcome("unsupported", "", f"{TRANSFORMERS}: {short(error)}")
    return outcome_of(folder, expected)


def outcome_of(folder: Path, expected: list[list[int]]) -> Outcome:
    """Run a checkpoint, and compare; never raises for what a model's code does."""
    try:
        session, capacity = open_cpu(folder, dtype="float32")
        path = path_of(session)
        made = ragged_schedule(session, capacity)
    except BackendError as error:
        return Outcome("unsupported", "", " ".join(str(error).split()).replace("|", "/"))
    except ANY_ERROR as error:
        return Outcome("unsupported", "", short(error))
    wrong = [i for i, tokens in enumerate(expected, 1) if made[i] != tokens[: len(made[i])] or not made[i]]
    distinct = len({token for tokens in expected for token in tokens})
    notes = [f"only {distinct} distinct token{'s' * (distinct > 1)}"] if distinct < 4 else []
    if path != "ragged":
        notes.append(why_own(session))
    return Outcome("differs", path, f"prompts {wrong}") if wrong else Outcome("exact", path, "; ".join(notes))


def path_of(session: Session) -> str:
    """How a session runs its model: ragged, by row (paged, but attention row by row) or own cache."""
    able = session.capabilities()
    if Feature.CHUNKED_PREFILL not in able.features:
        return "own cache"
    return "by row" if any(kernel.part == "rows" for kernel in able.kernels) else "ragged"


def why_own(session: Session) -> str:
    """Why a model's attention or cache is its own: the last of the engine's reasons that is not an exception of the model's code."""
    (reason,) = (kernel.reason for kernel in session.capabilities().kernels if kernel.part == "attention")
    reasons = [each for each in reason.replace("NotRagged: ", "").split("; ") if "Error: " not in each]
    return reasons[-1].replace("|", "/") if reasons else "its code fails in a step of several rows"


def short(error: BaseException) -> str:
    """An error in one cell of a table."""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:140]}".replace("|", "/")
