"""Memory of `tgi serve` on the CPU while it loads a model and serves it, with plain and with quantized weights.

    python -m bench.memory [--models 135m 500m] [--weights bfloat16 int8 int4 rtn4 rtn8] [--json OUT]

`int8` and `int4` are rounded at load (`--quantize`); `rtn4` and `rtn8` are checkpoints that `tgi quantize` has written. Memory is the
PSS of all of the server's processes together, so pages that they share count once, and pages of mapped files count. It is sampled every
10 ms until the server has answered 32 clients. The bound is 1.15 × weights + KV cache + 300 MB. The weights are what their format takes:
a checkpoint's size, or, of weights that are rounded at load, the codes, scales and zero points, an output head of eight bits, and the
embedding as it is in the file.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

from bench.random_model import make
from bench.report.tables import table
from bench.serving.ours import CACHE_TOKENS, PROMPT, ask
from bench.serving.server import TGI, Server, tgi_command
from bench.shapes import SHAPES
from tgi_core.benchmark.load import loopback, offer, tgi_count, tokens

WEIGHTS = ("bfloat16", "int8", "int4", "rtn4", "rtn8")
CLIENTS, NEW = 32, 64
EVERY_S = 0.01
ALLOWANCE, SHARE = 300_000_000, 1.15
GROUP = 64
"""Inputs that share a scale in the written checkpoints: a divisor of all sizes."""


class Sampler:
    """The server's memory while the block runs, sampled by a thread of its own."""

    def __init__(self, server: Server) -> None:
        self._server, self._end, self.peak = server, threading.Event(), 0

    @contextmanager
    def running(self) -> Iterator[None]:
        """Sample until the block ends."""
        thread = threading.Thread(target=self._sample)
        thread.start()
        try:
            yield
        finally:
            self._end.set()
            thread.join()

    def now(self) -> int:
        """PSS of all processes in bytes; of a process that has just ended, 0."""
        return sum(map(_pss, self._server.processes()))

    def _sample(self) -> None:
        while not self._end.wait(EVERY_S):
            self.peak = max(self.peak, self.now())


def _pss(process: psutil.Process) -> int:
    try:
        lines = Path(f"/proc/{process.pid}/smaps_rollup").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return 1024 * next((int(line.split()[1]) for line in lines if line.startswith("Pss:")), 0)


def measure(name: str, weights: str) -> dict[str, Any]:
    """Serve a model; its figures in bytes."""
    model = checkpoint(name, weights)
    flags = ["--quantize", weights] if weights.startswith("int") else []
    command = tgi_command(model, "cpu", "--kv-cache-tokens", str(CACHE_TOKENS), *flags)
    with Server(command, Path(tempfile.gettempdir()) / "tgi-bench-memory.log") as server:
        sampler = Sampler(server)
        with sampler.running():
            server.wait_ready(300)
            loading = sampler.peak
            asks = [ask(f"{row}", PROMPT, NEW) for row in range(CLIENTS)]
            tokens(offer(loopback(server.port), asks), tgi_count, NEW)
        steady = sampler.now()
    stored, cache = weight_bytes(name, weights, model), CACHE_TOKENS * SHAPES[name].cache_bytes
    sizes = {"weights_bytes": stored, "cache_bytes": cache, "bound_bytes": int(SHARE * stored) + cache + ALLOWANCE}
    return {
        "model": name,
        "weights": weights,
        "loading_bytes": loading,
        "peak_bytes": sampler.peak,
        "steady_bytes": steady,
    } | sizes


def checkpoint(name: str, weights: str) -> Path:
    """The model's directory; that of a quantized checkpoint is written on first use."""
    plain = make(name)
    if not weights.startswith("rtn"):
        return plain
    folder = plain.with_name(f"{plain.name}-{weights}")
    if not (folder / "config.json").exists():
        how = [
            "--method",
            "rtn",
            "--bits",
            weights.removeprefix("rtn"),
            "--group-size",
            str(GROUP),
            "--rows",
            "2",
            "--length",
            "16",
        ]
        subprocess.run([TGI, "quantize", str(plain), str(folder), *how], check=True)
    return folder


def weight_bytes(name: str, weights: str, model: Path) -> int:
    """Bytes of the weights in their format."""
    if not weights.startswith("int"):
        return sum(file.stat().st_size for file in model.glob("*.safetensors"))
    config = SHAPES[name].config
    hidden, inner, vocab = config["hidden_size"], config["intermediate_size"], config["vocab_size"]
    keys = config["num_key_value_heads"] * SHAPES[name].head_dim
    layers = config["num_hidden_layers"] * (2 * hidden * (hidden + keys) + 3 * hidden * inner)
    bits = 8 if weights == "int8" else 4 + (16 + 8) / 32
    return int(layers * bits / 8) + vocab * hidden + 2 * vocab * hidden


def report(rows: list[dict[str, Any]]) -> str:
    """Sizes in MiB."""
    names = ("weights_bytes", "cache_bytes", "loading_bytes", "peak_bytes", "steady_bytes", "bound_bytes")
    head = [
        "model",
        "weights",
        "weights, MiB",
        "KV cache",
        "peak while loading",
        "peak",
        "after 32 clients",
        "bound",
        "peak ÷ bound",
    ]
    return table(
        head,
        (
            [
                SHAPES[row["model"]].title,
                row["weights"],
                *(f"{row[each] / 2**20:,.0f}" for each in names),
                f"{row['peak_bytes'] / row['bound_bytes']:.2f}",
            ]
            for row in rows
        ),
    )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        prog="bench.memory", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", nargs="+", choices=SHAPES, default=list(SHAPES))
    parser.add_argument("--weights", nargs="+", choices=WEIGHTS, default=list(WEIGHTS))
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rows = []
    for name in options.models:
        for weights in options.weights:
            rows.append(measure(name, weights))
            print(json.dumps(rows[-1]), flush=True)
    if options.json is not None:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")
    print(report(rows))


if __name__ == "__main__":
    main()
