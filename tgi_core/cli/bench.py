"""`tgi bench`: measure a server of TGI's or OpenAI's API, and compare two measurements."""

from __future__ import annotations

import functools
import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tgi_core.cli.tables import show_table
from tgi_core.errors import StartupError

if TYPE_CHECKING:
    from tgi_core.benchmark.endpoint import Endpoint
    from tgi_core.benchmark.result import Result, Table

_FILE = click.Path(path_type=Path, dir_okay=False)


@dataclass(frozen=True, slots=True)
class Common:
    """Options of both measurements."""

    url: str
    api: str
    model: str | None
    api_key: str | None
    body: str
    ignore_eos: bool
    seed: str
    as_json: bool
    save: Path | None
    plot: Path | None

    def endpoint(self) -> Endpoint:
        """The server's route. Raises StartupError."""
        from tgi_core.benchmark.endpoint import find_endpoint

        try:
            extra = json.loads(self.body)
        except ValueError as error:
            raise StartupError(f"--body {self.body}: invalid JSON: {error}") from error
        if not isinstance(extra, dict):
            raise StartupError(f"--body {self.body}: must be a JSON object")
        check_plot(self.plot)
        return replace(find_endpoint(self.url, self.api, self.model, self.api_key), ignore_eos=self.ignore_eos, extra=extra)

    def tell(self, result: dict[str, Any]) -> None:
        """Write the files, and print the result. Raises OSError."""
        from tgi_core.benchmark.result import tables

        text = json.dumps(result, indent=1) + "\n"
        if self.save is not None:
            self.save.write_text(text, encoding="utf-8")
        write_plot(self.plot, {"result": result})
        print_result(text if self.as_json else None, tables(result))


_OPTIONS = (
    click.option("--api", type=click.Choice(("auto", "tgi", "completions", "chat")), default="auto", show_default=True,
                 help="Route to measure: TGI's /generate_stream, OpenAI's completions or chats."),
    click.option("--model", help="Model to name in requests. Default: the first one that the server lists."),
    click.option("--api-key", envvar="API_KEY", show_envvar=True, help="API key, sent as a bearer token."),
    click.option("--body", default="{}", metavar="JSON", help="Further fields of every request, as a JSON object."),
    click.option("--ignore-eos/--no-ignore-eos", default=True, show_default=True,
                 help="Generate all output tokens, even if the model would stop earlier (not in TGI's API)."),
    click.option("--seed", default="0", show_default=True, help="Seed of prompts, lengths and arrivals."),
    click.option("--json", "as_json", is_flag=True, help="Print the result as JSON instead of tables."),
    click.option("--save", type=_FILE, help="Also write the result as JSON to this file, for `tgi bench compare`."),
    click.option("--plot", type=_FILE, help="Also draw the result: a file that ends with .svg or .html."),
)  # fmt: skip
_NAMES = ("url", "api", "model", "api_key", "body", "ignore_eos", "seed", "as_json", "save", "plot")


def _measurement(function: Callable[..., None]) -> Callable[..., None]:
    """Decorator that adds the argument URL and the options of `Common`, and passes `common`."""

    @functools.wraps(function)
    def run(**given: Any) -> None:
        common = Common(**{name: given.pop(name) for name in _NAMES})
        function(common=common, **given)

    run = click.argument("url")(run)
    for option in reversed(_OPTIONS):
        run = option(run)
    return run


@click.group("bench")
def command() -> None:
    """Measure a server with TGI's or OpenAI's API, and compare results."""


