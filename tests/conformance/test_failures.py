"""A failure is told by its shortest sequence, and can be run again from its file."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path

import pytest
from tgi_conformance.baseline import Alone
from tgi_conformance.calls import Clear, Decode, Filter, Prefill, Read, decode, encode
from tgi_conformance.clause import Clause
from tgi_conformance.clause_run import run_clause
from tgi_conformance.clauses import CLAUSES
from tgi_conformance.golden import Golden
from tgi_conformance.mutants import MUTANTS, TWINS
from tgi_conformance.mutants.base import Sound, opening
from tgi_conformance.replay import BadRecording, read_recording, replay, write_recording
from tgi_conformance.scenario import Scene
from tgi_conformance.verdict import Level, Verdict, Violation

from tgi_core.backend import (
    Grant,
    OutputOptions,
    Request,
    Row,
    RowFault,
    RowFaultKind,
    Rows,
    Sampling,
    Step,
    UnknownBatch,
    hookimpl,
)

BY_ID = {clause.id: clause for clause in CLAUSES}


@pytest.mark.parametrize(
    ("mutant", "clause", "most"),
    [
        ("filter-clears-others", "machine.laws", 4),
        ("filter-compares-counts", "isolation.ids-not-counts", 2),
        ("swapped-on-merge", "mates.merge", 6),
        ("leaks", "capacity.returns", 30),
        ("stops-at-end-of-text", "parity.end-of-text", 10),
        ("drafts-unchecked", "speculation.reject", 4),
    ],
)
def test_shortest_sequence(mutant: str, clause: str, most: int, tmp_path: Path) -> None:
    """Nothing is left in it that the failure does not need; run again it fails alike, and passes on a sound backend."""
    name = "late-row-kept-place" if mutant == "leaks" else mutant
    target = MUTANTS[name].target()
    result = run_clause(BY_ID[clause], target, Alone(target))
    assert result.verdict is Verdict.FAIL and 0 < len(result.sequence) <= most, result.sequence
    recording = read_recording(write_recording(tmp_path, clause, result.failure))
    assert recording.clause == clause
    with pytest.raises(Violation) as again:
        list(replay(recording, target))
    assert str(again.value) == result.message
    assert list(replay(recording, TWINS["random-handles"].target()))


@pytest.mark.parametrize(
    "call",
    [
        Prefill(
            (Request(3, (1, 2), 2, 0, ((4,), (5, 6)), 2, Sampling(True, logit_bias=((1, 2.0),)), OutputOptions(False, 3), True),),
            2,
            (Grant(1, 0),),
        ),
        Decode((1, 2), (Grant(3, 1, ((4,),)),)),
        Decode((1,), (Grant(3, 3, ((4,),), (7, 8)),)),
        Read(7),
        Filter(3, (1, 2)),
        Clear(None),
        Clear(4),
    ],
)
def test_calls_go_through_json(call: Prefill | Decode | Read | Filter | Clear) -> None:
    """What is read back is what was written."""
    assert decode(json.loads(json.dumps(encode(5, call)))) == (5, call)


def test_recordings_of_earlier_suites() -> None:
    """A grant without drafts, as suites for API 1.2 wrote it, is one that runs none."""
    call = json.loads(json.dumps(encode(5, Decode((1,), (Grant(3, 1, ((4,),)),)))))
    del call["grants"][0]["drafts"]
    assert decode(call) == (5, Decode((1,), (Grant(3, 1, ((4,),)),)))


@pytest.mark.parametrize("text", ["", "{}", "[1]", "{not json", '{"clause": "x", "backend": "y", "setup": {}}'])
def test_files_that_are_no_failure(text: str, tmp_path: Path) -> None:
    """One line says so."""
    (tmp_path / "x.jsonl").write_text(text)
    with pytest.raises(BadRecording, match=r"x\.jsonl"):
        read_recording(tmp_path / "x.jsonl")


def test_requests_are_recorded_whole() -> None:
    """A field that is added to Request must be recorded too."""
    fields = {field.name for field in dataclasses.fields(Request)}
    call = encode(1, Prefill((Request(1, (1,), 1, 0, ((1,),), 1),)))
    assert set(call["batch"][0]) == fields


def _message(mutant: str, clause: str) -> str:
    target = MUTANTS[mutant].target()
    alone = Alone(target)
    try:
        return run_clause(BY_ID[clause], target, alone, shorten=False).message
    finally:
        alone.close()


def test_parity_names_its_yardstick() -> None:
    """What a row was compared with: a golden transcript and its checkpoint, or itself alone."""
    assert "in the golden transcript of toy it makes" in _message("one-answer-for-all", "parity.greedy")
    assert ", alone it makes" in _message("one-answer-for-all", "mates.together")


def test_steps_that_are_never_read() -> None:
    """A failure behind a failed step says which step the core will not read any more."""
    assert "was derived from the step that failed, and will never be read" in _message("derived-lives", "faults.derived")


def test_a_row_without_a_result() -> None:
    """Is told with those that have one."""
    words = "row 1 ran 1 token in the step, and has no result; there are results for no row"
    assert words in _message("failed-row-returns", "masks.fault-ahead")


def test_threads_that_stay_are_named() -> None:
    """Whoever started them knows which they are."""
    assert "those that are new: Thread (wait) (" in _message("close-keeps-thread", "leaks.reopen")


@pytest.mark.parametrize("clause", ["masks.told", "masks.row-fault", "masks.layout"])
def test_a_forbidden_token_is_called_so(clause: str) -> None:
    """At the first level, whatever else is wrong with it."""
    message = _message("mask-bits-mirrored", clause)
    assert "which its mask forbids" in message and BY_ID[clause].level is Level.L1


def test_a_source_that_was_misled() -> None:
    """Forbids what the row makes; what it was told is the mistake, and is what the message says."""
    assert "and its mask source was told" in _message("tokens-told-twice", "masks.told")


class FailsAlone(Sound):
    """A request that runs alone gets a fault."""

    @hookimpl
    def rows(self, step: Step) -> Rows:
        """For its second token."""
        found = super().rows(step)
        fault = RowFault(RowFaultKind.SAMPLER, "no logit is finite")
        alone = [row.request_id >= 2_000_000 and self._steps > 1 for row in found.rows]
        return dataclasses.replace(
            found,
            rows=tuple(Row(row.request_id, fault=fault) if one else row for row, one in zip(found.rows, alone, strict=True)),
        )


def test_a_row_that_fails_alone() -> None:
    """Row, who ran it, position, and the fault in the backend's own words."""
    target = dataclasses.replace(TWINS["random-handles"].target(), open=opening(FailsAlone))
    alone = Alone(target)
    message = run_clause(BY_ID["order.batch"], target, alone, shorten=False).message
    alone.close()
    told = r"row \d, which the suite ran alone to compare with, at position \d: sampler fault: no logit is finite"
    assert re.fullmatch(told, message), message


def test_a_broken_yardstick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Is the suite's fault, and no backend's; the message shows no Python values."""
    target = TWINS["random-handles"].target()
    golden = Golden.load("toy")
    for cases in ((), tuple(dataclasses.replace(case, tokens=case.tokens[:3]) for case in golden.cases)):
        keys = {(case.prompt, case.sampling, case.masked, case.adapter): case for case in cases}
        monkeypatch.setattr(golden, "_by_key", keys)
        result = run_clause(BY_ID["parity.greedy"], target, Alone(target), shorten=False)
        assert result.verdict is Verdict.ERROR
        assert "the yardstick is" in result.message and "toy" in result.message and "Sampling(" not in result.message


def test_a_scenario_that_is_wrong() -> None:
    """Says so in a sentence about the call."""
    target = TWINS["random-handles"].target()
    alone = Alone(target)

    def check(scene: Scene) -> None:
        stage = scene.stage()
        stage.refuse(UnknownBatch, Prefill((stage.request((1, 2)),)))

    clause = Clause("suite.wrong", "Wrong.", Level.L1, check)
    result = run_clause(clause, target, alone)
    assert result.verdict is Verdict.ERROR
    assert "expects UnknownBatch from #0 prefill row 1" in result.message and "Request(" not in result.message
