"""Whether `tgi check` says what a load takes: `python -m bench.planning [--shapes NAME ...] [--json OUT]`.

Random checkpoints of ten shapes in three dtypes are planned, then loaded in a process of their own and filled: the whole KV cache is
written, in steps of the greatest size that score their prompts, with tokens from all over the vocabulary; then all rows are sampled with
penalties and filters that sort it. Memory is the process's peak then, above what it has after it has run a tiny model of the same type,
which loads the same libraries.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from bench.report.tables import table
from tgi_core.backend import EMPTY, Capacity, OpenOptions, OutputOptions, Request, Sampling, WarmupPlan
from tgi_core.backend.registry import find
from tgi_core.backend.session import Session
from tgi_core.process_memory import trim_heap

ROWS, CONTEXT, STEP = 16, 1024, 512
PLAN = WarmupPlan(max_rows=ROWS, max_row_tokens=CONTEXT, max_step_tokens=STEP, num_blocks=ROWS * CONTEXT // 16, block_size=16)

_LLAMA = {"num_attention_heads": 16, "num_key_value_heads": 4, "vocab_size": 32000}
SHAPES: dict[str, Mapping[str, Any]] = {
    "llama, tied": {"model_type": "llama", **_LLAMA, "hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 12},
    "llama, own head": {"model_type": "llama", **_LLAMA, "hidden_size": 1024, "intermediate_size": 2816, "num_hidden_layers": 16},
    "llama, wide": {"model_type": "llama", **_LLAMA, "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 4},
    "qwen2": {"model_type": "qwen2", "hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 24}
    | {"num_attention_heads": 14, "num_key_value_heads": 2, "vocab_size": 65536},
    "qwen3": {
        "model_type": "qwen3",
        **_LLAMA,
        "hidden_size": 1024,
        "intermediate_size": 3072,
        "num_hidden_layers": 16,
        "head_dim": 128,
    },
    "mistral": {"model_type": "mistral", **_LLAMA, "hidden_size": 1024, "intermediate_size": 3584, "num_hidden_layers": 12},
    "phi3": {"model_type": "phi3", **_LLAMA, "hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 12},
    "granite": {"model_type": "granite", **_LLAMA, "hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 12},
    "gemma2": {"model_type": "gemma2", "hidden_size": 1152, "intermediate_size": 6912, "num_hidden_layers": 10, "head_dim": 128}
    | {"num_attention_heads": 8, "num_key_value_heads": 4, "vocab_size": 65536},
    "gpt_neox": {"model_type": "gpt_neox", "hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 16}
    | {"num_attention_heads": 16, "vocab_size": 50304},
}
TIED = ("llama, tied", "qwen2", "gemma2", "qwen3", "granite")
DTYPES: dict[str, Mapping[str, str]] = {
    "float32": {"dtype": "float32"},
    "bfloat16": {"dtype": "bfloat16"},
    "int8": {"dtype": "bfloat16", "quantize": "int8"},
}


TINY = "tiny"
"""Folder, in that of a model, of a tiny one of its type."""


def make(name: str, folder: Path) -> Path:
    """A random checkpoint in bfloat16, and a tiny one of the same type in it."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(0)
    heads = SHAPES[name]["num_attention_heads"]
    tiny = {"hidden_size": 16 * heads, "head_dim": 16, "intermediate_size": 64, "num_hidden_layers": 2, "vocab_size": 256}
    for shape, to in (({}, folder), (tiny, folder / TINY)):
        config = AutoConfig.for_model(
            **SHAPES[name] | shape, max_position_embeddings=4096, tie_word_embeddings=name in TIED, eos_token_id=None,
            bos_token_id=None, pad_token_id=None,
        )  # fmt: skip
        AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).save_pretrained(to)
    return folder


def planned(model: Path, options: Mapping[str, str]) -> Capacity:
    """What `tgi check` plans."""
    session = Session(find("cpu").plan(OpenOptions(str(model), **options), _quiet, None), "cpu")
    return session.warmup(PLAN, _quiet)


def loaded(model: Path, options: Mapping[str, str]) -> tuple[Capacity, int]:
    """What a load promises, and the most memory that it takes until its cache is full, in bytes."""
    _used_by(model / TINY, {"dtype": "float32"}, WarmupPlan(max_rows=1, max_row_tokens=16))
    before = _trimmed("VmRSS:")
    capacity, after = _used_by(model, options, PLAN)
    return capacity, after - before


def _used_by(model: Path, options: Mapping[str, str], plan: WarmupPlan) -> tuple[Capacity, int]:
    session = Session(find("cpu").open(OpenOptions(str(model), **options), _quiet), "cpu")
    capacity = session.warmup(plan, _quiet)
    _trimmed("VmRSS:")  # what loading has freed
    Path("/proc/self/clear_refs").write_text("5")  # the peak is counted from here on
    _fill(session, capacity)
    used = _kilobytes("VmHWM:") * 1024
    session.close()
    del session
    gc.collect()
    return capacity, used