@command.command("batch")
@click.option("--batch", "batches", default="1,2,4,8,16,32", show_default=True, help="Batch sizes.")
@click.option("--prompt-tokens", type=click.IntRange(1), default=128, show_default=True, help="Tokens of each prompt.")
@click.option("--output-tokens", type=click.IntRange(2), default=64, show_default=True, help="Tokens of each answer.")
@click.option("--rounds", type=click.IntRange(1), default=3, show_default=True, help="Measurements of each batch size.")
@_measurement
def batch(common: Common, batches: str, prompt_tokens: int, output_tokens: int, rounds: int) -> None:
    """Measure prefill and decode of the server at URL by batch size. A batch's requests are sent at once, each on its own connection."""
    from tgi_core.benchmark import batches as measuring
    from tgi_core.benchmark.dashboard import dashboard
    from tgi_core.benchmark.load import LoadError
    from tgi_core.benchmark.result import document
    from tgi_core.benchmark.workload import measure_words

    endpoint = common.endpoint()
    plan = measuring.BatchPlan(_sizes(batches), prompt_tokens, output_tokens, rounds, common.seed)
    rows: list[Mapping[str, Any]] = []
    try:
        with dashboard(f"{endpoint.model} at {endpoint.url}") as board:
            for row in measuring.measure(endpoint, plan, measure_words(endpoint, common.seed, prompt_tokens)):
                rows.append(row)
                board.batches(rows)
    except LoadError as error:
        raise StartupError(f"{common.url}: {error}") from error
    options = {"batch": list(plan.sizes), "prompt_tokens": prompt_tokens, "output_tokens": output_tokens, "rounds": rounds}
    common.tell(document("batch", endpoint, options, {"rows": [row for row in rows if row["round"] >= 0]}))


@command.command("load")
@click.option("--rate", type=click.FloatRange(0, min_open=True), help="Requests per second, at random times (a Poisson process).")
@click.option("--clients", type=click.IntRange(1), help="Instead of --rate: number of clients, each with one request at a time.")
@click.option("--requests", type=click.IntRange(1), help="Number of requests. Default: 100, or all of the dataset.")
@click.option("--duration", type=click.FloatRange(0, min_open=True), help="Instead of --requests: seconds at the given rate.")
@click.option("--dataset", type=click.Path(path_type=Path), help="JSON Lines, JSON or CSV file of requests; see docs/bench.md.")
@click.option(
    "--prompt-tokens", default="128", show_default=True, help="Tokens of each prompt: a number or a range such as 64-512."
)
@click.option("--output-tokens", default="64", show_default=True, help="Tokens of each answer, likewise.")
@click.option("--slo", multiple=True, metavar="NAME:MS", help="Objective of goodput: ttft:500, tpot:50 or e2e:5000. Repeatable.")
@click.option(
    "--patience", type=click.FloatRange(1), default=600.0, show_default=True, help="Seconds to wait after the last request."
)
@_measurement
def load(common: Common, rate: float | None, clients: int | None, patience: float, slo: tuple[str, ...], **work: Any) -> None:
    """Measure the server at URL under load: percentiles of latencies, throughput, and goodput under objectives.

    With --rate, requests are sent on schedule, whether or not earlier ones are answered. A CSV trace has its own arrival times.
    """
    from tgi_core.benchmark.dashboard import dashboard
    from tgi_core.benchmark.latencies import answers, parse_objectives, summary
    from tgi_core.benchmark.load import offer
    from tgi_core.benchmark.result import document

    try:
        objectives = parse_objectives(slo)
    except ValueError as error:
        raise StartupError(f"--slo {error}") from error
    endpoint = common.endpoint()
    jobs = _jobs(common, endpoint, rate, clients, **work)
    asks = [endpoint.ask(job.prompt, job.at) for job in jobs]
    with dashboard(f"{endpoint.model} at {endpoint.url}", len(jobs)) as board:
        done = offer(endpoint.target, asks, clients or 0, patience, board.load)
    found, failures = answers(done, endpoint)
    if not found:
        raise StartupError(f"{common.url}: no request was answered: {'; '.join(failures)}")
    options = {
        "rate": rate,
        "clients": clients,
        "slo": objectives,
        **{name: value and str(value) for name, value in work.items()},
    }
    figures = {"load": summary(found, failures, done, objectives), "requests": [answer.row() for answer in found]}
    common.tell(document("load", endpoint, options, figures))


