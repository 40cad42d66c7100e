"""Two ranks that sum small tensors over symmetric memory, for which a stand-in between two processes is used."""

from __future__ import annotations

import logging
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.engine.ahead.all_reduce_worker import run_summing
from tests.engine.ahead.rank_worker import run_rank
from tests.engine.rank_pair import rank_worker
from tests.engine.tiny_models import save_tiny
from tgi_core.engine.all_reduce import TorchSymmetricMemory

HIDDEN = 64
LIMIT = 4 * HIDDEN * 4
"""Bytes of four tokens."""


def run_pair(folder: Path, store: Path, fault: str = "", reason: str = "") -> list[dict[str, Any]]:
    """What two ranks make of a checkpoint: this process and another."""
    with rank_worker("tests.engine.ahead.all_reduce_worker") as link, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        link.send([str(folder), str(store), fault, LIMIT, reason])
        return [run_summing(folder, store, 0, fault, LIMIT, reason), link.receive(120)]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that two ranks divide."""
    return save_tiny("qwen3", tmp_path_factory.mktemp("model"), num_hidden_layers=2, hidden_size=HIDDEN)


@pytest.fixture(scope="module")
def alone(model: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What one rank makes of it."""
    return run_rank(model, tmp_path_factory.mktemp("alone") / "unused", 0, world=1)


@pytest.mark.timeout(300)
def test_small_tensors_are_summed_in_symmetric_memory(
    model: Path, alone: dict[str, Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Captured decode steps sum there, and prompts, which are larger, over the group; tokens are those of one rank. `/info` and one line
    of the log say what is used."""
    with caplog.at_level(logging.INFO, "tgi_core.engine"):
        ranks = run_pair(model, tmp_path / "store")
    for rank in ranks:
        assert "error" not in rank, rank
        assert rank["tokens"] == alone["tokens"] and rank["replays"] == alone["replays"] + 3  # those of the self-check
        assert (rank["kernels"]["all-reduce"], rank["reasons"]["all-reduce"]) == ("one-shot", "tensors of up to 1 KiB")
        assert {HIDDEN, 2 * HIDDEN, 4 * HIDDEN} <= set(rank["sizes"]) and max(rank["sizes"]) * 4 <= LIMIT
    assert [record.message for record in caplog.records if "all-reduce" in record.message] == [
        "all-reduce: one-shot for tensors of up to 1 KiB"
    ]


FAULTS = [
    ("refusal", "it is no use", set[int]()),
    ("empty", "out of symmetric memory", set[int]()),
    ("connect", "no peer access", set[int]()),
    ("wrong", "ranks get different sums", {4, 128, 256}),
    ("all wrong", "sums differ from the process group's", {4, 128, 256}),
    ("asks", "waits for the device", {4, 128, 256}),
]


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("fault", "reason", "sizes"), FAULTS)
def test_faults_of_one_rank(
    fault: str, reason: str, sizes: set[int], model: Path, alone: dict[str, Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever fails on one rank, both sum over the group, and say why in one line of the log; nothing but the check was summed."""
    with caplog.at_level(logging.INFO, "tgi_core.engine"):
        ranks = run_pair(model, tmp_path / "store", fault)
    for rank in ranks:
        assert "error" not in rank, rank
        assert rank["tokens"] == alone["tokens"] and rank["kernels"]["all-reduce"] == "group" and set(rank["sizes"]) == sizes
        assert rank["reasons"]["all-reduce"].startswith("not one-shot: ")
    assert reason in ranks[1]["reasons"]["all-reduce"]
    assert len([record for record in caplog.records if "all-reduce" in record.message]) == 1


@pytest.mark.timeout(300)
def test_the_switch(model: Path, tmp_path: Path) -> None:
    """A device that gives a reason, such as the operator's switch, tries nothing."""
    for rank in run_pair(model, tmp_path / "store", reason="TGI_CUDA_ONE_SHOT_KIB=0"):
        assert (rank["reasons"]["all-reduce"], rank["sizes"]) == ("not one-shot: TGI_CUDA_ONE_SHOT_KIB=0", [])


@pytest.mark.parametrize(
    ("device", "dtype", "reason"),
    [("cpu", torch.float32, "no symmetric memory on cpu"), ("cuda", torch.float16, "float16"), ("cuda", torch.bfloat16, "")],
)
def test_what_torch_has(device: str, dtype: torch.dtype, reason: str) -> None:
    """torch's symmetric memory is CUDA's, for the dtypes of its kernels; the operator of that name exists."""
    found = TorchSymmetricMemory().refusal(dtype, torch.device(device))
    assert reason in found if reason else not found
