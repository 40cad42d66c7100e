"""Encoder-decoders: rows together against rows alone, and against transformers' own `generate`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tgi_backend_cpu import plugin

from tests.engine.encoder_decoders import expected_tokens, prompts, save_tiny
from tests.engine.tiny_configs import TRANSFORMERS_5
from tests.engine.tiny_models import Schedule, open_cpu, silent
from tgi_core.backend import (
    EMPTY,
    CacheKind,
    Capacity,
    Feature,
    Group,
    InvalidModel,
    InvalidRequest,
    OpenOptions,
    OutputOptions,
    Request,
    Sampling,
    Unsupported,
    WarmupPlan,
)
from tgi_core.backend.errors import CapacityExceeded
from tgi_core.backend.session import Session
from tgi_core.engine.encoder_decoder.lanes import Lanes, LaneShape, LayerShapes
from tgi_core.engine.encoder_decoder.session import EncoderDecoderSession

NEW = 10
SEEDED = Sampling(do_sample=True, temperature=0.9, top_p=0.95, repetition_penalty=1.1, frequency_penalty=0.2, seed=7)
Opened = tuple[Session, Capacity]
reads_weights = pytest.mark.skipif(
    not TRANSFORMERS_5, reason="transformers 4 reads its weights to run it, so it cannot be planned"
)


@pytest.fixture(scope="module")
def t5(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random T5: a bias per distance."""
    return save_tiny("t5", tmp_path_factory.mktemp("t5"))


