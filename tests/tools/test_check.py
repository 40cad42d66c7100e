"""`tgi check` says before loading what a load then takes."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file
from transformers import AutoConfig

from tests.engine.gguf_files import write_gguf
from tests.engine.image_models import save_model
from tests.engine.mtp_files import DEEPSEEK, MIMO, bring, change_config
from tests.engine.tiny_models import save_tiny, silent
from tests.hub.conftest import Run
from tests.hub.fake_hub import FakeHub
from tests.serve.process import run
from tgi_core.backend import CacheGroup, CacheKind, Capabilities, Capacity, OpenOptions, WarmupPlan
from tgi_core.backend.registry import find
from tgi_core.backend.session import Session
from tgi_core.cli.check import parse_size
from tgi_core.cli.fit import Planned
from tgi_core.errors import StartupError
from tgi_core.hub.headers import write_hollow
from tgi_core.model_files import DEMO
from tgi_core.wire.types import ShardInfo

FAMILIES = (
    "llama",
    "qwen2",
    "qwen3",
    "phi3",
    "gpt2",
    "gemma2",
    "gpt_neox",
    "mixtral",
    "bloom",
    "gpt_neo",
    "mvp",
    "doge",
    "mamba",
    "lfm2",
    "deepseek_v32",
    "glm_moe_dsa",
)
"""Types that run from a table, through transformers' modules with a paged cache, with their own cache, with states, and with an index."""
PLAN = WarmupPlan(max_rows=4, max_row_tokens=64, num_blocks=None)


def opened(model: Path, loaded: bool, plan: WarmupPlan = PLAN, **options: Any) -> tuple[Capabilities, Capacity]:
    """What a session says that is loaded, or only planned."""
    plugin, asked = find("cpu"), OpenOptions(str(model), **options)
    made = plugin.open(asked, silent) if loaded else plugin.plan(asked, silent, None)
    session = Session(made, "cpu")
    try:
        return session.capabilities(), session.warmup(plan, silent)
    finally:
        session.close()


def memory(capacity: Capacity, name: str) -> int:
    """Bytes of a part."""
    return sum(item.num_bytes for item in capacity.memory if item.name.startswith(name))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("model_type", FAMILIES)
def test_a_plan_is_what_a_load_takes(model_type: str, dtype: str, tmp_path: Path) -> None:
    """The same runner, attention and limits; the cache to the byte, weights within 5 %."""
    wide = {"vocab_size": 4096} if model_type == "llama" else {}
    model = save_tiny(model_type, tmp_path / "model", **wide)
    (planned, expected), (found, capacity) = (opened(model, loaded, dtype=dtype) for loaded in (False, True))
    for part in ("step", "attention"):
        assert [kernel.name for kernel in planned.kernels if kernel.part == part] == [
            kernel.name for kernel in found.kernels if kernel.part == part
        ]
    assert (planned.block_sizes, planned.vocab_size, planned.max_positions) == (
        found.block_sizes,
        found.vocab_size,
        found.max_positions,
    )
    assert (expected.groups, expected.max_rows, expected.max_row_tokens) == (
        capacity.groups,
        capacity.max_rows,
        capacity.max_row_tokens,
    )
    for part in ("kv cache", "states"):
        assert memory(expected, part) == memory(capacity, part)
    assert memory(expected, "weights") == pytest.approx(memory(capacity, "weights"), rel=0.05)
    assert memory(expected, "activations") == memory(capacity, "activations")


@pytest.mark.parametrize("model_type", ["mimo", "glm4_moe", "qwen3_next"])
def test_own_layers_are_planned(model_type: str, tmp_path: Path) -> None:
    """A layer for multi-token prediction takes what it takes when it is loaded; models with states do not use it."""
    model = tmp_path / "model"
    if model_type == "qwen3_next":
        change_config(save_tiny(model_type, model), num_nextn_predict_layers=1)
    else:
        bring(model, model_type, MIMO if model_type == "mimo" else DEEPSEEK, vocab_size=4096)
    options: dict[str, Any] = {"dtype": "bfloat16", "speculator": str(model)}
    (planned, expected), (found, capacity) = (
        opened(model, loaded, replace(PLAN, draft=3), **options) for loaded in (False, True)
    )
    names = [[kernel.name for kernel in each.kernels if kernel.part == "proposals"] for each in (planned, found)]
    assert names == [["none" if model_type == "qwen3_next" else "mtp"]] * 2
    assert planned.proposals == found.proposals
    if model_type == "mimo":  # of others, only a load shows whether they run drafts
        assert memory(expected, "kv cache") == memory(capacity, "kv cache") and expected.groups == capacity.groups
    assert memory(expected, "speculator") == pytest.approx(memory(capacity, "speculator"), rel=0.05)


@pytest.mark.parametrize("family", ["paligemma", "paligemma2"])
def test_prompts_that_see_their_own_future_are_planned(family: str, tmp_path: Path) -> None:
    """With the attention that lets them, and blocks for all positions also of layers with a window."""
    model = save_model(family, tmp_path / "model")
    (planned, expected), (found, capacity) = (opened(model, loaded, dtype="float32") for loaded in (False, True))
    assert planned.whole_prompts and found.whole_prompts and expected.groups == capacity.groups
    names = [{kernel.name for kernel in each.kernels if kernel.part == "attention"} for each in (planned, found)]
    assert names == [{"torch"}, {"torch"}]


