"""The server's own choice of how many drafts pay, with a source that is right at a given rate: scheduler, model server and CPU backend.

Two stacks answer the same requests in turns, one without drafts. Tokens are sampled, so that no text repeats itself and all drafts come
from that source. Neither counts once a row has ended.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.speculating.stack import Answer, Guessing, Stack, middle, take_turns
from tgi_core.backend import OutputOptions, Sampling
from tgi_core.scheduler import GenerationRequest
from tgi_core.wire.types import Stopping

PROMPT, NEW = 64, 160


@dataclass(frozen=True, slots=True)
class Chosen:
    """Tokens per second of `rows` rows with drafts over those without, by round, at one rate of acceptance."""

    rows: int
    rate: float
    gains: list[float]
    cpu_gains: list[float]
    """The same per second of processor time, which other work on the machine affects less."""
    plain: float
    """Tokens per second without drafts."""
    tokens: float
    """Tokens per row and step with drafts."""
    drafts: float
    """Drafts per row and step."""


def requests(rows: int, first: int = 0) -> list[GenerationRequest]:
    """Prompts that share nothing, each with a seed."""
    found = []
    for row in range(first, first + rows):
        prompt = tuple((31 * row + 7 * place) % 1024 for place in range(PROMPT))
        sampling = Sampling(do_sample=True, temperature=1.0, seed=row)
        found.append(GenerationRequest.of(prompt, sampling, Stopping(NEW, ignore_eos=True), OutputOptions(logprobs=False)))
    return found


def measure(model: Path, batch: Sequence[int], rates: Sequence[float], drafts: int, rounds: int) -> list[Chosen]:
    """Each batch at each rate. Raises RuntimeError if drafts change a token."""
    rows = max(batch)
    plain, drafting = (Stack(model, rows, PROMPT + NEW, draft, guessing=bool(draft)) for draft in (0, drafts))
    found = []
    for count in batch:
        asked = requests(count)
        plain.begin(asked)
        plain.go_on()
        known = plain.run.answers
        found += [_chosen(plain, drafting, asked, known, rate, rounds) for rate in rates]
    return found


def _chosen(
    plain: Stack, drafting: Stack, asked: Sequence[GenerationRequest], known: Sequence[Answer], rate: float, rounds: int
) -> Chosen:
    gains, cpu_gains, speeds = list[float](), list[float](), list[float]()
    tokens = steps = drafts = 0
    assert isinstance(drafting.session, Guessing)  # noqa: S101 - it was made so
    drafting.session.rate = rate
    for turn in range(-1, rounds):  # the first one is a warm-up
        plain.begin(asked)
        drafting.begin(asked, known)
        take_turns(plain, drafting, whole=False)
        one, other = plain.run, drafting.run
        for answer, whole in zip(other.answers, known, strict=True):
            if answer != whole[: len(answer)]:
                raise RuntimeError("drafts changed a token")
        for stack in (plain, drafting):
            stack.drop()
        if turn >= 0:
            gains.append(other.rate / one.rate)
            cpu_gains.append(other.tokens / other.cpu * one.cpu / one.tokens)
            speeds.append(one.rate)
            tokens, steps, drafts = tokens + other.tokens, steps + other.steps, drafts + other.drafts
    row_steps = steps * len(asked)
    return Chosen(len(asked), rate, gains, cpu_gains, sum(speeds) / len(speeds), tokens / row_steps, drafts / row_steps)


def report(found: Sequence[Chosen]) -> str:
    """A line per measurement."""
    lines = ["rows  rate  tokens/s plain  drafts/row  tokens/row  gain              by processor time"]
    for each in found:
        made = f"{each.plain:14.1f}  {each.drafts:10.2f}  {each.tokens:10.2f}"
        lines.append(f"{each.rows:4d}  {each.rate:4.1f}  {made}  {middle(each.gains)}  {middle(each.cpu_gains)}")
    return "\n".join(lines)
