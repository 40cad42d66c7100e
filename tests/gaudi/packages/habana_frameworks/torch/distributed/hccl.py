"""The collectives "hccl", which are gloo's here."""

import os
from datetime import timedelta

import torch.distributed as dist


def _group(store: dist.Store, rank: int, size: int, timeout: timedelta) -> dist.ProcessGroup:
    return dist.ProcessGroupGloo(store, rank, size, timeout)


def initialize_distributed_hpu(world_size: int, rank: int, local_rank: int) -> tuple[int, int, int]:
    """Choose this process's module."""
    assert rank < world_size
    os.environ["HLS_MODULE_ID"] = str(local_rank)
    return world_size, rank, local_rank


dist.Backend.register_backend("hccl", _group, devices=["cpu"])
