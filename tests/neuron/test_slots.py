"""Steps over fixed slots: the tokens are transformers', whatever the other slots do. The stand-in refuses what would overwrite a slot."""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from tests.engine.tiny_models import VOCAB
from tests.neuron.opened import PLAN, open_neuron
from tgi_core.backend import (
    EMPTY,
    CapacityExceeded,
    Feature,
    Grant,
    Handle,
    OutputOptions,
    Request,
    Row,
    RowFaultKind,
    SamplingField,
    Unsupported,
    WarmupPlan,
)
from tgi_core.backend.session import Session
from tgi_core.engine.sampler import FIELDS

pytestmark = pytest.mark.usefixtures("machine")


def request(id: int, tokens: Sequence[int], slot: int, want: OutputOptions = OutputOptions()) -> Request:
    """A whole prompt into a slot."""
    return Request(id, tuple(tokens), len(tokens), 0, ((slot,),), len(tokens), want=want)


@cache
def whole(model: Path) -> PreTrainedModel:
    """The model as transformers runs it."""
    loaded: PreTrainedModel = AutoModelForCausalLM.from_pretrained(model)
    return loaded.eval()


def generated(model: Path, prompt: Sequence[int], count: int) -> list[int]:
    """transformers' greedy tokens."""
    ids = torch.tensor([list(prompt)])
    out = whole(model).generate(ids, max_new_tokens=count, do_sample=False, eos_token_id=None, pad_token_id=0)
    tokens: list[int] = out[0, len(prompt) :].tolist()
    return tokens


def test_what_is_promised(llama: Path) -> None:
    """A slot is a block of the sequence length; prompts are padded to it; everything that the host samples is there."""
    session, capacity = open_neuron(llama)
    (group,) = capacity.groups
    assert (group.block_size, group.num_blocks, capacity.max_rows, capacity.max_row_tokens) == (48, 3, 3, 48)
    assert capacity.takes == (48,) and capacity.max_prefill_rows == 1 and capacity.max_step_tokens >= 51
    found = session.capabilities()
    assert found.block_sizes == () and found.sampling == FIELDS and SamplingField.SEED in FIELDS
    assert found.features >= {Feature.LOGPROBS, Feature.TOP_N, Feature.TENSOR_PARALLEL}
    assert not found.features & {Feature.CHUNKED_PREFILL, Feature.PREFIX_REUSE, Feature.PROMPT_LOGPROBS}


