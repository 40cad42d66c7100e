"""Adapters on single rows, against weights merged by hand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from transformers import DynamicCache

from tests.engine.lora_files import make_adapter, merged_tokens
from tests.engine.tiny_models import NEW_TOKENS, PROMPTS, Schedule, expected_tokens, open_cpu, save_tiny
from tgi_core.backend import EMPTY, Adapter, BackendError, Capacity, Feature, Grant, Group, Request, Unsupported, WarmupPlan
from tgi_core.backend.session import Session

PLAN = WarmupPlan(max_rows=8, max_row_tokens=64, max_step_tokens=128, num_blocks=256)

ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
MLP = ("gate_proj", "up_proj", "down_proj")

TYPES = {
    "llama": (*ATTENTION, *MLP),
    "qwen2": ("q_proj", "v_proj", "down_proj"),
    "phi3": ("qkv_proj", "o_proj", "gate_up_proj", "down_proj"),
    "gpt_neox": ("query_key_value", "dense", "dense_h_to_4h", "dense_4h_to_h"),
    "mixtral": ATTENTION,
    "gpt2": ("c_attn", "c_proj", "c_fc"),
    "bloom": ("query_key_value", "dense"),
    "lfm2": ("q_proj", "w1", "w2"),
    "mamba": ("in_proj", "out_proj"),
}
"""Grouped queries, biases, merged projections, two layouts of GPT, a mixture of experts, one type whose attention is traced, layers beside
those with states, and layers inside them."""
OWN_CACHE = ("mamba",) if hasattr(DynamicCache, "update_conv_state") else ("mamba", "lfm2")
"""Those of them that run so, in transformers 5 and 4."""


def run_mixed(session: Session, capacity: Capacity, names: tuple[str | None, ...], first: int) -> list[list[int]]:
    """Every prompt with every adapter, all rows in the same steps, joining one after the other."""
    run = Schedule(session, capacity)
    chunked = Feature.CHUNKED_PREFILL in session.capabilities().features
    ids = []
    for index, (name, prompt) in enumerate((name, prompt) for prompt in PROMPTS[:2] for name in names):
        ids.append(first + index)
        run.step(replace(run.request(ids[-1], prompt, len(prompt)), adapter=name))
        assert chunked or run.handle != EMPTY
    while any(len(run.tokens[id]) < NEW_TOKENS for id in ids):
        run.step()
    session.clear(None)
    return [run.tokens[id][:NEW_TOKENS] for id in ids]


@pytest.mark.parametrize("model_type", TYPES)
def test_rows_of_one_step_have_adapters_of_their_own(model_type: str, tmp_path: Path) -> None:
    """Rows of two adapters of different rank and scale and rows without any, side by side: each gets the tokens that transformers
    generates from weights with its adapter merged in, and the others those of the model alone."""
    model = save_tiny(model_type, tmp_path / "model")
    one = make_adapter(tmp_path / "one", model, *TYPES[model_type], rank=4, seed=1)
    two = make_adapter(tmp_path / "two", model, *TYPES[model_type][:2], rank=7, seed=2, lora_alpha=9, use_rslora=True)
    session, capacity = open_cpu(model, PLAN, adapters=(one, two))
    assert session.capabilities().adapters == ("one", "two") and Feature.LORA in session.capabilities().features
    assert (Feature.CHUNKED_PREFILL in session.capabilities().features) is (model_type not in OWN_CACHE)
    found = run_mixed(session, capacity, (None, "one", "two"), 1)
    wanted = [expected_tokens(model), merged_tokens(model, one, tmp_path / "m1"), merged_tokens(model, two, tmp_path / "m2")]
    assert found == [tokens[prompt] for prompt in range(2) for tokens in wanted]
    assert len({str(tokens[:2]) for tokens in wanted}) == 3


@pytest.fixture(scope="module")
def lora(llama: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Adapter, ...]:
    """Two adapters of the tiny Llama."""
    folder = tmp_path_factory.mktemp("adapters")
    one = make_adapter(folder / "one", llama, *ATTENTION, *MLP, seed=1)
    return one, make_adapter(folder / "two", llama, "q_proj", "down_proj", rank=7, seed=2)


@pytest.fixture(scope="module")
def adapted(llama: Path, lora: tuple[Adapter, ...]) -> tuple[Session, Capacity]:
    """A session with both."""
    return open_cpu(llama, PLAN, adapters=lora)


def logprobs(session: Session, requests: tuple[Request, ...], steps: int) -> list[tuple[float, ...]]:
    """The logprobs of all tokens of a batch, bit for bit."""
    step = session.prefill(requests, EMPTY, ())
    made = [row.logprobs for row in session.rows(step).rows]
    for _ in range(steps):
        step = session.decode((step.handle,), ())
        made += [row.logprobs for row in session.rows(step).rows]
    session.clear(None)
    return made


def test_without_adapters_nothing_changes(llama: Path, adapted: tuple[Session, Capacity]) -> None:
    """Steps whose rows name no adapter give the very bits of a server without adapters."""
    opened = open_cpu(llama, WarmupPlan(max_rows=8, max_row_tokens=96, max_step_tokens=128, num_blocks=64))
    results = []
    for first, (session, capacity) in ((10**6, opened), (10**6, adapted)):
        run = Schedule(session, capacity)
        requests = tuple(run.request(first + index, prompt, len(prompt)) for index, prompt in enumerate(PROMPTS))
        results.append(logprobs(session, requests, 8))
    assert results[0] == results[1]
    assert Feature.LORA not in opened[0].capabilities().features and opened[0].capabilities().adapters == ()


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_mates(adapted: tuple[Session, Capacity], data: st.DataObject) -> None:
    """Whatever the adapters, prompts, chunks and number of the mates: a row's float32 tokens are its own."""
    session, capacity = adapted
    first = data.draw(st.integers(0, 10**6)) * 100 + 10**8
    rows = data.draw(st.lists(st.tuples(st.sampled_from([None, "one", "two"]), st.integers(0, 2)), min_size=1, max_size=6))
    run = Schedule(session, capacity)

    def resting() -> tuple[Grant, ...]:
        return tuple(Grant(id, 0) for id, tokens in run.tokens.items() if len(tokens) >= 4)

    try:
        for id, (name, prompt) in enumerate(rows, first):
            take = data.draw(st.integers(1, len(PROMPTS[prompt])))
            grants = resting()
            run.step(replace(run.request(id, PROMPTS[prompt], take), adapter=name), grants=grants)
            if take < len(PROMPTS[prompt]):
                run.step(grants=(*resting(), Grant(id, len(PROMPTS[prompt]) - take)))
        while any(len(tokens) < 4 for tokens in run.tokens.values()):
            run.step(grants=resting())
    finally:
        session.clear(None)
    for id, row in enumerate(rows, first):
        assert run.tokens[id] == alone(adapted, *row)


