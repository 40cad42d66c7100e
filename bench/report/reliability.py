"""Generates docs/reliability.md from result files, without measuring: `python -m bench.report.reliability`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

from bench.report.figures import number
from bench.report.plot import STYLE
from bench.report.tables import table
from bench.results import RESULTS, load

DOCS = Path(__file__).resolve().parents[2] / "docs"
DOCUMENT, PICTURE = DOCS / "reliability.md", DOCS / "reliability-overload.svg"

Result = Mapping[str, Any]

INTRODUCTION = """# Reliability

What the server guarantees under overload and faults, the test for each guarantee, and the measured results. Generated from
`bench/results/reliability` by `python -m bench.report.reliability`. Short versions of the tests run with every change; `make soak` runs the
long ones.
"""
OVERLOAD = """## Overload

When the server is full, it refuses a request with 429 after reading its head and before reading its body. `Retry-After` is about the time
that the current requests will take, randomized so that refused clients do not all return at once. The server identifies a client by its IP
address (an IPv6 address by its first 64 bits), or by `--client-header` if a gateway sets one. While there is room, every request is
admitted. When there is none, a client with less than its share of `--max-concurrent-requests` waits briefly for the next free permit, and a
client that has its share is refused. Admitted requests are scheduled fairly between clients, counted in tokens. `x-request-priority: high`
moves a request ahead of its client's other requests, and ahead of other clients' only if the operator allows it with
`--high-priority-from`; `low` moves it behind other clients'. The server keeps no state for clients without requests.

A client that does not read its answer holds no row and no permit, and no cache blocks that other requests need. Once it reads again, its
answer continues with the same tokens; after `--stream-stall-timeout` the request ends.

`make bench-overload` measures this. It runs `tgi serve` with a simulated device: steps take {step_ms} ms, with {rows_on_device} rows,
{permits} permits and answers of {tokens} tokens, so at most {capacity} answers per second. The load generator runs at the lowest CPU
priority. A second, nearly idle process measures the times; its own delay was at most {late} ms (p99). The times include the time until the
kernel schedules the server. That process requests /health from its own address, and provokes refusals from the load's address; behind 640
clients that retry at once it has to queue. The last columns separate CPU time: the server's, the part of it that one refusal costs
(with its connection, if it has its own, and a share of the probes), and the load generator's.
{busy}"""
BUSY = """
Other processes kept the machine busy during the measurement (load {load}); on an idle machine, times are shorter.
"""
PARTS = {
    "peak": "as many clients as permits",
    "10x": "10 × the capacity",
    "100x": "100 × the capacity",
    "crowd": "640 clients that retry at once",
}
FLOODS = {"flood": "behind 300 clients", "flood high": "behind 300 with high priority"}


def percentile(values: Sequence[float], share: int) -> float:
    """Percentile `share` of the values."""
    ordered = sorted(values)
    return ordered[min(len(ordered) * share // 100, len(ordered) - 1)] if ordered else float("nan")


def write_document(results: Path = RESULTS / "reliability", document: Path = DOCUMENT, picture: Path = PICTURE) -> None:
    """Write the page and its picture."""
    parts = load(results)
    document.write_text(render(parts))
    picture.write_text(plot(parts["overload"]))


def render(parts: Mapping[str, Result]) -> str:
    """Return the page's text."""
    overload, soaks = parts["overload"], [part for name, part in parts.items() if name.startswith("soak-")]
    return "\n".join([INTRODUCTION, promises(overload, soaks), _overload(overload)])


def promises(overload: Result, soaks: Iterable[Result]) -> str:
    """One row per promise."""
    rows, machine = {row["part"]: row for row in overload["rows"]}, overload["machine"]
    where = f"{machine['date'][:10]} | {machine['cpu']}, {machine['cores']} cores, load {machine['load']}"
    peak = rows["peak"]["answered"]
    refused = "; ".join(
        f"{name}: p50 {_ms(rows[name]['refusals'], 50)}, p99 {_ms(rows[name]['refusals'], 99)}"
        for name in ("10x", "100x", "crowd")
    )
    shares = ", ".join(f"{100 * rows[name]['answered'] / peak:.0f} %" for name in ("10x", "100x", "crowd"))
    tries = [max(rows[name]["tries"]) for name in FLOODS]
    silent = rows["silent"]
    told = (
        (
            "Goodput holds at 10 × and 100 × overload and with 640 clients that retry",
            "`tests/soak/test_overload.py`",
            f"{shares} of the peak",
        ),
        ("Refusals are immediate", "`tests/router/test_overload.py`", refused),
        (
            "Probes are answered under overload",
            "`tests/soak/test_overload.py`",
            f"/health p99 {_ms(rows['10x']['health'], 99)} at 10x, {_ms(rows['crowd']['health'], 99)} in the crowd",
        ),
        (
            "A flood from one client does not lock out others",
            "`tests/scheduler/test_fairness.py`",
            f"at most {tries[0]} attempt{'s' * (tries[0] != 1)}, {tries[1]} when competing with `high`",
        ),
        (
            "Clients that do not read hold no slot",
            "`tests/router/test_slow_readers.py`",
            f"with {silent['clients']} such clients, an answer takes {number(percentile(silent['waits'], 50))} s",
        ),
    )
    lines = "".join(f"| {promise} | {test} | {figure} | {where} |\n" for promise, test, figure in told)
    lines += "".join(map(_soak, soaks))
    return f"| guarantee | test | result | date | machine |\n| --- | --- | --- | --- | --- |\n{lines}"


