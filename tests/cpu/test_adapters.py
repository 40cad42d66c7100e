"""Adapters by the native kernels: a row's bits are its own, whatever else runs and however it came to where it is."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tgi_backend_cpu.adapters import NativeLoraKernel
from tgi_backend_cpu.building import CHOICE, EMULATED, VARIANTS, Variant
from tgi_backend_cpu.choosing import choose
from tgi_backend_cpu.kernels import Arena, Kernels
from torch import Tensor

from tests.cpu.conftest import kernels_of, need
from tests.engine.lora_files import make_adapter
from tests.engine.tiny_models import open_cpu, save_tiny
from tgi_core.backend import EMPTY, Adapter, Capacity, Feature, Grant, OutputOptions, Request, Row, Sampling, WarmupPlan
from tgi_core.backend.session import Session
from tgi_core.engine.lora.layers import RunningStep

ATTENTION, MLP = ("q_proj", "k_proj", "v_proj", "o_proj"), ("gate_proj", "up_proj", "down_proj")
MERGED = ("qkv_proj", "o_proj", "gate_up_proj", "down_proj")
MODELS = {
    "turned": ("llama", {"head_dim": 32}, (*ATTENTION, *MLP)),
    "unturned": ("llama", {"intermediate_size": 106}, (*ATTENTION, *MLP)),
    "normed": ("qwen3", {"head_dim": 32}, (*ATTENTION, *MLP)),
    "merged": ("phi3", {}, MERGED),
}
"""Every way in which products end: queries and keys turned by the product or behind it, and projections that are one."""

PLAN = WarmupPlan(max_rows=8, max_row_tokens=160, max_step_tokens=512, num_blocks=64)
LENGTHS = (1, 7, 40, 130)
MADE = 5
NAMES = (None, "all", "few", "wide")

Made = tuple[object, ...]


def adapters(folder: Path, model: Path, ends: tuple[str, ...]) -> tuple[Adapter, ...]:
    """One of every module; one of the first and the last; one of ranks that fill more than a panel."""
    return (
        make_adapter(folder / "all", model, *ends, rank=4, seed=1),
        make_adapter(folder / "few", model, ends[0], ends[-1], rank=7, seed=2),
        make_adapter(folder / "wide", model, *ends[1:], rank=50, seed=3, lora_alpha=30),
    )


class ServerUnderTest:
    """A session with adapters, and what each request makes there alone."""

    def __init__(self, session: Session, capacity: Capacity) -> None:
        self.session, self.capacity = session, capacity
        self.alone = cache(self._alone)

    def request(self, name: str | None, length: int, made: tuple[int, ...] = (), take: int = 0, place: int = 0) -> Request:
        """A request that has made some tokens already; half of them draw theirs. Its blocks are those of its place."""
        prompt = tuple((7 * length + 11 * i) % 480 + 3 for i in range(length))
        sampling = Sampling(length % 2 == 0, 1.2 if length % 2 == 0 else 1.0, seed=length)
        count = -(-PLAN.max_row_tokens // self.capacity.groups[0].block_size)
        table = tuple(range(1 + place * count, 1 + (place + 1) * count))[: self.capacity.groups[0].num_blocks]
        tokens, want = (*prompt, *made), OutputOptions(True, 2, prompt_logprobs=True)
        return Request(next(ids), tokens, length, 0, (table,), take or len(tokens), sampling, want, adapter=name)

    def _alone(self, name: str | None, length: int) -> tuple[list[Made], Made]:
        """Per token its id, logprob and top tokens; and the prompt's logprobs."""
        request = self.request(name, length)
        found = self.run([request], lambda: 10**6)
        self.session.clear(None)
        return found[request.id]

    def run(self, requests: list[Request], chunk: Callable[[], int]) -> dict[int, tuple[list[Made], Made]]:
        """Let them join one by one, with prompts in chunks, until each has made its tokens."""
        waiting, handle, left = list(requests), EMPTY, dict[int, int]()
        results: dict[int, list[Row]] = {request.id: [] for request in requests}
        wanted = {request.id: MADE - (len(request.tokens) - request.prompt_len) for request in requests}
        while any(len(tokens_of(results[id])) < wanted[id] for id in results):
            grants = []
            for id, count in left.items():
                take = min(count, chunk()) if count else int(len(tokens_of(results[id])) < wanted[id])
                left[id] -= take if count else 0
                grants.append(Grant(id, take))
            if waiting:
                request = waiting.pop(0)
                left[request.id] = len(request.tokens) - request.take
                step = self.session.prefill((request,), handle, tuple(grants))
            else:
                step = self.session.decode((handle,), tuple(grants))
            handle = step.handle
            for row in self.session.rows(step).rows:
                results[row.request_id].append(row)
        return {id: (tokens_of(rows), prompt_of(rows)) for id, rows in results.items()}


def tokens_of(rows: list[Row]) -> list[Made]:
    """What was made, with its numbers."""
    return [(row.tokens, row.logprobs, row.top) for row in rows if row.tokens]


def prompt_of(rows: list[Row]) -> Made:
    """The prompt's logprobs, chunk after chunk."""
    return tuple(itertools.chain.from_iterable(row.prompt_logprobs for row in rows))


ids = iter(range(1, 10**9))


