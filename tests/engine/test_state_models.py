"""Models with layers that keep states: rows batched, in chunks, each with its own state."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tgi_backend_cpu.kit import CpuKit
from torch.profiler import ProfilerActivity, profile
from transformers import DynamicCache

from tests.engine.mixed_rows import check_rows_alone
from tests.engine.tiny_models import Schedule, open_cpu, save_tiny, silent
from tgi_core.backend import CacheKind, OpenOptions, OutOfMemory, Request, WarmupPlan
from tgi_core.backend.batch_tracker import RowInput, RowState
from tgi_core.backend.session import Session
from tgi_core.engine.models.states.scan import selective_scan
from tgi_core.engine.models.states.slots import PartStates, new_states, step_parts
from tgi_core.engine.open_model import open_session
from tgi_core.engine.quantization.linear import Linear, LinearProvider
from tgi_core.engine.quantization.torch_linear import TorchLinear, TorchLinears
from tgi_core.engine.quantization.weight import Weight

pytestmark = pytest.mark.skipif(
    not hasattr(DynamicCache, "update_conv_state"), reason="this version of transformers has another cache for each family"
)

ROWS = 32
PURE = ("mamba", "mamba2", "falcon_mamba")
ATTENDING = ("jamba", "bamba", "zamba2", "granitemoehybrid", "falcon_h1", "nemotron_h", "qwen3_next", "lfm2", "recurrent_gemma")
"""Families whose other layers attend."""


@pytest.mark.parametrize("family", [*PURE, *ATTENDING])
def test_rows_together_equal_rows_alone(family: str, tmp_path: Path) -> None:
    """32 rows, greedy and seeded, that join whole or in chunks: each makes the tokens that it makes alone, in any slot."""
    plan = WarmupPlan(max_rows=ROWS, max_row_tokens=32)
    session, capacity = open_cpu(save_tiny(family, tmp_path), plan, dtype="float32")
    kernels = {kernel.part: kernel.name for kernel in session.capabilities().kernels}
    assert "rows batched" in kernels["states"] and (kernels["attention"] == "none") == (family in PURE)
    assert capacity.groups[-1].kind is CacheKind.STATE and capacity.groups[-1].num_blocks == capacity.max_rows == ROWS
    check_rows_alone(session, capacity, ROWS, first_chunked=17)
    session.close()


class OffLinears(TorchLinears):
    """Nearly GEMMs, so that the self-check leaves a model its own modules."""

    name = "off"

    def load(self, weight: Weight, bias: torch.Tensor | None) -> Linear:
        """Half as much again."""
        return TorchLinear(weight.dequantize() * 1.5, bias)


class OffKit(CpuKit):
    """The CPU with such GEMMs."""

    def __init__(self) -> None:
        super().__init__(threads=1, memory_fraction=0.5)

    def linears(self) -> list[LinearProvider]:
        """No other."""
        return [OffLinears()]


def operands(watched: profile) -> Iterator[tuple[str, list[int]]]:
    """Operators that torch has run, and the shapes of their tensors."""
    for event in watched.events():  # type: ignore[no-untyped-call]
        for shape in event.input_shapes:
            yield event.name, [size for size in shape if isinstance(size, int)]


@pytest.mark.parametrize("family", ["mamba", "lfm2"])
def test_a_decode_step_copies_no_weight(family: str, tmp_path: Path) -> None:
    """Rows that decode together in a model's own linear layers read each weight once: `matmul` folds them into one matrix. Otherwise it
    multiplies a batch of matrices, and in bfloat16 copies a layer's weight for every row."""
    rows, width = 8, 128
    config = {"vocab_size": 64, "hidden_size": width, "intermediate_size": 2 * width}
    options = OpenOptions(str(save_tiny(family, tmp_path, **config)), dtype="bfloat16")
    session = Session(open_session(options, OffKit(), silent), "cpu")
    assert any(kernel.name == "transformers' own" for kernel in session.capabilities().kernels if kernel.part == "linear")
    run = Schedule(session, session.warmup(WarmupPlan(max_rows=rows, max_row_tokens=32), silent))
    run.step(*(run.request(number, (number, 7, 11), 3) for number in range(1, rows + 1)))
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as watched:
        run.step()
    session.close()
    found = list(operands(watched))
    assert any(name == "aten::mm" and width in shape for name, shape in found)
    assert not [
        each for each in found if each[0] == "aten::bmm" and each[1][:1] == [rows] and prod(each[1]) >= rows * width * width
    ]


def test_rows_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    """The states of all rows that a plan names must fit in memory; those of an open plan are as many as fit."""
    model = save_tiny("mamba", tmp_path)
    with pytest.raises(OutOfMemory, match=r"states: 1000000000 rows need .* bytes"):
        open_cpu(model, WarmupPlan(max_rows=10**9, max_row_tokens=64))
    _, capacity = open_cpu(model, WarmupPlan(num_blocks=3))
    assert capacity.groups[0].num_blocks == capacity.max_rows == 3