def _soak(part: Result) -> str:
    """Table row of a soak test: its output and what failed."""
    machine = part["machine"]
    told = [line.strip() for line in part["figures"] if any(map(str.isalpha, line))]  # skip progress output
    figures = "; ".join([*told, *(f"**{fault}**" for fault in part["wrong"]), f"{part['seconds'] / 60:.0f} minutes"])
    where = f"{machine['date'][:10]} | {machine['cpu']}, {machine['cores']} cores, load {machine['load']}"
    return f"| {part['promise']} | {part['test']} | {figures} | {where} |\n"


def _overload(part: Result) -> str:
    rows = {row["part"]: row for row in part["rows"]}
    late = [each for row in rows.values() for each in row.get("late", ())]
    capacity = part["rows_on_device"] / (part["tokens"] * part["step_ms"] / 1e3)
    machine = part["machine"]
    busy = BUSY.format(load=machine["load"]) if machine["load"] > 2 * machine["cores"] else ""
    text = OVERLOAD.format(**part, busy=busy, capacity=number(capacity), late=number(1e3 * percentile(late, 99)))

    def loads() -> Iterator[Sequence[object]]:
        for name, title in PARTS.items():
            row = rows[name]
            asked = number(row["sent"] / row["seconds"])
            cells = [
                title,
                asked,
                number(row["answered"]),
                f"{100 * row['answered'] / rows['peak']['answered']:.0f} %",
                row["lost"],
            ]
            times = [_ms(row[kind], share) for kind in ("refusals", "health") for share in (50, 99)]
            refused = row["statuses"].get("429", 0) / row["seconds"]
            each = number(1e6 * (row["cpu_share"] - rows["peak"]["cpu_share"]) / refused) if refused else ""
            yield [*cells, *times, f"{row['cpu_share']:.2f}", each, f"{row['cpu_s'] / row['seconds']:.2f}"]

    heads = [
        "load",
        "requests/s",
        "answers/s",
        "of peak",
        "lost",
        "429 p50",
        "p99",
        "/health p50",
        "p99",
        "server cores",
        "µs per refusal",
        "load generator cores",
    ]
    tries = (
        [title, len(rows[name]["tries"]), f"{sum(rows[name]['tries']) / len(rows[name]['tries']):.1f}", max(rows[name]["tries"])]
        for name, title in FLOODS.items()
    )
    tables = [table(heads, loads()), table(["well-behaved client", "requests", "mean attempts", "most attempts"], tries)]
    return "\n".join([text, f"![Answers, times and attempts under overload]({PICTURE.name})\n", *tables])


def _ms(seconds: Sequence[float], share: int) -> str:
    return f"{number(1e3 * percentile(seconds, share))} ms" if seconds else ""


# the picture

WIDTH, LEFT, BAR, GAP = 330, 150, 14, 6


def plot(part: Result) -> str:
    """Render an SVG document for light and dark pages: answered requests, latency of refusals and probes, number of attempts."""
    rows = {row["part"]: row for row in part["rows"]}
    loaded = [name for name in PARTS if rows[name].get("refusals")]
    panels = [
        ("answers per second", [(PARTS[name], rows[name]["answered"], number(rows[name]["answered"])) for name in PARTS]),
        ("429, p50 and p99, ms", list(_times(rows, loaded, "refusals"))),
        ("/health, p50 and p99, ms", list(_times(rows, loaded, "health"))),
        (
            "attempts of a well-behaved client, mean and most",
            [bar for name in FLOODS for bar in _tries(name, rows[name]["tries"])],
        ),
    ]
    body: list[str] = []
    height = 0
    for place, (title, bars) in enumerate(panels):
        left, top = place % 2 * (WIDTH + LEFT), place // 2 * 170
        body += _panel(title, bars, left, top)
        height = max(height, top + 30 + len(bars) * (BAR + GAP))
    what = "Answers, times of refusals and probes, and attempts under overload"
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {2 * (WIDTH + LEFT)} {height}" role="img" aria-label="{what}">'
    return "\n".join([head, f"<style>{STYLE}</style>", *body, "</svg>"]) + "\n"


Bar = tuple[str, float, str]


def _times(rows: Mapping[str, Result], names: Sequence[str], kind: str) -> Iterator[Bar]:
    for name in names:
        for share in (50, 99):
            value = 1e3 * percentile(rows[name][kind], share)
            yield f"{PARTS[name] if name != 'crowd' else '640 clients'}, p{share}", value, number(value)


def _tries(name: str, tries: Sequence[int]) -> Iterator[Bar]:
    mean = sum(tries) / len(tries)
    yield f"{FLOODS[name]}, mean", mean, number(mean)
    yield "most", max(tries), str(max(tries))


def _panel(title: str, bars: Sequence[Bar], left: int, top: int) -> Iterator[str]:
    greatest = max(value for _, value, _ in bars) or 1.0
    yield f'<text class="title" x="{left}" y="{top + 13}">{escape(title)}</text>'
    for place, (name, value, told) in enumerate(bars):
        y, length = top + 22 + place * (BAR + GAP), (WIDTH - 110) * value / greatest
        yield f'<text x="{left + LEFT + 42}" y="{y + 11}" text-anchor="end">{escape(name)}</text>'
        yield f'<rect class="ours" x="{left + LEFT + 50}" y="{y}" width="{length:.1f}" height="{BAR}" rx="2"/>'
        yield f'<text x="{left + LEFT + 55 + length:.1f}" y="{y + 11}">{escape(told)}</text>'


if __name__ == "__main__":
    write_document()
