"""How long those who read along must wait while others' prompts are computed."""

from __future__ import annotations

from statistics import quantiles

import pytest

from bench.scheduling import ours, trace
from bench.scheduling.device import Roofline
from tgi_core.benchmark.trace import Arrival
from tgi_core.scheduler.step_times import StepTimes
from tgi_core.tokenizer import Tokenizer

SLOW = Roofline(launch=1e-3, weights=30e-3, token=0.7e-3, context=0.0)
"""About a processor: a prompt of 500 tokens takes as long as eleven steps that only decode."""


def test_prompts_do_not_stop_the_others(demo_tokenizer: Tokenizer) -> None:
    """On a slow device, with new prompts all the time, hardly a gap between two tokens is more than twice the usual one."""
    run = ours.Simulation(SLOW, demo_tokenizer)
    run.run([Arrival(0.6 * number, 100 + 37 * number % 400, 60) for number in range(100)])
    gaps = quantiles(run.gaps, n=100)
    assert gaps[98] <= 2 * gaps[49]


def test_a_long_queue_is_worked_off(demo_tokenizer: Tokenizer) -> None:
    """Where much waits, smooth answers are not paid for by those who wait: all is done in little more time than any schedule takes."""
    arrivals = trace.at_once(trace.make(60, seed=2))
    roofline = Roofline()
    served = ours.Simulation(roofline, demo_tokenizer).run(arrivals)
    assert max(item.last for item in served) <= 1.2 * roofline.bound(arrivals)


def test_a_crowd_goes_first(demo_tokenizer: Tokenizer) -> None:
    """Of many requests at once nobody waits for the answers of those that a first step had room for."""
    roofline = Roofline(launch=1e-3, weights=8e-3, token=0.3e-3, context=0.0)
    crowd = [Arrival(at, 128, 64) for at in (0.0, 10.0) for _ in range(32)]  # the first shows what steps cost
    served = ours.Simulation(roofline, demo_tokenizer).run(crowd)
    assert max(item.first for item in served) <= 10.0 + 1.1 * 32 * 128 * roofline.token


def test_the_cost_of_prompts_is_learned() -> None:
    """From steps with and without prompts; the more a prompt's token costs, the fewer fit beside rows that decode."""
    times, now = StepTimes(), 0.0
    assert times.prompt_tokens(8) is None
    for prompt_tokens, seconds in [(0, 0.1), (100, 0.2)] * 50:
        times.launched(8, prompt_tokens, now)
        now += seconds
        times.read(now)
    fits = times.prompt_tokens(8)
    assert fits == pytest.approx(60, abs=5)
    times.launched(8, 100, now)
    times.read(now + 5.0)
    assert fits is not None and 0 < (times.prompt_tokens(8) or 0) < fits


def test_what_many_rows_cost_is_not_the_prompts() -> None:
    """Steps of many rows take longer than those of few; of a prompt beside them only what comes on top is its own."""
    times, now = StepTimes(), 0.0
    for rows, prompt_tokens, seconds in [(2, 0, 0.01), (30, 0, 0.05), (30, 100, 0.15), (2, 100, 0.11)] * 50:
        times.launched(rows, prompt_tokens, now)
        now += seconds
        times.read(now)
    assert [times.prompt_tokens(rows) for rows in (30, 17, 60, 2)] == pytest.approx([30, 30, 30, 6], abs=2)


def test_short_steps_are_no_pause() -> None:
    """On a fast device a step may take a hundredth of a second, whatever the others take."""
    times, now = StepTimes(), 0.0
    for prompt_tokens, seconds in [(0, 1e-3), (100, 2e-3)] * 50:
        times.launched(8, prompt_tokens, now)
        now += seconds
        times.read(now)
    assert times.prompt_tokens(8) == pytest.approx(900, abs=50)


def test_what_a_draft_adds() -> None:
    """It is measured apart from steps without drafts, and what a disturbance added is forgotten with these."""
    times, now = StepTimes(), 0.0

    def step(seconds: float, drafts: int = 0) -> None:
        nonlocal now
        times.launched(8, 0, now, drafts)
        now += seconds
        times.read(now)

    for _ in range(9):
        step(0.010)
        step(0.013, drafts=3)
    assert times.decoding_s(8) == pytest.approx(0.010)
    assert times.draft_s(8) == pytest.approx(0.001, rel=0.1) and times.draft_s(1) == 0
    step(0.100, drafts=3)
    raised = times.draft_s(8)
    for _ in range(200):
        step(0.010)
    assert times.draft_s(8) < raised / 4