def row_inputs() -> st.SearchStrategy[list[RowInput]]:
    """Rows of a step: some go on with a token, some start, some run a chunk."""

    def row(slot: int, start: int, take: int) -> RowInput:
        request = Request(slot, (1,) * 40, 40, 0, ((slot,),), take)
        return RowInput(RowState(request, [1] * 40, start, ([slot],)), start, take, yields=True)

    part = st.tuples(st.integers(0, 9), st.integers(1, 4))
    return st.lists(part, min_size=1, max_size=9).flatmap(
        lambda parts: st.permutations(range(1, 10)).map(
            lambda slots: [row(slot, start, take) for slot, (start, take) in zip(slots, parts, strict=False)]
        )
    )


@settings(deadline=None, max_examples=50)
@given(row_inputs())
def test_parts_cover_a_step(order: list[RowInput]) -> None:
    """In flat order and without gaps: a row that starts or runs several tokens is by itself, and no state is read before it exists."""
    parts, ends, at = step_parts(order, torch.device("cpu")), {}, 0
    for row_input in order:
        at += row_input.take
        ends[at] = row_input
    assert [part.start for part in parts] == [0, *(part.end for part in parts[:-1])] and parts[-1].end == at
    slots = torch.arange(10)
    for part in parts:
        inside = [row_input for end, row_input in ends.items() if part.start < end <= part.end]
        assert slots[part.slots].tolist() == [row_input.row.request.id for row_input in inside]
        assert part.fresh == any(row_input.start == 0 for row_input in inside)
        assert part.one_each == all(row_input.take == 1 and row_input.start for row_input in inside) or len(inside) == 1


CHANNELS, WIDTH, TOKENS = 6, 4, 150


def scan_inputs() -> dict[str, torch.Tensor]:
    """Arguments of a scan of two rows."""
    generator = torch.Generator().manual_seed(3)

    def some(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator)

    sizes = {"hidden_states": CHANNELS, "dt": CHANNELS, "z": CHANNELS, "B": WIDTH, "C": WIDTH}
    return {name: some(2, size, TOKENS) for name, size in sizes.items()} | {
        "A": -some(CHANNELS, WIDTH).exp(),
        "D": some(CHANNELS),
        "delta_bias": some(CHANNELS),
    }


@settings(deadline=None, max_examples=20)
@given(st.lists(st.integers(1, TOKENS - 1), max_size=3, unique=True).map(sorted))
def test_a_scan_goes_on_from_its_state(cuts: list[int]) -> None:
    """Cut anywhere, a scan has the outputs and the last state that transformers' own has at once."""
    from transformers.models.mamba.modeling_mamba import mamba_selective_scan

    given_, outputs, state = scan_inputs(), [], None
    for start, end in zip([0, *cuts], [*cuts, TOKENS], strict=True):
        part = {name: value[..., start:end] if value.shape[-1] == TOKENS else value for name, value in given_.items()}
        out, state = selective_scan(**part, delta_softplus=True, state=state)
        outputs.append(out)
    expected, last = mamba_selective_scan(**given_, delta_softplus=True, return_last_state=True)
    assert torch.allclose(torch.cat(outputs, dim=-1), expected, atol=1e-5) and torch.allclose(state, last, atol=1e-5)


@pytest.fixture
def held() -> Iterator[dict[tuple[str, int], torch.Tensor]]:
    """The states of four slots in a layer."""
    yield dict(
        new_states({("conv", 0): ((2, 3), torch.float32), ("recurrent", 0): ((5,), torch.float32)}, 4, torch.device("cpu"))
    )


@pytest.mark.parametrize("slots", [slice(2, 4), torch.tensor([4, 1])], ids=["neighbours", "others"])
def test_only_the_rows_of_a_part_change(held: dict[tuple[str, int], torch.Tensor], slots: Any) -> None:
    """States of rows that go on are read from, and written to, the rows' own slots."""
    for value in held.values():
        value.normal_()
    before = {key: value.clone() for key, value in held.items()}
    [part] = step_parts([_going_on(slot) for slot in torch.arange(5)[slots].tolist()], torch.device("cpu"))
    states = PartStates(held, part)
    inputs = torch.randn(2, 2, 1)
    seen = states.update_conv_state(inputs, 0)
    states.update_recurrent_state(torch.ones(2, 5), 0)
    states.commit()
    assert torch.equal(seen, torch.cat((before["conv", 0][slots], inputs), dim=-1))
    assert torch.equal(held["conv", 0][slots], seen[..., 1:]) and held["recurrent", 0][slots].eq(1).all()
    others = [slot for slot in range(5) if slot not in torch.arange(5)[slots].tolist()]
    assert all(torch.equal(held[key][others], before[key][others]) for key in held)


def _going_on(slot: int) -> RowInput:
    request = Request(slot, (1, 1), 2, 0, ((slot,),), 1)
    return RowInput(RowState(request, [1, 1], 1, ([slot],)), 1, 1, yields=True)
