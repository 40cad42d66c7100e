"""Everything is compiled in warm-up, and nothing after it; and what a compiler would refuse, the emulated one refuses too."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
import torch
from tgi_backend_static_cpu.compiler import COMPILER, GraphCompiler
from tgi_backend_static_cpu.kit import StaticCpuKit
from tgi_backend_static_cpu.program_guard import BetweenPrograms, ProgramGuard, ProgramGuardError
from torch import Tensor
from torch._dynamo.utils import counters

from tests.engine.ahead.opened import PLAN
from tests.engine.static.opened import FLAT, open_on_static
from tests.engine.static.traffic import STEPS, Traffic
from tests.engine.tiny_models import save_tiny, silent
from tgi_core.backend import (
    Adapter,
    Feature,
    InvalidModel,
    OpenOptions,
    OutOfMemory,
    Unsupported,
    WarmupPlan,
)
from tgi_core.engine.memory import coarse
from tgi_core.engine.paged_decoder import PagedDecoderRunner
from tgi_core.engine.static.session import open_static


@pytest.mark.parametrize("seed", [1])
def test_nothing_is_compiled_in_traffic(llama: Path, seed: int) -> None:
    """Over a thousand random steps torch's own counter of captured graphs stands still, and so does the backend's."""
    session, capacity = open_on_static(llama)
    graphs, compiles = counters["stats"]["unique_graphs"], session.stats().compiles
    traffic = Traffic(session, capacity, seed)
    for _ in range(STEPS):
        traffic.step()
    assert traffic.next_id > STEPS // 20
    assert counters["stats"]["unique_graphs"] == graphs and session.stats().compiles == compiles


def test_plan_and_progress(llama: Path, caplog: pytest.LogCaptureFixture) -> None:
    """What will be compiled is said before it is; then every program counts."""
    seen: list[tuple[str, int, int, str]] = []
    with caplog.at_level(logging.INFO, "tgi_core.engine"):
        session, capacity = open_on_static(llama, progress=lambda *each: seen.append(each))
    plan = next(record.getMessage() for record in caplog.records if "will compile" in record.getMessage())
    total = int(plan.split()[2])
    assert plan.startswith(f"will compile {total} programs: ") and "for chunks of 16 48 tokens" in plan
    assert seen == [("compiling", done, total, "step") for done in range(total + 1)]
    assert capacity.takes == (16, 48) and capacity.in_flight == 2
    assert session.capabilities().features >= {Feature.CHUNKED_PREFILL, Feature.PREFIX_REUSE, Feature.PROMPT_LOGPROBS}


def test_second_start(tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the same directory a second start compiles nothing; where something has changed, that is named."""
    model = save_tiny("llama", tmp_path / "model", num_hidden_layers=1)
    caplog.set_level(logging.INFO, "tgi_core.engine")

    def compiles(blocks: int) -> int:
        monkeypatch.setattr(COMPILER, "captured", {})  # as a new process begins
        plan = WarmupPlan(max_rows=2, max_row_tokens=16, max_step_tokens=16, num_blocks=blocks)
        return open_on_static(model, plan, compile_cache=str(tmp_path / "cache"))[0].stats().compiles

    assert compiles(2) > 5
    assert compiles(2) == 0 and "programs of an earlier start" in caplog.text
    assert compiles(3) > 0 and "changed: blocks (was 2 of 16, is 3 of 16)" in caplog.text


def test_cache_that_cannot_be_written(llama: Path, tmp_path: Path) -> None:
    """The setting is named."""
    (tmp_path / "file").write_text("")
    with pytest.raises(Unsupported, match="--compile-cache"):
        open_on_static(llama, compile_cache=str(tmp_path / "file"))


def test_other_models(tmp_path: Path) -> None:
    """A model that is no decoder table is refused, with what is not supported."""
    model = save_tiny("gpt2", tmp_path)
    with pytest.raises(InvalidModel, match=r"static devices run decoder tables; this model is not one: .*gpt2"):
        open_static(OpenOptions(str(model)), StaticCpuKit(FLAT), silent)


def test_options(llama: Path) -> None:
    """What a static device does not do is refused by the flag that asks for it."""
    with pytest.raises(Unsupported, match="--lora-adapters"):
        open_static(OpenOptions(str(llama), adapters=(Adapter("a", "/nowhere"),)), StaticCpuKit(FLAT), silent)


def test_memory_for_the_buckets(llama: Path) -> None:
    """Programs take memory, which is counted before any is compiled; where it is not there, they are named with their bytes."""
    kit = StaticCpuKit(FLAT, free=1 << 26)
    kit.program_bytes = 1 << 24
    with pytest.raises(OutOfMemory, match=r"activations of [\d,]+ and \d+ programs of [\d,]+"):
        open_on_static(llama, PLAN, kit)


def test_weights_that_do_not_fit(llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of them is read, which would take minutes: the error names both sizes, and what to do."""
    monkeypatch.setattr(PagedDecoderRunner, "__init__", lambda *arguments: pytest.fail("the weights were loaded"))
    with pytest.raises(OutOfMemory, match=r"weights of [\d,]+ bytes: 1,024 are free; use a smaller --dtype"):
        open_on_static(llama, PLAN, StaticCpuKit(FLAT, free=1024))


def test_coarse() -> None:
    """The number of blocks keeps three leading bits, so that a little less free memory needs no other programs."""
    assert [coarse(count) for count in (5, 8, 1000, 1023, 1024, 1100)] == [5, 8, 896, 896, 1024, 1024]


class Holder:
    """What a program may write to."""

    caches = ()


def test_program_guard() -> None:
    """Inside a program no value is read, no shape depends on one, and no input is written; between programs there are only copies."""
    newest, words = torch.zeros(3), torch.ones(4)
    refused = {
        "reads a value": lambda: bool(words.sum() > 0),
        "depends on values": lambda: words[words > 0],
        "shape of its result": lambda: words.nonzero(),
        "writes to an input": lambda: words.view(2, 2).add_(1),
    }
    for reason, work in refused.items():
        with pytest.raises(ProgramGuardError, match=reason), ProgramGuard((Holder(), newest, words)):
            work()
    with ProgramGuard((Holder(), newest, words)):
        newest.add_(1)
    with pytest.raises(ProgramGuardError, match="outside of any program"), BetweenPrograms():
        words[:2]
    others = torch.zeros(3)
    with BetweenPrograms():
        newest.copy_(others)


def test_sealed() -> None:
    """After warm-up a call of another shape is an error that names the program, and is not compiled."""

    def double(forward: object, newest: Tensor, words: Tensor) -> Tensor:
        return words * 2

    compiler = GraphCompiler(("test",), guarded=False)
    program = compiler.compile(double, "twice")
    with torch.no_grad():
        program(None, torch.zeros(1), torch.zeros(4))
        compiler.seal()
        assert program(None, torch.zeros(1), torch.ones(4)).tolist() == [2.0] * 4
        with pytest.raises(Exception, match="twice: this program would have to be compiled again"):
            program(None, torch.zeros(1), torch.ones(5))
