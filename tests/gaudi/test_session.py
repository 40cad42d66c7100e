"""The backend `gaudi` over a stand-in of habana_frameworks: tokens, programs, and the calls that it makes."""

from __future__ import annotations

import logging
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from tgi_backend_gaudi.kit import GaudiKit
from tgi_backend_gaudi.runtime import FAILURES, HabanaRuntime, acquire

from tests.engine.static.test_compiling import Traffic
from tests.engine.tiny_models import Schedule, drafted_schedule, open_cpu, ragged_schedule
from tests.gaudi.opened import PLAN, open_gaudi, use_few
from tgi_core.backend import (
    CacheGroup,
    CacheKind,
    Capacity,
    CompileFailed,
    DeviceBusy,
    DeviceLost,
    Feature,
    Grant,
    Group,
    OutOfMemory,
    PeerLost,
    Unsupported,
    WarmupPlan,
)
from tgi_core.backend.session import Session
from tgi_core.engine.accelerator.failures import device_failure
from tgi_core.engine.compiling import torch_compiler
from tgi_core.engine.static.buckets import Buckets

pytestmark = pytest.mark.usefixtures("machine")
ONE = Group(0, 1, "", 0, 1)


def long_rows(session: Session, capacity: Capacity) -> dict[int, list[int]]:
    """Rows that grow from one block into two, and whose prompts come in chunks of two programs."""
    run = Schedule(session, capacity)
    prompts = [tuple(3 + (7 * place + 5 * id) % 90 for place in range(size)) for id, size in ((11, 124), (12, 180))]
    run.step(run.request(11, prompts[0], 100))
    run.step(run.request(12, prompts[1], 140), grants=(Grant(11, 24),))
    run.step(grants=(Grant(12, 40),))
    for _ in range(12):
        run.step()
    tokens = dict(run.tokens)
    run.leave(11)
    run.gone = frozenset({11})
    run.leave(12)
    return tokens