def _jobs(
    common: Common,
    endpoint: Endpoint,
    rate: float | None,
    clients: int | None,
    requests: int | None,
    duration: float | None,
    dataset: Path | None,
    prompt_tokens: str,
    output_tokens: str,
) -> list[Any]:
    """The requests of a load. Raises StartupError."""
    from tgi_core.benchmark.workload import Span, at_rate, measure_words, read_dataset, synthetic

    timed = dataset is not None and dataset.suffix == ".csv"
    if (rate is None) == (clients is None) and not (timed and rate is None):
        raise StartupError("--rate and --clients: give one of the two")
    if duration is not None and (requests is not None or rate is None):
        raise StartupError("--duration: needs --rate, and takes the place of --requests")
    try:
        prompts, outputs = Span.parse(prompt_tokens), Span.parse(output_tokens)
    except ValueError as error:
        raise StartupError(f"--prompt-tokens {prompt_tokens} --output-tokens {output_tokens}: {error}") from error
    if duration is not None and rate is not None:
        requests = max(1, round(duration * rate))
    words_of = measure_words(endpoint, common.seed, *([prompts.high] if dataset is None else []))
    if dataset is None:
        jobs = synthetic(requests or 100, prompts, outputs, common.seed, words_of)
    else:
        jobs = read_dataset(dataset, requests, outputs, common.seed, words_of)
    return jobs if rate is None else at_rate(jobs, rate, common.seed)


@command.command("compare")
@click.argument("first", type=_FILE)
@click.argument("second", type=_FILE)
@click.option("--json", "as_json", is_flag=True, help="Print the comparison as JSON.")
@click.option("--plot", type=_FILE, help="Also draw both results: a file that ends with .svg or .html.")
@click.option(
    "--max-loss", type=click.FloatRange(0), metavar="PERCENT", help="Exit with status 1 if a figure is worse by more than this."
)
def compare(first: Path, second: Path, as_json: bool, plot: Path | None, max_loss: float | None) -> None:
    """Compare the results in two files of `--save`, figure by figure. Figures whose rounds overlap are within noise."""
    from tgi_core.benchmark.comparison import changes, differences, table
    from tgi_core.benchmark.result import read_result

    check_plot(plot)
    one, other = read_result(first), read_result(second)
    found = changes(one, other)
    told = table(found)
    write_plot(plot, {str(first): one, str(second): other}, [told])
    notes = differences(one, other)
    text = json.dumps({"changes": [change.row() for change in found], "differences": notes}, indent=1) + "\n"
    print_result(text if as_json else None, [told])
    for note in notes if not as_json else ():
        click.echo(f"the runs differ in {note}", err=True)
    worse = [change for change in found if max_loss is not None and not change.within_noise and 100 * change.loss > max_loss]
    if worse:
        listed = ", ".join(f"{change.name} ({100 * change.loss:.1f} %)" for change in worse)
        raise StartupError(f"--max-loss {max_loss:g}: worse by more: {listed}")


def print_result(text: str | None, shown: list[Table]) -> None:
    """Print JSON if there is any, else tables."""
    if text is not None:
        sys.stdout.write(text)
        return
    for place, table in enumerate(shown):
        if place and not sys.stdout.isatty():
            click.echo()
        show_table(table.heads, table.rows, table.title)


def check_plot(plot: Path | None) -> None:
    """Raises StartupError for a kind of file that cannot be drawn."""
    if plot is not None and plot.suffix not in (".svg", ".html"):
        raise StartupError(f"--plot {plot}: must end with .svg or .html")


def write_plot(plot: Path | None, results: Mapping[str, Result], found: list[Table] | None = None) -> None:
    """Draw results. Raises OSError."""
    if plot is None:
        return
    from tgi_core.benchmark.chart import html, svg

    plot.write_text(svg(results) if plot.suffix == ".svg" else html(results, found or []), encoding="utf-8")


def _sizes(text: str) -> list[int]:
    try:
        found = [int(part) for part in text.split(",")]
    except ValueError as error:
        raise StartupError(f"--batch {text}: must be numbers with commas between them") from error
    if min(found) < 1:
        raise StartupError(f"--batch {text}: must be at least 1")
    return found
