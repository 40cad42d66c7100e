"""Results of a part as Markdown tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from bench.report.figures import chosen, figure, number, ratio, values

Result = Mapping[str, Any]
Table = Iterator[Sequence[object]]


def table(heads: Sequence[str], rows: Table) -> str:
    """Format a Markdown table with the first column left-aligned and the others right-aligned."""
    lines = [heads, ["---", *["---:"] * (len(heads) - 1)], *rows]
    return "".join(f"| {' | '.join(str(cell) for cell in line)} |\n" for line in lines)


def _precision(part: Result, engine: str) -> str:
    return str(part["engines"][engine]["precision"])


def against_best(parts: Mapping[str, Result]) -> Iterator[str]:
    """Cells of decode, prefill and HTTP: by batch size, the least of our ratios to the others; empty for what was not measured."""
    for name, size, column in (
        ("offline-135m", "batch", "decode"),
        ("offline-135m", "batch", "prefill"),
        ("http", "clients", "rate"),
    ):
        rows = parts[name]["rows"] if name in parts else []
        yield " / ".join(_best_ratio(chosen(rows, **{size: each}), column) for each in values(rows, size))


def _best_ratio(rows: Sequence[Mapping[str, Any]], column: str) -> str:
    ours, others = chosen(rows, engine="ours"), [engine for engine in values(rows, "engine") if engine != "ours"]
    return number(min(ratio(chosen(rows, engine=engine), column, ours) for engine in others)) if others else ""


def engines(part: Result) -> str:
    """Decode and prefill by batch size and engine."""
    rows = part["rows"]

    def lines() -> Table:
        for batch, context in dict.fromkeys((row["batch"], row["context"]) for row in rows):
            here = chosen(rows, batch=batch, context=context)
            ours = chosen(here, engine="ours")
            for engine in values(here, "engine"):
                mine = chosen(here, engine=engine)
                cells: list[object] = [engine, _precision(part, engine), batch, context]
                for name in ("decode", "prefill"):
                    if name in mine[0]:
                        cells += [figure(mine, name), "" if engine == "ours" else f"{ratio(mine, name, ours):.2f}"]
                yield cells

    heads = ["engine", "computes in", "batch", "context", "decode, tokens/s", "ours ÷"]
    return table([*heads, "prefill, tokens/s", "ours ÷"] if "prefill" in rows[0] else heads, lines())


def servers(part: Result) -> str:
    """Streams by number of clients and server."""
    rows = part["rows"]

    def lines() -> Table:
        for clients in values(rows, "clients"):
            here = chosen(rows, clients=clients)
            ours = chosen(here, engine="ours")
            for engine in values(here, "engine"):
                mine = chosen(here, engine=engine)
                cells: list[object] = [engine, _precision(part, engine), clients]
                for name in ("rate", "first_p50_s", "first_p99_s"):
                    cells += [figure(mine, name), "" if engine == "ours" else f"{ratio(mine, name, ours):.2f}"]
                yield cells

    heads = ["server", "computes in", "clients", "tokens/s", "ours ÷", "first token p50, s", "ours ÷", "p99, s", "ours ÷"]
    starts = part["starts"].items()
    cold = ((name, number(start["healthy_s"]), number(start["first_token_s"])) for name, start in starts)
    return table(heads, lines()) + "\n" + table(["server", "process to healthy, s", "to first token, s"], cold)


def drafts(part: Result) -> str:
    """Answers with n-gram drafts and without, by kind of answer, number of clients and server."""
    rows = part["rows"]

    def lines() -> Table:
        for kind, clients in dict.fromkeys((row["kind"], row["clients"]) for row in rows):
            here = chosen(rows, kind=kind, clients=clients)
            best = [row for row in chosen(here, engine="ours") if row["drafts"]]
            for engine in values(here, "engine"):
                mine = chosen(here, engine=engine)
                without, with_drafts = chosen(mine, drafts=0), [row for row in mine if row["drafts"]]
                if without and with_drafts:
                    ours = "" if engine == "ours" else f"{ratio(with_drafts, 'rate', best):.2f}"
                    gain = f"{ratio(without, 'rate', with_drafts):.2f}"
                    yield [engine, kind, clients, figure(without, "rate"), figure(with_drafts, "rate"), gain, ours]

    text = (
        "Prompts and answers of 96 tokens. *copied*: the answer is the prompt; *edited*: one token in eight differs; *new*: nothing "
        "repeats.\n\n"
    )
    return text + table(["server", "answer", "clients", "tokens/s", "with drafts", "gain", "ours ÷, with drafts"], lines())


def arrivals(part: Result) -> str:
    """Gaps within streams while new requests arrive."""
    rows = part["rows"]
    heads = ["", "median (least–greatest)"]
    names = {
        "gap_p50_s": "gap between tokens, median, s",
        "gap_p99_s": "gap between tokens, p99, s",
        "ratio": "p99 ÷ median",
        "first_p50_s": "time to first token of arriving requests, s",
        "calm_gap_p50_s": "gap between tokens without arrivals, median, s",
        "calm_ratio": "p99 ÷ median without arrivals",
    }
    every = number(figure(rows, "every_s").middle)
    text = (
        f"Eight streams run while a request with a prompt of 128 tokens arrives every {every} s, roughly when the previous one "
        "completes.\n\n"
    )
    return text + table(heads, ([title, figure(rows, name)] for name, title in names.items()))


def start(part: Result) -> str:
    """Time to first token, and the shard's memory compared to its limit."""
    rows = part["rows"]
    last = rows[-1]
    mebibytes = {
        name: last[name] / 2**20 for name in ("shard_bytes", "weights_bytes", "cache_bytes", "bound_bytes", "router_bytes")
    }
    text = (
        f"After serving 32 clients, the shard uses {number(mebibytes['shard_bytes'])} MiB of memory: its weights take "
        f"{number(mebibytes['weights_bytes'])} MiB and its KV cache {number(mebibytes['cache_bytes'])} MiB. The limit is "
        f"{number(mebibytes['bound_bytes'])} MiB (weights + KV cache + 350 MiB). "
        f"The router uses {number(mebibytes['router_bytes'])} MiB.\n\n"
    )
    names = {"healthy_s": "process start to healthy, s", "first_token_s": "process start to first token, s"}
    return text + table(
        ["page cache warm", "median (least–greatest)"], ([title, figure(rows, name)] for name, title in names.items())
    )


