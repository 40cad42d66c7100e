"""What the plugin sets before Intel's libraries are imported, what it names as ignored, and two ranks."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from pathlib import Path

import pytest
from tgi_backend_gaudi import plugin

from tests.engine.tiny_models import open_cpu, ragged_schedule, save_tiny
from tests.gaudi.standin import environment, gaudi
from tgi_core.backend import Group, OpenOptions


def test_variables_of_tgi(caplog: pytest.LogCaptureFixture) -> None:
    """Those of TGI's Gaudi backend that change nothing are named once, with the reason; eager mode is set whatever was asked for."""
    caplog.set_level(logging.WARNING, "tgi_core.engine")
    given = {"PT_HPU_LAZY_MODE": "1", "BATCH_BUCKET_SIZE": "8", "QUANT_CONFIG": "maxabs_quant.json", "PT_HPU_WEIGHT_SHARING": "1"}
    plugin.prepare(given, OpenOptions("model"))
    lines = [record.getMessage() for record in caplog.records]
    assert [line.partition(" is ignored: ")[0] for line in lines] == [
        "BATCH_BUCKET_SIZE=8",
        "PT_HPU_LAZY_MODE=1",
        "QUANT_CONFIG=maxabs_quant.json",
    ]
    assert (
        given["PT_HPU_LAZY_MODE"] == "0" and given["PT_HPU_WEIGHT_SHARING"] == "1" and "PT_HPU_RECIPE_CACHE_CONFIG" not in given
    )


def test_recipes() -> None:
    """Every rank has a directory of its own, which is not emptied; the operator's own setting stays."""
    given: dict[str, str] = {}
    plugin.prepare(given, OpenOptions("model", compile_cache="/cache", group=Group(1, 2, "", 1, 2)))
    assert given["PT_HPU_RECIPE_CACHE_CONFIG"] == "/cache/recipes-1,false,16384"
    given["PT_HPU_RECIPE_CACHE_CONFIG"] = "/mine,false,1"
    plugin.prepare(given, OpenOptions("model", compile_cache="/cache"))
    assert given["PT_HPU_RECIPE_CACHE_CONFIG"] == "/mine,false,1"


def test_two_ranks(tmp_path: Path) -> None:
    """Over HCCL, each with a module of its own: both make the tokens of one device, and compile nothing in traffic."""
    model = save_tiny("llama", tmp_path / "model", num_hidden_layers=1)
    extra = {**environment(tmp_path, gaudi(tmp_path / "machine", 2)), "OMP_NUM_THREADS": "1", "STANDIN_FEW": "1"}
    extra["PYTHONPATH"] += f":{Path(__file__).parents[2]}"
    command = [sys.executable, "-W", "ignore", "-m", "tests.gaudi.rank_worker", str(model), str(tmp_path / "store")]
    ranks = [subprocess.Popen([*command, str(rank)], env=extra, stdout=subprocess.PIPE) for rank in range(2)]
    found = [json.loads(rank.communicate(timeout=240)[0].splitlines()[-1]) for rank in ranks]
    alone = {str(id): tokens for id, tokens in ragged_schedule(*open_cpu(model, dtype="float32")).items()}
    assert [rank["tokens"] for rank in found] == [alone, alone]
    assert [rank["module"] for rank in found] == ["0", "1"] and [rank["compiled"] for rank in found] == [0, 0]
