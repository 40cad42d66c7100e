"""Grammar masks: unpacks the core's bits for the sampler."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from tgi_core.backend import MaskSource
from tgi_core.backend.batch_tracker import RowState
from tgi_core.backend.masking import mask_row


def allowed_tokens(source: MaskSource, rows: Sequence[RowState], shape: torch.Size) -> Tensor:
    """[rows, vocabulary] bool. A row without a mask allows every token; one whose mask has the wrong size allows none."""
    vocab = shape[-1]
    allowed = torch.ones(shape, dtype=torch.bool)
    masked = [i for i, row in enumerate(rows) if row.request.masked]
    packed = source.fill(tuple(mask_row(rows[i]) for i in masked))
    words = -(-vocab // 32)
    if len(packed) != len(masked) * words * 4:
        allowed[masked] = False
        return allowed
    bits = np.unpackbits(np.frombuffer(packed, np.uint8).reshape(len(masked), words * 4), axis=1, bitorder="little", count=vocab)
    allowed[masked] = torch.from_numpy(bits).bool()
    return allowed
