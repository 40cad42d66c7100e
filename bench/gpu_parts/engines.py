"""Entire models without a server: throughput of many requests, latency per token of one stream, effect of graphs and run-ahead."""

from __future__ import annotations

import cProfile
import io
import os
import pstats
import time
from pathlib import Path
from typing import Any

import tgi_conformance
import torch

from bench.gpu_parts.driving import Driver, Lengths, drawn, switched
from bench.gpu_parts.models import make
from bench.gpu_parts.place import Figures, Place
from tgi_core.backend import Sampling

REQUESTS, LOW, HIGH = 256, 100, 1024
SINGLE = Lengths(500, 256)
_SMALL_REQUESTS, _SMALL_LOW, _SMALL_HIGH, _SMALL_SINGLE = 6, 4, 24, Lengths(16, 12)


def workload(place: Place, count: int = REQUESTS) -> list[Lengths]:
    """The requests of the offline run."""
    if place.small:
        return drawn(min(count, _SMALL_REQUESTS), _SMALL_LOW, _SMALL_HIGH)
    return drawn(count, LOW, HIGH)


def open_driver(place: Place, name: str) -> Driver:
    """Open the model, warmed up for the workload."""
    device = torch.device("cpu" if place.backend == "cpu" else place.backend)
    model = make(name, place.folder, place.small, device)
    high = _SMALL_HIGH if place.small else HIGH
    rows = _SMALL_REQUESTS if place.small else REQUESTS
    return Driver(place, model, rows, 2 * high, 256 if place.small else 8192)


def throughput(place: Place, name: str) -> Figures:
    """Run all requests at once, then a single stream."""
    driver = open_driver(place, name)
    wanted = workload(place)
    single = _SMALL_SINGLE if place.small else SINGLE
    driver.run([Lengths(min(16, single.prompt), 8)])  # triggers lazy compilation and kernel selection
    made = sum(each.new for each in wanted)
    offline = min(driver.run(wanted) for _ in range(1 if place.left < 120 else 2))
    first = driver.run([Lengths(single.prompt, 1)])
    alone = min(driver.run([single]) for _ in range(3))
    found: Figures = {
        "opened, s": driver.opened_s,
        "warmed up, s": driver.warmed_s,
        f"offline, {len(wanted)} requests, tokens/s made": made / offline,
        f"offline, {len(wanted)} requests, tokens/s in and out": sum(each.prompt + each.new for each in wanted) / offline,
        "one stream, first token, ms": first * 1e3,
        "one stream, ms per token": (alone - first) / (single.new - 1) * 1e3,
        "in flight": driver.capacity.in_flight,
    }
    found |= {f"kernel {kernel.part}": f"{kernel.name} {kernel.reason}".strip() for kernel in driver.kernels}
    driver.close()
    return found


SAMPLINGS = {
    "greedy": Sampling(),
    "drawn": Sampling(do_sample=True, temperature=0.8),
    "top-p 0.9, top-k 50": Sampling(do_sample=True, temperature=0.8, top_p=0.9, top_k=50),
    "repetition penalty 1.1": Sampling(do_sample=True, temperature=0.8, repetition_penalty=1.1),
}


def sampled(place: Place, name: str = "qwen3-0.6b") -> Figures:
    """All requests at once, by what they ask of sampling."""
    driver = open_driver(place, name)
    wanted = [Lengths(8, 8 if place.small else 64)] * (_SMALL_REQUESTS if place.small else REQUESTS)
    found: Figures = {}
    for label, sampling in SAMPLINGS.items():
        driver.run(wanted[:4], sampling)
        found[f"{len(wanted)} requests, {label}, tokens/s made"] = sum(each.new for each in wanted) / driver.run(wanted, sampling)
    driver.close()
    return found