def _trimmed(name: str) -> int:
    """Bytes of the process without what it has freed."""
    gc.collect()
    trim_heap()
    return _kilobytes(name) * 1024


def _fill(session: Session, capacity: Capacity) -> None:
    """Write the whole cache: rows of the greatest length, a chunk per step, all rows beside each other. Then sample all rows at once."""
    group, vocab = capacity.groups[0], session.capabilities().vocab_size
    per_row, take = capacity.max_row_tokens // group.block_size, min(capacity.max_step_tokens, capacity.max_row_tokens)
    rows = min(capacity.max_rows, group.num_blocks // per_row)
    for row in range(rows):
        for start in range(0, capacity.max_row_tokens, take):
            tokens = tuple(7919 * (row * capacity.max_row_tokens + place) % vocab for place in range(start + take))
            id = 1 + row * (capacity.max_row_tokens // take) + start // take
            request = Request(
                id, tokens, len(tokens), start, (_blocks(row, per_row),), take, want=OutputOptions(prompt_logprobs=True)
            )
            _run(session, (request,))
    drawn = Sampling(do_sample=True, top_p=0.9, repetition_penalty=1.2, seed=1)
    _run(
        session,
        tuple(
            Request(1_000_000 + row, (row,) * 8, 8, 0, (_blocks(row, per_row),), 8, drawn, OutputOptions(top_n=5))
            for row in range(rows)
        ),
    )


def _blocks(row: int, count: int) -> tuple[int, ...]:
    return tuple(range(1 + row * count, 1 + (row + 1) * count))


def _run(session: Session, requests: tuple[Request, ...]) -> None:
    step = session.prefill(requests, EMPTY, ())
    session.rows(step)
    session.clear(step.handle)


def _kilobytes(name: str) -> int:
    return next(int(line.split()[1]) for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(name))


def _quiet(*_: object) -> None:
    pass


def measure(shapes: Iterable[str]) -> Iterator[dict[str, Any]]:
    """One row per shape and dtype."""
    for name in shapes:
        with tempfile.TemporaryDirectory(prefix="tgi-planning-") as folder:
            model = Path(folder) / "model"
            subprocess.run([sys.executable, "-m", "bench.planning", "--make", name, str(model)], check=True)
            for dtype in DTYPES:
                yield {"shape": name, "dtype": dtype, **one(model, dtype)}
            shutil.rmtree(model)


def one(model: Path, dtype: str) -> dict[str, Any]:
    """Plan and load one model, each in a process of its own, as `tgi check` and `tgi serve` do."""
    expected, found = (_apart(part, str(model), dtype) for part in ("--plan", "--load"))
    rows = {"planned": expected["parts"], "promised": found["parts"], "used": found["used"]}
    return rows | {"planned_bytes": sum(expected["parts"].values()), "promised_bytes": sum(found["parts"].values())}


def _apart(*arguments: str) -> dict[str, Any]:
    """What this module prints in a process of its own."""
    done = subprocess.run([sys.executable, "-m", "bench.planning", *arguments], stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def _parts(capacity: Capacity) -> dict[str, int]:
    return {item.name: item.num_bytes for item in capacity.memory if item.name != "reserve"}


def report(rows: list[dict[str, Any]]) -> str:
    """Sizes in MiB, and their ratios."""

    def lines() -> Iterator[list[object]]:
        for row in rows:
            sizes = (row["planned_bytes"], row["promised_bytes"], row["used"])
            shares = [f"{sizes[0] / size:.3f}" for size in sizes[1:]]
            yield [row["shape"], row["dtype"], *(f"{size / 2**20:,.0f}" for size in sizes), *shares]

    return table(["shape", "dtype", "planned, MiB", "promised by the load", "used", "planned ÷ promised", "÷ used"], lines())


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="bench.planning", description=__doc__)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--shapes", nargs="+", choices=SHAPES, default=list(SHAPES))
    parser.add_argument("--make", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--plan", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--load", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.make:
        make(options.make[0], Path(options.make[1]))
        return
    if options.load:
        capacity, used = loaded(Path(options.load[0]), DTYPES[options.load[1]])
        json.dump({"parts": _parts(capacity), "used": used}, sys.stdout)
        return
    if options.plan:
        json.dump({"parts": _parts(planned(Path(options.plan[0]), DTYPES[options.plan[1]]))}, sys.stdout)
        return
    rows = []
    for row in measure(options.shapes):
        rows.append(row)
        print(row["shape"], row["dtype"], f"{row['planned_bytes'] / row['used']:.3f}", flush=True)
        if options.json is not None:
            options.json.write_text(json.dumps(rows, indent=1) + "\n")
    print(report(rows))


if __name__ == "__main__":
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    main()