def test_one_core(llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks are declared only where a second one finds a core."""
    monkeypatch.setenv("NEURON_RT_NUM_CORES", "1")
    assert Feature.TENSOR_PARALLEL not in open_neuron(llama)[0].capabilities().features


class Traffic:
    """Random steps over the slots of one session: rows join, go on, sit out and leave."""

    def __init__(self, session: Session, seed: int, slots: int) -> None:
        self.session, self.random, self.slots = session, random.Random(seed), slots
        self.rows: dict[int, tuple[int, list[int], int]] = {}
        """Slot, tokens, and the prompt's length, by request."""
        self.done: list[tuple[list[int], list[int]]] = []
        self.handle, self.next_id = EMPTY, 1

    def step(self) -> None:
        """One step, and what leaves after it."""
        sits_out = [Grant(id, 0) for id in self.rows if self.random.random() < 0.3]
        free = sorted(set(range(1, self.slots + 1)) - {slot for slot, _, _ in self.rows.values()})
        if free and self.random.random() < 0.5:
            prompt = [self.random.randrange(VOCAB) for _ in range(self.random.choice((1, 2, 3, 17)))]
            fresh = request(self.next_id, prompt, self.random.choice(free))
            step = self.session.prefill((fresh,), self.handle, tuple(sits_out))
            self.rows[self.next_id] = (fresh.blocks[0][0], list(prompt), len(prompt))
            self.next_id += 1
        elif self.rows:
            step = self.session.decode((self.handle,), tuple(sits_out))
        else:
            return
        self.handle = step.handle
        for row in self.session.rows(step).rows:
            self.rows[row.request_id][1].extend(row.tokens)
        self._drop()

    def _drop(self) -> None:
        gone = [id for id, (_, tokens, length) in self.rows.items() if len(tokens) >= length + 20]
        for id in gone:
            _, tokens, length = self.rows.pop(id)
            self.done.append((tokens[:length], tokens[length:]))
        if gone:
            self.handle = self.session.filter(self.handle, tuple(self.rows))


def test_tokens(llama: Path) -> None:
    """Rows that join, sit out and leave slots to others make transformers' tokens, also after prompts of one and two tokens."""
    session, _ = open_neuron(llama)
    traffic = Traffic(session, 3, 3)
    while len(traffic.done) < 8:
        traffic.step()
    assert {len(prompt) for prompt, _ in traffic.done} >= {1, 2}
    for prompt, tokens in traffic.done:
        assert tokens == generated(llama, prompt, len(tokens))
    assert session.stats().compiles == 2


def poisoned(model: Path, token: int, folder: Path) -> Path:
    """The same model with an embedding that is not a number."""
    copy = AutoModelForCausalLM.from_pretrained(model)
    with torch.no_grad():
        copy.get_input_embeddings().weight[token] = torch.nan
    copy.save_pretrained(folder)
    return folder


def run(session: Session, step: object) -> dict[int, Row]:
    """The rows of a step by request."""
    return {row.request_id: row for row in session.rows(step).rows}  # type: ignore[arg-type]


@pytest.mark.parametrize("prompt", [(11,), (11, 45), (11, 45, 7)])
def test_a_fault_stays_in_its_slot(llama: Path, tmp_path: Path, prompt: tuple[int, ...]) -> None:
    """A row whose numbers are none is a fault of that row; neither its mate nor the next row in its slot sees them."""
    model = poisoned(llama, 99, tmp_path / "model")
    session, _ = open_neuron(model)
    first = session.prefill((request(1, (5, 6, 7), 1),), EMPTY, ())
    tokens = list(run(session, first)[1].tokens)
    step = session.prefill((request(2, (5, *[99] * 30), 2),), first.handle, ())
    rows = run(session, step)
    tokens += rows[1].tokens
    fault = rows[2].fault
    assert fault is not None and fault.kind is RowFaultKind.NAN
    handle = session.filter(step.handle, (1,))
    step = session.prefill((request(3, prompt, 2),), handle, ())
    rows = run(session, step)
    made = list(rows[3].tokens)
    tokens += rows[1].tokens
    for _ in range(4):
        step = session.decode((step.handle,), ())
        rows = run(session, step)
        tokens, made = [*tokens, *rows[1].tokens], [*made, *rows[3].tokens]
    assert made == generated(llama, prompt, 5) and tokens == generated(llama, (5, 6, 7), 7)


def test_a_slot_to_its_end(llama: Path) -> None:
    """A row may fill its slot; its mate goes on beside it."""
    session, _ = open_neuron(llama)
    full = session.prefill((request(1, range(48), 1),), EMPTY, ())
    assert run(session, full)[1].tokens == tuple(generated(llama, range(48), 1))
    handle: Handle = full.handle
    step = session.prefill((request(2, (8, 9), 2),), handle, (Grant(1, 0),))
    made = list(run(session, step)[2].tokens)
    for _ in range(3):
        step = session.decode((step.handle,), (Grant(1, 0),))
        made += run(session, step)[2].tokens
    assert made == generated(llama, (8, 9), 4)


def test_refusals(llama: Path) -> None:
    """One prompt of several tokens a step; no part of a prompt; no logprobs of prompts."""
    session, _ = open_neuron(llama)
    with pytest.raises(CapacityExceeded, match="max_prefill_rows 1"):
        session.prefill((request(1, (1, 2), 1), request(2, (3, 4), 2)), EMPTY, ())
    with pytest.raises(Unsupported, match="chunked_prefill"):
        session.prefill((Request(3, (1, 2, 3), 3, 0, ((1,),), 2),), EMPTY, ())
    with pytest.raises(Unsupported, match="prompt_logprobs"):
        session.prefill((request(4, (1, 2), 1, OutputOptions(prompt_logprobs=True)),), EMPTY, ())


def test_one_slot(llama: Path) -> None:
    """A single slot, which optimum-neuron compiles without continuous batching."""
    session, _ = open_neuron(llama, WarmupPlan(max_rows=1, max_row_tokens=32))
    step = session.prefill((request(1, (4, 5, 6), 1),), EMPTY, ())
    made = list(run(session, step)[1].tokens)
    step = session.decode((step.handle,), ())
    assert [*made, *run(session, step)[1].tokens] == generated(llama, (4, 5, 6), 2)


def test_a_device_that_fails(llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the runtime raises in a step is the contract's error."""
    from optimum.neuron import NeuronModelForCausalLM

    from tgi_core.backend import DeviceLost

    session, _ = open_neuron(llama, PLAN)

    def fail(*arguments: object) -> None:
        raise RuntimeError("nrt_execute status=1202 NRT_EXEC_HW_ERR")

    monkeypatch.setattr(NeuronModelForCausalLM, "__call__", fail)
    step = session.prefill((request(1, (4, 5), 1),), EMPTY, ())
    with pytest.raises(DeviceLost, match="the device failed: nrt_execute status=1202"):
        session.rows(step)