_alone: dict[tuple[str | None, int], list[int]] = {}


def alone(adapted: tuple[Session, Capacity], name: str | None, prompt: int) -> list[int]:
    """The first tokens of a row that runs by itself."""
    if (name, prompt) not in _alone:
        run, id = Schedule(*adapted), 10**7 + len(_alone)
        run.step(replace(run.request(id, PROMPTS[prompt], len(PROMPTS[prompt])), adapter=name))
        while len(run.tokens[id]) < 4:
            run.step()
        adapted[0].clear(None)
        _alone[name, prompt] = run.tokens[id][:4]
    return _alone[name, prompt]


@pytest.mark.parametrize("name", ["three", "", "ONE", "one/", "../one", "/etc/passwd", "one\0", "x" * 4096])
def test_an_adapter_that_is_not_loaded_is_refused(adapted: tuple[Session, Capacity], name: str) -> None:
    """A name is a key and nothing else: what is not loaded is Unsupported before anything runs."""
    request = replace(Schedule(*adapted).request(5, PROMPTS[0], 9), adapter=name)
    with pytest.raises(Unsupported, match="not loaded"):
        adapted[0].prefill((request,), EMPTY, ())
    assert adapted[0].clear(None).count == 0


def test_adapters_in_bfloat16(llama: Path, lora: tuple[Adapter, ...]) -> None:
    """The same rows run in bfloat16, over a plan that names the adapters' share of memory."""
    session, capacity = open_cpu(llama, PLAN, dtype="bfloat16", adapters=lora)
    assert all(run_mixed(session, capacity, (None, "one", "two"), 1))
    shares = {memory.name: memory.num_bytes for memory in capacity.memory}
    sizes = [sum(p.numel() for p in load_file(f"{each.directory}/adapter_model.safetensors").values()) for each in lora]
    assert shares["adapters"] >= 4 * sum(sizes)  # in float32, and padded to whole panels


def test_adapters_are_not_split_over_ranks(llama: Path, lora: tuple[Adapter, ...]) -> None:
    """A group of several ranks is refused with the flag's name."""
    with pytest.raises(BackendError, match=r"--lora-adapters.*2 ranks"):
        open_cpu(llama, group=Group(0, 2, "127.0.0.1:1"), adapters=lora)
