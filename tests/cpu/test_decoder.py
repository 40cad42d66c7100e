"""Decoders that run from their table, in one native call per step."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tgi_backend_cpu.building import CHOICE, VARIANTS, candidates
from tgi_backend_cpu.choosing import choose
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from tests.cpu.conftest import need
from tests.engine.family_flags import FLAGS, save_flagged
from tests.engine.quantized_files import compressed_tensors, write_quantized
from tests.engine.tiny_models import NEW_TOKENS, PROMPTS, Schedule, compare, expected_tokens, open_cpu, ragged_schedule, save_tiny
from tgi_core.backend import EMPTY, Feature, Grant, OutputOptions, Request, WarmupPlan
from tgi_core.engine.decoder.experts import NAMES
from tgi_core.engine.decoder.table import FAMILIES, read_table
from tgi_core.engine.decoder.unsupported import UnsupportedFamily
from tgi_core.model_files import DEMO

PLAN = WarmupPlan(max_rows=8, max_row_tokens=96, max_step_tokens=128, num_blocks=64)


@pytest.fixture(autouse=True)
def needs_kernels() -> None:
    """These tests are about the native step."""
    need(*VARIANTS)
    found, choice = choose(os.environ, 1)
    assert found is not None, choice.reason


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    """What the engine says, whatever another test has switched off."""
    logging.disable(logging.NOTSET)
    with caplog.at_level(logging.INFO):
        yield caplog


@pytest.mark.parametrize("model_type", sorted((set(FAMILIES) - set(NAMES)) & set(CONFIG_MAPPING)))
def test_family_is_token_exact(model_type: str, tmp_path: Path) -> None:
    """In float32 each type of the family makes transformers' own greedy tokens, in chunks and beside others."""
    outcome = compare(model_type, tmp_path)
    assert outcome.verdict == "exact", outcome.note
    session, _ = open_cpu(tmp_path, dtype="float32")
    assert Feature.BATCH_INVARIANT in session.capabilities().features


@pytest.mark.parametrize(("model_type", "fields"), FLAGS)
def test_flags_of_the_family(model_type: str, fields: dict[str, object], tmp_path: Path) -> None:
    """Biases, tied weights, rotary variants, windows of some layers and scalings, each against transformers."""
    save_flagged(model_type, fields, tmp_path)
    session, capacity = open_cpu(tmp_path, dtype="float32")
    assert Feature.BATCH_INVARIANT in session.capabilities().features
    made = ragged_schedule(session, capacity)
    for expected, id in zip(expected_tokens(tmp_path), made, strict=True):
        assert made[id] and made[id] == expected[: len(made[id])]


@pytest.mark.parametrize("head_size", [16, 64])
@pytest.mark.parametrize("cache", ["auto", "int8"])
def test_bits_do_not_depend_on_the_batch_in_bfloat16(head_size: int, cache: str, tmp_path: Path) -> None:
    """Logprobs of a bfloat16 row are the same numbers alone, in chunks, and with mates that come and go."""
    folder = save_tiny("llama", tmp_path, head_dim=head_size)
    session, capacity = open_cpu(folder, PLAN, dtype="bfloat16", cache_dtype=cache)

    def logprobs(beside: bool, take: int) -> list[float]:
        run, found = Schedule(session, capacity), list[float]()
        base = next(ids)
        step = session.prefill((run.request(base, PROMPTS[2], take),), run.handle, ())
        for number in range(40):
            rows = {row.request_id: row for row in session.rows(step).rows}
            found += rows[base].logprobs
            if len(found) == NEW_TOKENS:
                break
            if beside and number in (1, 4):
                new = run.request(next(ids), PROMPTS[number % 3], len(PROMPTS[number % 3]))
                step = session.prefill((new,), step.handle, chunk(base, take, number))
            else:
                step = session.decode((step.handle,), chunk(base, take, number))
        session.clear(None)
        return found

    alone = logprobs(False, len(PROMPTS[2]))
    assert logprobs(True, len(PROMPTS[2])) == logprobs(True, 3) == logprobs(False, 5) == alone


@pytest.mark.parametrize("head_size", [16, 64])
@pytest.mark.parametrize("cache", ["auto", "int8"])
def test_a_long_step_is_its_parts(head_size: int, cache: str, tmp_path: Path) -> None:
    """A step of thousands of tokens is cut wherever its parts end, within a row or between two, and no number changes by that."""
    lengths = (700, 1, 333, 1500, 17, 900, 64)
    folder = save_tiny("llama", tmp_path, max_position_embeddings=2048, head_dim=head_size)
    plan = WarmupPlan(len(lengths), 1600, sum(lengths), num_blocks=7 * 100)
    session, _ = open_cpu(folder, plan, dtype="bfloat16", cache_dtype=cache)
    requests = []
    for index, length in enumerate(lengths):
        table = tuple(range(1 + 100 * index, 101 + 100 * index))
        prompt = tuple((7 * index + 11 * i) % 90 + 3 for i in range(length))
        requests.append(
            Request(index + 1, prompt, length, 0, (table,), length, want=OutputOptions(prompt_logprobs=index % 2 == 0))
        )

    def made(together: tuple[Request, ...]) -> list[tuple[object, ...]]:
        rows = session.rows(session.prefill(together, EMPTY, ())).rows
        session.clear(None)
        return [(row.request_id, row.tokens, row.logprobs, row.prompt_logprobs) for row in rows]

    assert sorted(made(tuple(requests))) == [row for request in requests for row in made((request,))]


ids = iter(range(10**6, 10**9))


def chunk(id: int, take: int, number: int) -> tuple[object, ...]:
    """The grant for the next chunk of a prompt that is taken `take` tokens at a time."""
    left = len(PROMPTS[2]) - take * (number + 1)
    return (Grant(id, min(take, left)),) if left > 0 else ()


