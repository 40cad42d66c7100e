"""The scheduler on its own: its overhead, and how well it uses a device.

    python bench/scheduler.py [--trace FILE.csv] [--requests 500] [--json OUT]

Overhead is real time: `plan` and `complete` with 1 to 512 running requests. The rest is virtual time: the reference backend serves
a trace on a clock driven by a roofline model, with this scheduler and with TGI's policy, compared to a bound that no schedule can
beat; then on a device that pads prompts to four sizes, which the scheduler knows or not, and
decode rows' blocks to those of the static engine's buckets. Without --trace, the requests are
synthetic, with the statistics of the conversations that Azure published in 2023.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from statistics import median, quantiles

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from rich.console import Console
from rich.table import Table

from bench.scheduling import cost, ours, tgi, trace
from bench.scheduling.device import Roofline, Served
from tgi_core.benchmark.trace import Arrival, read_trace
from tgi_core.model_files import DEMO
from tgi_core.tokenizer import Tokenizer

Policy = Callable[[list[Arrival]], list[Served]]


def makespan(served: list[Served]) -> float:
    """Completion time of the last request, in seconds."""
    return max(item.last for item in served)


def goodput(served: list[Served]) -> float:
    """Requests per second that met the latency targets."""
    return sum(item.good for item in served) / makespan(served)


def first_token(served: list[Served]) -> tuple[float, float]:
    """Median and 99th percentile of the time to the first token, in seconds."""
    waits = quantiles((item.first - item.arrival.at for item in served), n=100)
    return waits[49], waits[98]


def compare(
    arrivals: list[Arrival], policies: dict[str, Policy], roofline: Roofline, loads: list[float]
) -> list[dict[str, object]]:
    """One row per load and policy: all requests at once, then at fractions of the maximum rate that the device can sustain."""
    bound = roofline.bound(trace.at_once(arrivals))
    rows: list[dict[str, object]] = []
    for load in (None, *loads):
        offered = trace.at_once(arrivals) if load is None else trace.at_rate(arrivals, load * len(arrivals) / bound)
        limit = roofline.bound(offered)
        for name, policy in policies.items():
            served = policy(offered)
            middle, late = first_token(served)
            rows.append(
                {
                    "load": "all at once" if load is None else f"{load:.0%}",
                    "policy": name,
                    "makespan_s": round(makespan(served), 2),
                    "of_bound": round(limit / makespan(served), 3),
                    "goodput_per_s": round(goodput(served), 3),
                    "of_ideal": round(goodput(served) / (len(offered) / limit), 3),
                    "first_token_p50_s": round(middle, 3),
                    "first_token_p99_s": round(late, 3),
                }
            )
    return rows


PADDING = Roofline(max_rows=64, max_step_tokens=1024 + 64, block_size=128, num_blocks=2000, takes=(128, 256, 512, 1024))
"""A device that compiles a program per shape."""
RATES = (3.0, 6.0, 10.0)


def pad(arrivals: list[Arrival], tokenizer: Tokenizer) -> list[dict[str, object]]:
    """Two rows per rate of requests: prompts cut to any size, and to the sizes that the device pads to."""
    rows: list[dict[str, object]] = []
    for rate in RATES:
        for advised in (False, True):
            run = ours.Simulation(PADDING, tokenizer, advised)
            served = run.run(trace.at_rate(arrivals, rate))
            waits = [item.first - item.arrival.at for item in served]
            rows.append(
                {
                    "requests_per_s": rate,
                    "cut": "to the sizes" if advised else "anywhere",
                    "padding": round(run.padding, 3),
                    "decode_padding": round(run.decode_padding, 3),
                    "first_token_p50_s": round(median(waits), 3),
                    "first_token_p99_s": round(quantiles(waits, n=100)[98], 3),
                    "gap_p99_s": round(quantiles(run.gaps, n=100)[98], 4),
                    "makespan_s": round(makespan(served), 2),
                }
            )
    return rows


def show(line: cost.Line, costs: dict[int, float], rows: list[dict[str, object]], padded: list[dict[str, object]]) -> None:
    """Print the tables."""
    console = Console()
    console.print(f"plan + complete: {line.a:.1f} µs a step and {line.b:.2f} µs for each running request")
    console.print("  " + ", ".join(f"{size}: {spent:.0f} µs" for size, spent in costs.items()))
    headings = ("load", "policy", "makespan s", "of bound", "good/s", "of ideal", "first p50 s", "first p99 s")
    table = Table(*headings, title="virtual time: good is a first token within 2 s, then 10 tokens a second")
    for row in rows:
        table.add_row(*map(str, row.values()))
    console.print(table)
    headings = ("requests/s", "prompts cut", "padding", "of decode", "first p50 s", "first p99 s", "gap p99 s", "makespan s")
    table = Table(*headings, title=f"virtual time: a device that pads prompts to {', '.join(map(str, PADDING.takes))} tokens")
    for row in padded:
        table.add_row(*map(str, row.values()))
    console.print(table)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trace", type=Path)
    parser.add_argument("--requests", type=int, default=500)
    parser.add_argument("--steps", type=int, default=300, help="steps per size when measuring overhead")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    costs = {size: cost.measure(size, arguments.steps) for size in cost.SIZES}
    line = cost.fit(costs)
    arrivals = (
        trace.make(arguments.requests, arguments.seed)
        if arguments.trace is None
        else read_trace(arguments.trace, arguments.requests)
    )
    roofline, tokenizer = Roofline(), Tokenizer.load(DEMO)
    policies: dict[str, Policy] = {
        "tgi-core": lambda offered: ours.Simulation(roofline, tokenizer).run(offered),
        "TGI": lambda offered: tgi.run(roofline, offered),
    }
    rows = compare(arrivals, policies, roofline, [0.5, 0.8, 1.0])
    padded = pad(arrivals, tokenizer)
    show(line, costs, rows, padded)
    if arguments.json is not None:
        arguments.json.write_text(
            json.dumps({"cost_us": asdict(line), "costs_us": costs, "runs": rows, "padded": padded}, indent=1) + "\n"
        )


if __name__ == "__main__":
    main()