def null(part: Result) -> str:
    """Overhead of the server itself."""
    rows = part["rows"]

    def lines() -> Table:
        for step_ms in values(rows, "step_ms"):
            for streams in values(rows, "streams"):
                here = chosen(rows, streams=streams, step_ms=step_ms)
                parts = {name for row in here for name in row["cpu_us_per_token"]}
                shares = {name: figure([row["cpu_us_per_token"] for row in here], name).middle for name in sorted(parts)}
                used = ", ".join(f"{name} {number(value)}" for name, value in shares.items())
                waits = figure(here, "first_p99_s") if step_ms else ""
                spin = figure(here, "spin_ns")
                yield [number(step_ms), streams, figure(here, "rate_per_core"), used, figure(here, "rate"), waits, spin]

    text = (
        "The whole server runs with a backend that computes nothing. CPU time is that of all server processes. If steps take time, the "
        "time to the first token includes up to three of them: the running step, the one queued behind it and the request's own. The last "
        "column shows how slow the machine was at the time, as the duration of one iteration of an empty Python loop.\n\n"
    )
    heads = [
        "ms per step",
        "streams",
        "tokens/s per core",
        "CPU µs per token",
        "tokens/s",
        "first token p99, s",
        "empty loop, ns",
    ]
    return text + table(heads, lines())
