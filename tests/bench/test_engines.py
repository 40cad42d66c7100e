"""Engines in processes of their own do what they are told, and are believed only if the tokens are there."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from bench.peers.child import EngineError, EngineProcess
from bench.peers.engines.protocol import Plan

PROMPTS = [[1, 2, 3], [4, 5, 6]]


def engine(tmp_path: Path, fault: str = "none", limit_s: float = 60) -> EngineProcess:
    """The counting engine, with something wrong."""
    return EngineProcess("counting", Path(sys.executable), "tests.bench.fake_engine", {"FAKE": fault}, tmp_path / "log", limit_s)


def test_a_run_counts_what_decoding_made(tmp_path: Path) -> None:
    """Tokens that prefill made are not counted as decoded, and what libraries print disturbs nothing."""
    with engine(tmp_path) as counting:
        about = counting.open(Plan(tmp_path, 2, 8, 6))
        run = counting.run(PROMPTS, 5)
    assert about["precision"] == "integers"
    assert (run.rows, run.prompt, run.decoded) == (2, 3, 8)
    assert run.prefill_rate == pytest.approx(6 / run.prefill_s) and run.decode_rate == pytest.approx(8 / run.decode_s)
    assert "libraries talk" in (tmp_path / "log").read_text()


def test_a_token_that_is_missing_is_noticed(tmp_path: Path) -> None:
    """An engine that makes fewer tokens than it was asked for has no speed."""
    with engine(tmp_path, "lazy") as counting:
        counting.open(Plan(tmp_path, 2, 8, 6))
        with pytest.raises(EngineError, match="row 1 has 4 tokens; 5 were asked for"):
            counting.run(PROMPTS, 5)


def test_an_engine_that_ends_says_why(tmp_path: Path) -> None:
    """The last line of its log is the reason."""
    with engine(tmp_path, "cannot open") as counting, pytest.raises(EngineError, match=r"status 1 on open: .*too old"):
        counting.open(Plan(tmp_path, 2, 8, 6))


def test_an_engine_that_hangs_is_ended(tmp_path: Path) -> None:
    """No answer within the limit is a failure, and the process does not stay."""
    with engine(tmp_path, "hangs", limit_s=0.1) as counting, pytest.raises(EngineError, match="no answer to open"):
        counting.open(Plan(tmp_path, 2, 8, 6))