def test_bfloat16_is_near_float32(tmp_path: Path) -> None:
    """Teacher-forced logprobs in bfloat16 differ from float32's by a few hundredths at most: the declared tolerance is 0.1."""
    folder = save_tiny("qwen3", tmp_path)
    assert max(abs(a - b) for a, b in zip(forced(folder, "float32"), forced(folder, "bfloat16"), strict=True)) < 0.1


def forced(folder: Path, dtype: str) -> list[float]:
    """Logprobs of a prompt's own tokens."""
    session, _ = open_cpu(folder, PLAN, dtype=dtype)
    prompt = sum(PROMPTS, ())
    request = Request(1, prompt, len(prompt), 0, (tuple(range(1, 4)),), len(prompt), want=OutputOptions(prompt_logprobs=True))
    row = session.rows(session.prefill((request,), EMPTY, ())).rows[0]
    return [value for value in row.prompt_logprobs if value is not None]


def test_trained_weights_take_twelve_bits_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a trained model all matrices do in bfloat16, and none in float32; the server says so. Whether they are faster is not measured
    for kernels that are asked for."""
    monkeypatch.setenv(CHOICE, candidates({})[0].name)
    for dtype, words in (("bfloat16", "lossless 12-bit in 17 of 17"), ("float32", "MiB, dense")):
        session, _ = open_cpu(DEMO, dtype=dtype)
        [told] = [kernel.reason for kernel in session.capabilities().kernels if kernel.part == "weights"]
        assert words in told


def test_no_transformers(tmp_path: Path) -> None:
    """A model of the family is opened and run without importing transformers."""
    folder = save_tiny("llama", tmp_path)
    code = (
        "import sys; from pathlib import Path; from tgi_backend_cpu import plugin; from tgi_core.backend import OpenOptions;"
        f"plugin.backend_open(OpenOptions({str(folder)!r}), lambda *a: None);"
        "sys.exit('transformers' in sys.modules)"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    assert subprocess.run([sys.executable, "-c", code], env=environment, check=False).returncode == 0


def test_without_kernels_all_is_as_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, log: pytest.LogCaptureFixture) -> None:
    """Without a library the same model makes the same tokens through torch, and the log says why."""
    folder = save_tiny("llama", tmp_path)
    native = ragged_schedule(*open_cpu(folder, dtype="float32"))
    monkeypatch.setenv(CHOICE, "torch")
    session, capacity = open_cpu(folder, dtype="float32")
    assert Feature.BATCH_INVARIANT not in session.capabilities().features
    assert ragged_schedule(session, capacity) == native
    assert "TGI_CPU_KERNELS=torch" in log.text and "transformers' modules" in log.text


def test_a_step_that_does_not_prove_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, log: pytest.LogCaptureFixture
) -> None:
    """When the native step's logits differ from plain torch's at load, the model runs through transformers' modules, with the reason."""
    from tgi_core.engine import open_model

    folder = save_tiny("llama", tmp_path)
    wrong = open_model.reference_logits
    monkeypatch.setattr(open_model, "reference_logits", lambda weights, ids: wrong(weights, ids[::-1]))
    session, _ = open_cpu(folder, dtype="float32")
    assert Feature.BATCH_INVARIANT not in session.capabilities().features and "fails the self-check" in log.text


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"model_type": "bloom"}, "not of the family"),
        ({"hidden_act": "gelu"}, "activation"),
        ({"quantization_config": {}, "num_attention_heads": None}, "num_attention_heads"),
        ({"rope_parameters": {"rope_type": "longrope"}}, "longrope"),
        ({"rope_parameters": {"rope_type": "yarn"}}, "original_max_position_embeddings"),
        ({"num_key_value_heads": 3}, "evenly"),
        ({"rms_norm_eps": "small"}, "rms_norm_eps"),
    ],
)
def test_what_the_table_has_no_word_for(change: dict[str, object], reason: str, tmp_path: Path) -> None:
    """Anything beyond the structure is refused with its name."""
    config = json.loads((save_tiny("llama", tmp_path) / "config.json").read_text())
    with pytest.raises(UnsupportedFamily, match=reason):
        read_table(config | change)


def test_an_unknown_tensor_is_not_left_out(tmp_path: Path, log: pytest.LogCaptureFixture) -> None:
    """A checkpoint that holds more than the table asks for is not run from it."""
    folder = save_tiny("qwen3", tmp_path)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"model_type": "llama", "architectures": ["LlamaForCausalLM"]}))
    session, _ = open_cpu(folder, dtype="float32")
    assert Feature.BATCH_INVARIANT not in session.capabilities().features and "norm" in log.text


@pytest.mark.parametrize(("bits", "words"), [(4, "4-bit in 16 of 17"), (8, "8-bit in 16 of 17")])
def test_quantized_weights_keep_their_bits(bits: int, words: str, tmp_path: Path) -> None:
    """In bfloat16 a quantized model multiplies by its codes: near float32's logprobs."""
    write, settings = compressed_tensors(
        "pack-quantized", {"num_bits": bits, "type": "int", "symmetric": False, "strategy": "group", "group_size": 16}
    )
    folder, _ = write_quantized(save_tiny("qwen3", tmp_path / "whole"), tmp_path, write, settings, layers=r"_proj\.weight")
    session, _ = open_cpu(folder, dtype="bfloat16")
    [told] = [kernel.reason for kernel in session.capabilities().kernels if kernel.part == "weights"]
    assert words in told
    assert max(abs(a - b) for a, b in zip(forced(folder, "float32"), forced(folder, "bfloat16"), strict=True)) < 0.1
