"""Two ranks of a late device, each one step ahead, from their parts of a table."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest

from tests.engine.ahead.rank_worker import KINDS, run_rank
from tests.engine.rank_pair import rank_worker
from tests.engine.tiny_models import save_tiny


def run_pair(folder: Path, store: Path) -> list[dict[str, object]]:
    """What two ranks make of a checkpoint: this process and another."""
    with rank_worker("tests.engine.ahead.rank_worker") as link, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        link.send([str(folder), str(store)])
        return [run_rank(folder, store, 0), link.receive(120)]


@pytest.mark.timeout(300)
def test_two_ranks_make_the_tokens_of_one(tmp_path: Path) -> None:
    """Rows of every kind get the tokens of a single rank on both, from steps that are captured with their collectives and launched
    ahead; nothing in them asks the device for a number, or they could not be recorded."""
    folder = save_tiny("qwen3", tmp_path / "model", num_hidden_layers=2)
    alone = run_rank(folder, tmp_path / "unused", 0, world=1)
    for rank in run_pair(folder, tmp_path / "store"):
        assert "error" not in rank, rank
        assert rank["tokens"] == alone["tokens"] and rank["compiles"] == alone["compiles"]
        kernels = rank["kernels"]
        assert isinstance(kernels, dict)
        assert (kernels["step"], kernels["run ahead"], kernels["graphs"]) == ("table", "one step", "decode steps")
        assert rank["waiting"] == alone["waiting"] and rank["replays"] == alone["replays"]
    tokens = alone["tokens"]
    assert isinstance(tokens, dict) and [len(tokens[str(id)]) for id in range(1, len(KINDS) + 1)] == [10, 7, 10, 9, 9]
    assert alone["replays"]
