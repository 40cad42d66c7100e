"""Checks a config's sizes against the shapes in its checkpoint before a model is built, without torch, for any architecture.

Field names mean about the same in all configs, so this only catches sizes that are far off. The exact check is made while the model is
built: `StoredWeights` knows how many elements it holds, and no model has many times as many.
"""

from __future__ import annotations

import re
from pathlib import Path

from tgi_core.backend import InvalidModel
from tgi_core.engine.weights.checkpoint import Checkpoint, open_checkpoint
from tgi_core.errors import StartupError
from tgi_core.model_sizes import named_integers, read_sizes

_COUNTS = re.compile(r"(^|[._])n?_?(layers?|blocks)$")
_WIDTHS = re.compile(
    r"(^|\.|_)(hidden_size|intermediate_size|ffn_dim|n_embd|d_model|d_ff|n_inner|heads?|head_dim|experts)$|(^|\.)vocab_size$"
)
_FEW_LAYERS = 1024
"""Layers that no model has, but that can be built in a second or two."""
_SMALL = 65536
"""Widths up to this may occur only in the config, for parts that the checkpoint lacks."""


def check_model(directory: Path) -> Checkpoint:
    """A model directory's checkpoint, if its config.json matches in size. Raises InvalidModel naming file and field or tensor."""
    checkpoint = open_checkpoint(directory)
    try:
        config = read_sizes(directory)
    except StartupError as error:
        raise InvalidModel(str(error)) from error
    layers = max(_FEW_LAYERS, _numbered(checkpoint))
    widest = max((max(entry.shape, default=1) for entry in checkpoint.tensors.values()), default=1)
    for name, value in named_integers(config):
        told = f"{directory / 'config.json'}: {' '.join(name.split())} is {str(value)[:40]}"
        if value > layers and _COUNTS.search(name):
            raise InvalidModel(f"{told}, but the tensors of {checkpoint.file.name} are numbered to {_numbered(checkpoint) - 1}")
        if value > max(_SMALL, widest) and _WIDTHS.search(name):
            raise InvalidModel(f"{told}, but no tensor of {checkpoint.file.name} is larger than {widest} in any dimension")
    return checkpoint


def _numbered(checkpoint: Checkpoint) -> int:
    """One more than the highest number in a tensor's name: layers, or experts."""
    return 1 + max((int(part) for name in checkpoint.tensors for part in name.split(".") if _is_number(part)), default=0)


def _is_number(part: str) -> bool:
    return len(part) < 10 and part.isascii() and part.isdecimal()