def test_images_that_layers_look_at_are_planned(tmp_path: Path) -> None:
    """What a load keeps for their keys and values, and no part of that memory is promised twice."""
    model, memory_bytes = save_model("mllama", tmp_path / "model"), 24 << 20
    (_, expected), (_, capacity) = (opened(model, loaded, dtype="float32") for loaded in (False, True))
    assert memory(expected, "images") == memory(capacity, "images") > 0 and expected.groups == capacity.groups
    plan = WarmupPlan(max_rows=2, max_row_tokens=64, max_step_tokens=16)
    planned = Session(find("cpu").plan(OpenOptions(str(model), dtype="float32"), silent, memory_bytes), "cpu")
    small = planned.warmup(plan, silent)
    assert memory(small, "images") > 0 and sum(item.num_bytes for item in small.memory) <= memory_bytes


@pytest.mark.parametrize("model_type", ["gemma2", "qwen3", "mistral"])
def test_window_groups_are_planned(model_type: str, tmp_path: Path) -> None:
    """Layers with a window have the group that they have in a loaded model, of the same bytes; the report counts rows by both groups."""
    mixed = {"layer_types": ["sliding_attention", "full_attention"] * 2, "use_sliding_window": True, "num_hidden_layers": 4}
    sizes = {"sliding_window": 24, "max_position_embeddings": 512} | ({} if model_type == "mistral" else mixed)
    model, plan = save_tiny(model_type, tmp_path / "model", **sizes), WarmupPlan(max_rows=4, max_step_tokens=32)
    (_, expected), (capabilities, capacity) = (opened(model, loaded, plan, dtype="float32") for loaded in (False, True))
    assert expected.groups == capacity.groups and capacity.groups[-1] == CacheGroup(CacheKind.WINDOW, 16, 4 * 4 + 2, 24)
    assert memory(expected, "kv cache") == memory(capacity, "kv cache")
    info = ShardInfo("tiny", "cpu", "cpu", "float32", (1, 8), capabilities)
    found = Planned(info, capacity, "")
    assert found.holds()[-1] == (512, 4)
    short = replace(capacity, groups=(*capacity.groups[:-1], replace(capacity.groups[-1], num_blocks=6)))
    assert replace(found, capacity=short).holds()[-1] == (512, 2)
    tokens = max(group.num_blocks * 16 for group in capacity.groups)
    assert found.bytes_per_token == memory(capacity, "kv cache") / tokens


@pytest.mark.parametrize("options", [{"quantize": "int8"}, {"quantize": "int4"}, {"cache_dtype": "int8"}], ids=str)
def test_smaller_weights_and_caches(options: dict[str, str], tmp_path: Path) -> None:
    """Weights that are rounded at load, and a cache of eight bits."""
    model = save_tiny("llama", tmp_path / "model", hidden_size=128, intermediate_size=512)
    (_, expected), (_, capacity) = (opened(model, loaded, dtype="bfloat16", **options) for loaded in (False, True))
    assert memory(expected, "weights") == pytest.approx(memory(capacity, "weights"), rel=0.05)
    assert memory(expected, "kv cache") == memory(capacity, "kv cache")


def hollow(model: Path, to: Path) -> Path:
    """A copy of a model whose weights have headers and no values."""
    shutil.copytree(model, to, ignore=shutil.ignore_patterns("*.safetensors"))
    at, header = 0, {}
    for name, value in load_file(model / "model.safetensors").items():
        size = value.numel() * value.itemsize
        kind = {"torch.float32": "F32", "torch.bfloat16": "BF16"}[str(value.dtype)]
        header[name] = {"dtype": kind, "shape": list(value.shape), "data_offsets": [at, at + size]}
        at += size
    write_hollow(to / "model.safetensors", header)
    return to


def test_only_headers_are_read(tmp_path: Path) -> None:
    """Files without values give the same plan."""
    model = save_tiny("llama", tmp_path / "model")
    (one, _), (other, _) = (opened(path, False) for path in (model, hollow(model, tmp_path / "hollow")))
    assert replace(one, kernels=()) == replace(other, kernels=())
    found = [document(str(path), "--backend", "cpu") for path in (model, tmp_path / "hollow")]
    assert found[0]["needed_bytes"] == found[1]["needed_bytes"]