def test_tokens(llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks, rows that join and one that leaves: the ragged engine's tokens in float32, prompts by Intel's kernel, nothing compiled in
    traffic by the bridge's own counter; all layers are one program."""
    use_few(monkeypatch)
    session, capacity = open_gaudi(llama)
    buckets = Buckets.of(capacity, GaudiKit.rules)
    assert session.stats().compiles == capacity.compiles == 3 * len(buckets.bodies()) + len(buckets.heads())
    assert session.capabilities().features >= {Feature.CHUNKED_PREFILL, Feature.PREFIX_REUSE, Feature.PROMPT_LOGPROBS}
    kernels = {kernel.part: kernel.name for kernel in session.capabilities().kernels}
    assert kernels["attention"] == "fused-sdpa" and kernels["device"] == "GAUDI2" and kernels["verified_on_hardware"] == "false"
    assert capacity.in_flight == 2 and capacity.groups[0].block_size == 128
    cpu = open_cpu(llama, WarmupPlan(max_rows=4, max_row_tokens=256, max_step_tokens=192, num_blocks=64), dtype="float32")
    assert ragged_schedule(session, capacity) == ragged_schedule(*cpu)
    assert long_rows(session, capacity) == long_rows(*cpu)
    traffic = Traffic(session, capacity, 2)
    for _ in range(40):
        traffic.step()
    assert session.stats().compiles == capacity.compiles
    session.close()
    again, found = open_gaudi(llama)
    assert found.compiles == 0 and again.stats().compiles == 0  # the process has them


def test_whole_steps_and_plain_attention(llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What an operator can switch: whole steps as programs, attention in plain torch, lock step; all named; the same tokens."""
    use_few(monkeypatch)
    for name, value in (("REGIONS", "off"), ("RUN_AHEAD", "off"), ("ATTENTION", "flat")):
        monkeypatch.setenv(f"TGI_GAUDI_{name}", value)
    session, capacity = open_gaudi(llama)
    assert capacity.compiles == len(Buckets.of(capacity, GaudiKit.rules).shapes()) and capacity.in_flight == 1
    named = [f"{kernel.part} {kernel.name}" for kernel in session.capabilities().kernels]
    assert {"switch TGI_GAUDI_REGIONS=off", "switch TGI_GAUDI_RUN_AHEAD=off", "attention flat"} <= set(named)
    assert ragged_schedule(session, capacity) == ragged_schedule(*open_cpu(llama, dtype="float32"))


@pytest.mark.parametrize(("positions", "most"), [(4096, 110), (32768, 175)])
def test_number_of_programs(positions: int, most: int) -> None:
    """The buckets of the device's own rules, for as many rows as it promises by default."""
    capacity = Capacity((CacheGroup(CacheKind.FULL, 128, 32 * positions // 128),), 32, positions, 1056, 32)
    assert len(Buckets.of(capacity, GaudiKit.rules).shapes()) <= most


def test_torch_hpu_is_no_other_device_module() -> None:
    """The stand-in has the bridge's arities, which are not those of torch's other modules; the runtime stands between."""
    kit, hpu = GaudiKit(acquire(ONE), 0.5), torch.hpu  # type: ignore[attr-defined]
    for call in (lambda: hpu.synchronize(kit.device), lambda: hpu.is_bf16_supported(including_emulation=False)):
        with pytest.raises(TypeError):
            call()
    with pytest.raises(AttributeError):
        hpu.empty_cache()
    free, total = hpu.mem_get_info()
    assert kit.free_bytes() == free - total // 2
    assert isinstance(kit.runtime, HabanaRuntime)
    with pytest.raises(TypeError):
        import_module("habana_frameworks.torch.hpex.kernels").FusedSDPA.apply(*[None] * 12)


def test_dtypes() -> None:
    """bfloat16, whatever is stored, unless float32 is asked for."""
    kit = GaudiKit(acquire(ONE), 0.5)
    assert kit.choose_dtype("auto", torch.float16) is kit.choose_dtype("bfloat16", torch.float32) is torch.bfloat16
    assert kit.choose_dtype("float32", torch.bfloat16) is torch.float32
    with pytest.raises(Unsupported, match="use bfloat16"):
        kit.choose_dtype("float16", torch.float16)


def test_compile_cache(llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """In the device's own dtype: a later start finds every recipe on disk; one with other limits says what changed."""
    use_few(monkeypatch)
    caplog.set_level(logging.INFO, "tgi_core.engine")
    plan, compiled = WarmupPlan(max_rows=2, max_row_tokens=128, max_step_tokens=128, num_blocks=3), []
    for rows in (2, 2, 3):
        monkeypatch.setattr(torch_compiler, "_COMPILED", {})  # as in another process
        session, capacity = open_gaudi(llama, replace(plan, max_rows=rows), "auto", compile_cache=str(tmp_path / "cache"))
        compiled.append(session.stats().compiles)
        assert capacity.compiles == compiled[-1]
        session.close()
    assert compiled[0] > 0 and compiled[1] == 0
    assert "programs of an earlier start in" in caplog.text and "changed: rows (was 2, is 3)" in caplog.text
    assert list((tmp_path / "cache/recipes-0").iterdir())


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("synStatus=8 [Device not found] Device acquire failed.", DeviceBusy),
        ("Allocation failed for size::1073741824 (1024)MB", OutOfMemory),
        ("Graph compile failed. synStatus=synStatus 26 [Generic failure].", CompileFailed),
        ("HCCL error in: hcclAllReduce", PeerLost),
        ("synStatus=7 [Device reset]", DeviceLost),
        ("shapes differ", None),
    ],
)
def test_errors_of_the_bridge(text: str, kind: type[Exception] | None) -> None:
    """They are RuntimeErrors, told apart by text; what concerns nobody stays what it is."""
    found: Any = device_failure(RuntimeError(text), FAILURES)
    assert found is None if kind is None else type(found) is kind and text in str(found)


def test_more_ranks_than_devices() -> None:
    """Named with both numbers."""
    with pytest.raises(Unsupported, match="--num-shard 4: rank 2 needs its own device, but only 2 can be used"):
        acquire(Group(2, 4, "file:nowhere", 2, 4))


def test_drafts(llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two rows with drafts run in one program by Intel's kernel, and make the tokens that they make without."""
    use_few(monkeypatch)
    session, capacity = open_gaudi(llama, replace(PLAN, draft=3))
    assert Feature.SPECULATION in session.capabilities().features
    _, counts = drafted_schedule(session, replace(capacity, draft=2))
    assert counts == {1, 2, 3}
    session.close()