def batches(place: Place, name: str = "llama-3.1-8b") -> Figures:
    """Milliseconds per decode step by rows, after prompts of 128 tokens."""
    driver = open_driver(place, name)
    found: Figures = {"opened, s": driver.opened_s, "warmed up, s": driver.warmed_s}
    for rows in (1, 2) if place.small else (1, 32, 256):
        prompt, new = (4, 8) if place.small else (128, 64)
        driver.run([Lengths(prompt, 2)] * rows)
        started = driver.run([Lengths(prompt, 1)] * rows)
        found[f"{rows} rows, ms per decode step"] = (driver.run([Lengths(prompt, 1 + new)] * rows) - started) / new * 1e3
        found[f"{rows} rows, prompts of {prompt}, ms"] = started * 1e3
    found |= {f"kernel {kernel.part}": f"{kernel.name} {kernel.reason}".strip() for kernel in driver.kernels}
    driver.close()
    return found


def openings(place: Place) -> Figures:
    """Seconds to open and to warm up the suite's tiny model, three times in one process, and where the last time went."""
    model = Path(tgi_conformance.__file__).with_name("golden") / "models" / "llama"
    found: Figures = {}
    for number in (1, 2, 3):
        profile = cProfile.Profile()
        if number == 3:
            profile.enable()
        driver = Driver(place, model, 8, 256, 256)
        profile.disable()
        found[f"opening {number}, s"], found[f"warm-up {number}, s"] = driver.opened_s, driver.warmed_s
        driver.close()
    told = io.StringIO()
    pstats.Stats(profile, stream=told).sort_stats("cumulative").print_stats(45)
    print(told.getvalue(), flush=True)
    return found


def ablations(place: Place, name: str = "qwen3-0.6b") -> Figures:
    """Run the same without graphs, and without run-ahead."""
    found: Figures = {}
    prefix = f"TGI_{place.backend.upper()}"
    for label, variables in {
        "as it is": {},
        "graphs off": {f"{prefix}_GRAPHS": "off"},
        "run-ahead off": {f"{prefix}_RUN_AHEAD": "off"},
        "both off": {f"{prefix}_GRAPHS": "off", f"{prefix}_RUN_AHEAD": "off"},
    }.items():
        if place.left < (0 if place.small else 15):
            found[label] = "not run: no time left"
            continue
        with switched(**variables):
            driver = open_driver(place, name)
            wanted, single = workload(place, 64), _SMALL_SINGLE if place.small else Lengths(500, 128)
            driver.run([Lengths(8, 4)])
            found[f"{label}: {len(wanted)} requests, tokens/s made"] = sum(each.new for each in wanted) / driver.run(wanted)
            found[f"{label}: one stream, ms per token"] = driver.run([single]) / single.new * 1e3
            driver.close()
    return found


def transformers(place: Place, name: str) -> Figures:
    """Run transformers' continuous batching on the same requests."""
    from transformers import AutoModelForCausalLM, GenerationConfig
    from transformers import __version__ as version

    device = torch.device("cpu" if place.backend == "cpu" else place.backend)
    directory = make(name, place.folder, place.small, device)
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    attention = "sdpa"
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.bfloat16, attn_implementation=attention).to(device).eval()
    if not hasattr(model, "generate_batch"):
        return {"not run": f"transformers {version} has no continuous batching"}
    wanted = workload(place, REQUESTS if place.left > 90 else 64)
    prompts = [[(7 * i) % 500 + 3 for i in range(each.prompt)] for each in wanted]
    longest = max(each.new for each in wanted)
    # It supports only one length for all requests: the mean gives the same number of tokens.
    mean = max(1, round(sum(each.new for each in wanted) / len(wanted)))
    config = GenerationConfig(max_new_tokens=mean, do_sample=False, eos_token_id=-1, pad_token_id=0)
    limits = _limits() if place.small else {}
    if place.small and not limits:
        return {"not run": f"transformers {version} would take all memory of this machine for its cache"}
    started = time.perf_counter()
    answers = model.generate_batch(inputs=prompts, generation_config=config, **limits)
    taken = time.perf_counter() - started
    made = sum(len(answer.generated_tokens) for answer in answers.values())
    return {
        "version": version,
        f"{len(wanted)} requests of {mean} tokens (ours: up to {longest}), tokens/s made": made / taken,
        "tokens made": made,
    }


def _limits() -> dict[str, Any]:
    """Options for a small cache, if this version of transformers supports them."""
    try:
        from transformers import ContinuousBatchingConfig
    except ImportError:
        return {}
    return {"continuous_batching_config": ContinuousBatchingConfig(num_blocks=16, max_batch_tokens=64)}