@pytest.fixture(scope="module")
def bart(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random BART: an embedding per position."""
    return save_tiny("bart", tmp_path_factory.mktemp("bart"))


def open_rows(folder: Path, rows: int = 4) -> Opened:
    """A warmed session."""
    return open_cpu(folder, WarmupPlan(max_rows=rows, max_row_tokens=64), dtype="float32")


def joined(opened: Opened, asked: list[tuple[int, ...]], sampling: Sampling = Sampling(), together: int = 4) -> list[list[int]]:
    """The tokens of all prompts, of which some join each step while others decode; blocks are given in an order of their own."""
    run, blocks = Schedule(*opened), list(range(opened[1].max_rows, 0, -1))
    waiting = list(enumerate(asked, 1))
    while waiting or any(len(made) < NEW for made in run.tokens.values()):
        joining, waiting = waiting[:together], waiting[together:]
        requests = []
        for id, prompt in joining:
            block = ((blocks[(5 * id) % len(blocks)] if len(asked) == len(blocks) else id,),)
            drawn = replace(sampling, seed=sampling.seed + id) if sampling.do_sample else sampling
            requests.append(replace(run.request(id, prompt, len(prompt)), blocks=block, sampling=drawn))
        run.step(*requests)
    opened[0].clear(None)
    return [run.tokens[id][:NEW] for id in sorted(run.tokens)]


@pytest.mark.parametrize("model_type", ["t5", "mt5", "bart", "pegasus", "m2m_100"])
def test_rows_equal_generate(model_type: str, tmp_path: Path) -> None:
    """Rows of different lengths, joining midway, get what `generate` makes of each alone: also after a forced first token, without the
    tokens that the generation config excludes, and with a repetition penalty, which counts the start token but not the prompt."""
    generation: dict[str, Any] = {"bad_words_ids": [[9], [200], [44, 3]]}
    if model_type == "m2m_100":
        generation["forced_bos_token_id"] = 17
    folder, asked = save_tiny(model_type, tmp_path, generation), prompts(4)
    opened = open_rows(folder)
    expected = expected_tokens(folder, asked, NEW, bad_words_ids=[[9], [200]])
    assert joined(opened, asked, together=1) == expected
    if model_type == "m2m_100":
        assert {tokens[0] for tokens in expected} == {17}
    penalized = expected_tokens(folder, asked, NEW, bad_words_ids=[[9], [200]], repetition_penalty=1.5)
    assert joined(opened, asked, Sampling(repetition_penalty=1.5)) == penalized != expected


@pytest.mark.parametrize("sampling", [Sampling(), SEEDED], ids=["greedy", "seeded"])
@pytest.mark.parametrize("name", ["t5", "bart"])
def test_32_rows_equal_rows_alone(name: str, sampling: Sampling, request: pytest.FixtureRequest) -> None:
    """Of 32 rows that run together, each gets the tokens that it gets alone."""
    opened, asked = open_rows(request.getfixturevalue(name), 32), prompts(32)
    together = joined(opened, asked, sampling, together=8)
    assert len({tuple(tokens) for tokens in together}) > 8
    for id in (1, 8, 21, 32):
        run = Schedule(*opened)
        drawn = replace(sampling, seed=sampling.seed + id) if sampling.do_sample else sampling
        run.step(replace(run.request(id, asked[id - 1], len(asked[id - 1])), blocks=((3,),), sampling=drawn))
        while len(run.tokens[id]) < NEW:
            run.step()
        opened[0].clear(None)
        assert run.tokens[id] == together[id - 1]


def test_a_continued_request_makes_the_same_tokens(t5: Path) -> None:
    """A row that was preempted goes on from its prompt and its tokens, drawn with the same numbers, also beyond a chunk of them."""
    opened = open_cpu(t5, WarmupPlan(max_rows=3, max_row_tokens=64), dtype="float32")
    session, (prompt,) = opened[0], [item for item in prompts(8) if len(item) > 4][:1]
    run = Schedule(*opened)
    run.step(replace(run.request(1, prompt, len(prompt)), sampling=SEEDED))
    while len(run.tokens[1]) < 40:
        run.step()
    session.clear(None)
    for kept in (1, 35):
        tokens = (*prompt, *run.tokens[1][:kept])
        again = Schedule(*opened)
        again.tokens[2] = []
        again.step(Request(2, tokens, len(prompt), 0, ((2,),), len(tokens), SEEDED))
        again.step()
        session.clear(None)
        assert again.tokens[2] == run.tokens[1][kept : kept + 2]


def test_what_a_row_returns(t5: Path) -> None:
    """Prompts have no logprobs, since no distribution is over them; tokens have theirs."""
    session, _ = open_rows(t5)
    want = OutputOptions(logprobs=True, top_n=2, prompt_logprobs=True)
    (row,) = session.rows(session.prefill((Request(1, (5, 6, 7), 3, 0, ((1,),), 3, want=want),), EMPTY, ())).rows
    assert row.prompt_logprobs == (None, None, None)
    assert len(row.tokens) == 1 and row.logprobs[0] < 0 and row.top[0][0].id == row.tokens[0]


def test_a_broken_row_leaves_the_next_in_its_lane_whole(bart: Path) -> None:
    """Keys and values that are not finite do not outlive their row, whichever lanes rows have moved through."""
    inner = plugin.backend_open(OpenOptions(str(bart), dtype="float32"), silent)
    assert isinstance(inner, EncoderDecoderSession)
    session, asked = Session(inner, "cpu"), prompts(4)
    opened = session, session.warmup(WarmupPlan(max_rows=2, max_row_tokens=64), silent)
    expected = [joined(opened, [prompt])[0] for prompt in asked[:2]]
    lanes = inner.runner._lanes  # type: ignore[attr-defined]
    run = Schedule(*opened)
    run.step(*(run.request(id, asked[id], len(asked[id])) for id in (2, 3)))
    for layer in (*lanes.own, *lanes.cross):
        layer.values[:, :, :1] = torch.nan
    session.clear(None)
    assert joined(opened, asked[:2]) == expected


def test_limits_are_apart(bart: Path) -> None:
    """The longest prompt and the longest answer are limits of their own, and beyond them a verb is refused before anything runs."""
    session, capacity = open_cpu(bart, WarmupPlan(max_rows=2), dtype="float32")
    (group,) = capacity.groups
    assert (group.kind, group.block_size, group.num_blocks, capacity.max_row_tokens) == (CacheKind.CROSS, 256, 2, 512)
    longest = Request(1, (5,) * 257, 257, 0, ((1,),), 257)
    with pytest.raises(InvalidRequest, match="its prompt must have from 1 to 256 tokens, not 257"):
        session.prefill((longest,), EMPTY, ())
    with pytest.raises(InvalidRequest, match="exceeds the 256 tokens that follow a prompt"):
        session.prefill((Request(2, (5,) * 258, 2, 0, ((1,),), 258),), EMPTY, ())
    with pytest.raises(CapacityExceeded):
        session.prefill((Request(3, (5,) * 513, 2, 0, ((1,),), 513),), EMPTY, ())
    full = session.prefill((Request(4, (5,) * 511, 256, 0, ((1,),), 511),), EMPTY, ())
    assert session.rows(full).rows[0].tokens
    with pytest.raises(InvalidRequest, match="position 511 exceeds"):
        session.decode((full.handle,), ())


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"group": Group(0, 2, "localhost:1")}, "runs on one rank; leave --num-shard out"),
        ({"quantize": "int8"}, "runs with plain weights only; leave --quantize out"),
        ({"cache_dtype": "int8"}, "keeps its cache in the model's dtype; leave --kv-cache-dtype out"),
    ],
    ids=["ranks", "quantized weights", "quantized cache"],
)
def test_refusals(t5: Path, options: dict[str, Any], reason: str) -> None:
    """What encoder-decoders cannot do is said in one line, with the flag."""
    with pytest.raises(Unsupported, match=reason):
        plugin.backend_open(OpenOptions(str(t5), **options), silent)


def test_unusable_models_are_named(tmp_path: Path) -> None:
    """Experts whose tokens depend on the batch, and a model without a start token."""
    experts = save_tiny("switch_transformers", tmp_path / "experts")
    with pytest.raises(Unsupported, match="expert_capacity"):
        plugin.backend_open(OpenOptions(str(experts)), silent)
    folder = save_tiny("t5", tmp_path / "t5", {"decoder_start_token_id": None, "bos_token_id": None})
    file = folder / "config.json"
    file.write_text(file.read_text().replace('"decoder_start_token_id"', '"_"').replace('"bos_token_id"', '"_b"'))
    with pytest.raises(InvalidModel, match="decoder_start_token_id"):
        plugin.backend_open(OpenOptions(str(folder)), silent)


@pytest.mark.parametrize("model_type", ["t5", pytest.param("m2m_100", marks=reads_weights)])
def test_a_plan_is_what_a_load_takes(model_type: str, tmp_path: Path) -> None:
    """Without weights, the limits and the memory are those of a load."""
    folder, plan = save_tiny(model_type, tmp_path, {"forced_bos_token_id": 9}), WarmupPlan(max_rows=5, max_row_tokens=100)
    loaded, planned = (
        Session(open_(OpenOptions(str(folder), dtype="float32")), "cpu")
        for open_ in (
            lambda options: plugin.backend_open(options, silent),
            lambda options: plugin.backend_plan(options, silent, 1 << 33),
        )
    )
    assert Feature.MASKS not in loaded.capabilities().features
    found, expected = planned.warmup(plan, silent), loaded.warmup(plan, silent)
    assert (found.groups, found.max_row_tokens, found.max_step_tokens) == (
        expected.groups,
        expected.max_row_tokens,
        expected.max_step_tokens,
    )
    assert found.memory[:3] == expected.memory[:3]


ROWS = 6


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(st.integers(1, ROWS), unique=True), max_size=12), st.data())
def test_lanes_keep_their_rows(steps: list[list[int]], data: st.DataObject) -> None:
    """Whichever rows run, pause, or begin anew: those of a step are in the first lanes, and each lane holds its row's own positions, then
    zeros."""
    shape = LaneShape(1, 1, 2)
    lanes = Lanes([LayerShapes(shape, shape)], ROWS, 4, 5, torch.float32, torch.device("cpu"))
    rows: dict[int, tuple[int, int]] = {}
    for step in steps:
        begun = [block for block in step if block not in rows or data.draw(st.booleans())]
        going = [block for block in step if block not in begun]
        lanes.arrange(going)
        for block in begun:
            lanes.begin(block)
        lanes.arrange(begun, len(going))
        assert sorted(lanes[block] for block in going) == list(range(len(going)))
        assert sorted(lanes[block] for block in begun) == list(range(len(going), len(step)))
        for block in step:
            prompt = rows[block][0] if block in going else data.draw(st.integers(1, 4))
            answer = min(5, rows[block][1] + 1) if block in going else 1
            rows[block] = prompt, answer
            for (layer,), used in ((lanes.own, answer), (lanes.cross, prompt)):
                layer.keys[lanes[block], :, :used] = layer.values[lanes[block], :, :used] = block
            lanes.written(block, prompt, answer)
        for block, (prompt, answer) in rows.items():
            for (layer,), used in ((lanes.own, answer), (lanes.cross, prompt)):
                wanted = [block] * used + [0] * (layer.keys.shape[2] - used)
                assert layer.keys[lanes[block], 0, :, 0].tolist() == wanted
                assert layer.values[lanes[block], 0, :, 1].tolist() == wanted
