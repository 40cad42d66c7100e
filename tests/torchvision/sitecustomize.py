"""Lets torchvision be imported beside a torch that it was not built for, in every process that has this folder on its PYTHONPATH.

Its import registers implementations for two operators, which are missing then. The processors of images use neither.
"""

from __future__ import annotations

import torch

for _name in ("nms", "qnms"):
    torch.library.define(f"torchvision::{_name}", "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