def document(*arguments: str, status: int = 0) -> dict[str, Any]:
    """What `tgi check --json` prints."""
    done = run("check", *arguments, "--json")
    assert done.returncode == status, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_the_demo_model() -> None:
    """A model that fits: its plan, what the cache holds, and the kernels; a table for people."""
    found = document("--backend", "cpu", "--max-total-tokens", "512")
    assert found["fits"] and found["reason"] == "" and found["alternatives"] == []
    assert found["holds"][-1]["tokens"] == found["max_row_tokens"] == 512
    assert found["needed_bytes"] == sum(item["num_bytes"] for item in found["memory"] if item["name"] != "reserve")
    assert found["kv_bytes_per_token"] * sum(g["num_blocks"] * g["block_size"] for g in found["groups"]) == pytest.approx(
        next(item["num_bytes"] for item in found["memory"] if item["name"] == "kv cache")
    )
    assert {"kernels", "step", "linear"} <= {kernel["part"] for kernel in found["kernels"]}
    shown = run("check", "--backend", "cpu").stdout
    assert "fits" in shown.splitlines()[0] and "KV cache per token" in shown and "fused decoder" in shown


def test_what_would_make_it_fit(tmp_path: Path) -> None:
    """Where the weights do not fit, the reason has sizes, and quantization that makes them fit is named."""
    config = AutoConfig.for_model("llama", hidden_size=512, intermediate_size=2048, num_hidden_layers=4, vocab_size=512)
    model = save_tiny(
        "llama", tmp_path / "model", **{name: getattr(config, name) for name in ("hidden_size", "intermediate_size")}
    )
    flags = (
        str(model),
        "--backend",
        "cpu",
        "--max-total-tokens",
        "64",
        "--max-batch-size",
        "1",
        "--max-batch-prefill-tokens",
        "64",
    )
    whole = document(*flags, "--alternatives")
    smaller = min(whole["alternatives"], key=lambda each: each["needed_bytes"])
    memory = 1.12 * (smaller["needed_bytes"] + whole["needed_bytes"]) / 2
    done = run("check", *flags, "--memory", f"{memory / 1e6:.2f}MB", "--json")
    told = json.loads(done.stdout)
    assert done.returncode == 1 and not told["fits"]
    assert (
        "does not fit" in done.stderr and "it would fit with" in done.stderr and "--dtype bfloat16 --quantize int4" in done.stderr
    )
    assert {each["flags"] for each in told["alternatives"] if each["fits"]} >= {"--dtype bfloat16 --quantize int4"}
    assert run("check", *flags, "--memory", "1kB").returncode == 1


def test_gguf(tmp_path: Path) -> None:
    """Of a GGUF file, too, only the header is read."""
    model = save_tiny("llama", tmp_path / "model", hidden_size=64, vocab_size=512)
    file, _ = write_gguf(model, tmp_path / "gguf", {r"_proj\.weight": "Q8_0"})
    found = document(str(file), "--backend", "cpu", "--huggingface-hub-cache", str(tmp_path / "cache"))
    assert found["fits"] and found["needed_bytes"] > 0


def test_a_model_of_the_hub(hub: FakeHub, tgi: Run, demo_files: dict[str, bytes], tmp_path: Path) -> None:
    """Of a model that is not cached, config and headers are fetched; the weights are not, and a later load fetches them."""
    hub.add("o/m", demo_files)
    done = tgi("check", "o/m", "--backend", "cpu", "--json")
    assert done.returncode == 0, done.stderr
    local = json.loads(run("check", str(DEMO), "--backend", "cpu", "--json").stdout)
    assert json.loads(done.stdout)["needed_bytes"] == local["needed_bytes"]
    assert not list((tmp_path / "home").glob("hub/models--o--m/snapshots/*/model.safetensors"))
    fetched = tgi("download-weights", "o/m")
    assert (Path(fetched.stdout.strip()) / "model.safetensors").read_bytes() == demo_files["model.safetensors"]


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("--backend", "reference"), "backend reference: this backend plans no model before it is loaded"),
        (("--memory", "much"), "--memory much: must be a size such as 24GiB or 80GB"),
        (("/nowhere/model",), "/nowhere/model"),
        (("--backend", "cpu", "--num-shard", "2"), "leave --num-shard out"),
        (("--backend", "cpu", "--kv-cache-dtype", "fp8_e5m2"), "--kv-cache-dtype"),
    ],
)
def test_mistakes_are_named(arguments: tuple[str, ...], reason: str) -> None:
    """The message says what cannot be planned, and why."""
    done = run("check", *arguments)
    assert done.returncode == 1 and reason in done.stderr


def test_sizes() -> None:
    """Units of a thousand and of 1,024."""
    assert [parse_size(text) for text in ("24GiB", "80 GB", "1.5mib", "7")] == [24 << 30, 80 * 10**9, 3 << 19, 7]
    with pytest.raises(StartupError, match="--memory -1GB"):
        parse_size("-1GB")


@pytest.mark.parametrize("loaded", [False, True])
def test_an_embedding_stays_beside_its_packed_head(loaded: bool, tmp_path: Path) -> None:
    """A tied head that a kernel packs takes memory of its own: as much as one that is not tied."""
    tied, apart = (
        save_tiny("gemma2", tmp_path / str(is_tied), tie_word_embeddings=is_tied, vocab_size=4096) for is_tied in (True, False)
    )
    weights = [memory(opened(model, loaded, dtype="bfloat16")[1], "weights") for model in (tied, apart)]
    assert weights[0] == pytest.approx(weights[1], rel=0.02)