@pytest.fixture(scope="module")
def instance(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str, str, str], ServerUnderTest]]:
    """Servers by kind of model, dtype and variant, each opened once."""
    with pytest.MonkeyPatch.context() as patch:

        @cache
        def opened(kind: str, dtype: str, variant: str) -> ServerUnderTest:
            model_type, fields, ends = MODELS[kind]
            folder = tmp_path_factory.mktemp(kind)
            model = save_tiny(model_type, folder / "model", **fields)
            patch.setenv(CHOICE, variant)
            return ServerUnderTest(*open_cpu(model, PLAN, dtype=dtype, adapters=adapters(folder, model, ends)))

        yield opened


@pytest.mark.parametrize("variant", [*VARIANTS, EMULATED], ids=lambda variant: variant.name)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("kind", MODELS)
@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_bits_are_a_rows_own(
    instance: Callable[[str, str, str], ServerUnderTest], kind: str, dtype: str, variant: Variant, data: st.DataObject
) -> None:
    """Tokens, logprobs, top tokens and prompt logprobs are the same numbers alone in one piece, beside rows of any adapters in any order,
    in chunks, and for a request that is continued from the tokens that it has made."""
    kernels_of(variant)
    own = instance(kind, dtype, variant.name)
    assert {Feature.BATCH_INVARIANT, Feature.LORA} <= own.session.capabilities().features
    drawn = data.draw(
        st.lists(st.tuples(st.sampled_from(NAMES), st.sampled_from(LENGTHS), st.integers(0, MADE - 1)), min_size=1, max_size=6)
    )
    size = data.draw(st.sampled_from([1, 3, 33, 10**6]))
    requests, wanted = [], {}
    for place, (name, length, made) in enumerate(drawn):
        tokens, prompt = own.alone(name, length)
        before = tuple(token for each in tokens[:made] for token in each[0])  # type: ignore[attr-defined]
        take = min(length + made, data.draw(st.integers(1, size)))
        requests.append(own.request(name, length, before, take, place))
        wanted[requests[-1].id] = tokens[made:], prompt
    found = own.run(requests, lambda: data.draw(st.integers(1, size)))
    own.session.clear(None)
    assert {id: (tokens[: len(wanted[id][0])], prompt) for id, (tokens, prompt) in found.items()} == wanted


def test_adapters_change_what_is_said(instance: Callable[[str, str, str], ServerUnderTest]) -> None:
    """No two of the model alone and its adapters make the same: the test above compares something."""
    need(*VARIANTS)
    found, choice = choose(os.environ, 1)
    assert found is not None, choice.reason
    own = instance("turned", "float32", choice.name)
    assert len({str(own.alone(name, 40)) for name in NAMES}) == len(NAMES)


def random(*shape: int, seed: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Random numbers."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    sizes=st.lists(st.tuples(st.integers(0, 3), st.integers(1, 40)), min_size=1, max_size=6),
    depth=st.integers(1, 70),
    columns=st.integers(1, 130),
)
def test_sums_of_single_layers(
    kernels: Kernels, dtype: torch.dtype, sizes: list[tuple[int, int]], depth: int, columns: int
) -> None:
    """x · A · B is added to the rows of an adapter, in the columns that are the layer's own; each row has the bits that it gets alone, and
    rows without an adapter keep theirs. Adapter 2 does not change the layer."""
    matrices = {
        number: (random(depth, rank, seed=rank), random(rank, columns, seed=50 + rank)) for number, rank in ((0, 3), (1, 64))
    }
    sums, step = NativeLoraKernel(kernels, Arena(kernels), matrices), RunningStep()
    rows = sum(count for _, count in sizes)
    x, wide = random(1, rows, depth, seed=1, dtype=dtype), random(1, rows, columns + 9, seed=2, dtype=dtype)
    ends = list(itertools.accumulate(count for _, count in sizes))
    step.segments = tuple((number, end - count, end) for (number, count), end in zip(sizes, ends, strict=True) if number < 3)
    found = wide.clone()
    sums.add(x, found[..., 4 : 4 + columns], step)
    assert torch.equal(found[..., :4], wide[..., :4]) and torch.equal(found[..., 4 + columns :], wide[..., 4 + columns :])
    for (number, count), end in zip(sizes, ends, strict=True):
        for row in range(end - count, end):
            exact, size = wide[0, row, 4 : 4 + columns].double(), torch.zeros(columns, dtype=torch.float64)
            if number in matrices:
                own, (down, up) = x[0, row].double(), (matrix.double() for matrix in matrices[number])
                exact, size = exact + own @ down @ up, own.abs() @ down.abs() @ up.abs()
            mine = found[0, row, 4 : 4 + columns]
            rounding = 1e-6 if dtype is torch.float32 else 8e-3
            assert bool(((mine.double() - exact).abs() <= 1e-5 * size + rounding * exact.abs() + 1e-30).all())
            step.segments = ((number, 0, None),) if number < 3 else ()
            single = wide[:, row : row + 1, 4 : 4 + columns].clone()
            sums.add(x[:, row : row + 1].clone(), single, step)
            assert torch.equal(single[0, 0], mine)


def test_layers_of_mixed_dtypes_are_refused(kernels: Kernels) -> None:
    """An output of another dtype than the input's is refused, not read as something else."""
    sums, step = NativeLoraKernel(kernels, Arena(kernels), {0: (random(4, 2, seed=1), random(2, 4, seed=2))}), RunningStep()
    step.segments = ((0, 0, None),)
    with pytest.raises(ValueError, match=r"float32 to torch\.bfloat16"):
        sums.add(torch.zeros(1, 3, 4), torch.zeros(1, 3, 4, dtype=torch.bfloat16), step)
