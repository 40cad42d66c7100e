"""A model divided over two ranks on a static device."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.engine.ahead.opened import open_on
from tests.engine.static.rank_worker import run_rank, walk
from tests.engine.tiny_models import open_cpu, ragged_schedule, save_tiny


@pytest.mark.parametrize("model_type", ["llama", "phi3"])
def test_two_ranks(model_type: str, tmp_path: Path) -> None:
    """In a schedule and in random traffic both run the same programs in order, and make the tokens of one rank alone; none compiles in
    traffic."""
    model = save_tiny(model_type, tmp_path / "model", num_hidden_layers=1)
    store = tmp_path / "store"
    command = [sys.executable, "-W", "ignore", "-m", "tests.engine.static.rank_worker", str(model), str(store)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    other = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE)
    ours = run_rank(model, store, 0)
    theirs = json.loads(other.communicate(timeout=120)[0])
    assert all(ours[kind] == theirs[kind] for kind in ("ran", "tokens", "walked"))
    assert ours["compiles"] == ours["warmed"] > 0
    alone = ragged_schedule(*open_cpu(model, dtype="float32"))
    assert ours["tokens"] == {str(id): made for id, made in alone.items()}
    assert ours["walked"] == walk(*open_on(None, model))
