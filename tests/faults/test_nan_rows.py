"""Rows of NaN: each fails its request with a reason of its own; several in a minute, and the device is not to be trusted."""

from __future__ import annotations

import pytest

from tests.scheduler.device import request
from tests.scheduler.test_loop import collect, running
from tests.telemetry.server import instance, scrape, value
from tgi_core.backend import RowFaultKind
from tgi_core.backend.fault_schedule import parse_schedule
from tgi_core.backend.faults import inject
from tgi_core.backend.session import Session
from tgi_core.scheduler import RequestFailed
from tgi_core.scheduler.device_monitor import LOST_REQUESTS, LOST_WINDOW_S, NAN_WINDOW_S, DeviceMonitor
from tgi_core.tokenizer import Tokenizer


def test_three_in_a_minute() -> None:
    """Two rows are an accident, the third within 60 s is not; a minute after the first of them it is trusted again."""
    now = 0.0
    device_monitor = DeviceMonitor(lambda: now)
    for when, sound in ((0.0, True), (50.0, True), (70.0, True), (100.0, False)):
        now = when
        device_monitor.note_failed(RowFaultKind.NAN)
        assert device_monitor.sound is sound, when
    now = 50.0 + NAN_WINDOW_S
    assert not device_monitor.sound
    now += 1
    assert device_monitor.sound and device_monitor.nan_rows == 4


def test_one_request_after_another() -> None:
    """Requests that fail for their steps, and no step in between that succeeds: not to be trusted until one does, or a minute is over.
    What fails for its row says nothing of the steps."""
    now = 0.0
    device_monitor = DeviceMonitor(lambda: now)
    for _ in range(2):
        for _ in range(LOST_REQUESTS - 1):
            device_monitor.note_failed(None)
            device_monitor.note_failed(RowFaultKind.MASK)
        assert device_monitor.sound
        device_monitor.note_failed(None)
        assert not device_monitor.sound
        device_monitor.note_step()
        assert device_monitor.sound
    for _ in range(LOST_REQUESTS):
        device_monitor.note_failed(None)
    now = LOST_WINDOW_S
    assert not device_monitor.sound
    now += 1
    assert device_monitor.sound


async def test_every_step_fails(demo_tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    """A device without memory for anything: each request is told, and the server is not ready until a step succeeds."""
    faulty = parse_schedule("oom:every=1,when=rows")
    warmup = Session.warmup
    monkeypatch.setattr(Session, "warmup", lambda self, plan, progress: (inject(self, faulty), warmup(self, plan, progress))[1])
    async with running(demo_tokenizer) as loop:
        for _ in range(LOST_REQUESTS):
            assert loop.sound
            with pytest.raises(RequestFailed) as caught:
                await collect(loop.submit(request((1, 2), 5)))
            assert caught.value.kind is None
        assert not loop.sound


async def test_the_loop_knows(demo_tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each row of NaN ends its stream with its kind; after the third the loop's shard is unsound, and still serves."""
    faulty = parse_schedule("nan:at=1+2+3")
    warmup = Session.warmup
    monkeypatch.setattr(Session, "warmup", lambda self, plan, progress: (inject(self, faulty), warmup(self, plan, progress))[1])
    async with running(demo_tokenizer, asynchronous=False) as loop:
        for count in (1, 2, 3):
            assert loop.device_monitor.sound
            with pytest.raises(RequestFailed) as caught:
                await collect(loop.submit(request((1, 2), 5)))
            assert caught.value.kind is RowFaultKind.NAN and loop.device_monitor.nan_rows == count
        assert not loop.device_monitor.sound and await loop.healthy()
        assert len(await collect(loop.submit(request((1, 2), 5)))) == 5


@pytest.mark.parametrize("kind", ["nan", "sampler", "token"])
def test_clients_and_operators_are_told(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """TGI's routes answer 424 `generation`, OpenAI's the same without an invitation to try again; the metric names NaN by itself."""
    warmup = Session.warmup
    faulty = parse_schedule(f"{kind}:every=1")
    monkeypatch.setattr(Session, "warmup", lambda self, plan, progress: (inject(self, faulty), warmup(self, plan, progress))[1])
    with instance() as served:
        native = served.client.post("/generate", json={"inputs": "Hi"})
        assert (native.status_code, native.json()["error_type"]) == (424, "generation")
        opened = served.client.post("/v1/completions", json={"prompt": "Hi", "model": "x"})
        assert opened.status_code == 424 and "retry-after" not in opened.headers
        series = scrape(served)
    counted = {err: value(series, "tgi_request_failure", err=err) for err in ("nan", "generation")}
    assert counted == ({"nan": 2, "generation": 0} if kind == "nan" else {"nan": 0, "generation": 2})
