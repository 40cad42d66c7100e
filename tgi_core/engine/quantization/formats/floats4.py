"""4-bit floats (E2M1) and their scales, as OCP's microscaling formats define them.

Source: https://www.opencompute.org/documents/ocp-microscaling-formats-mx-v1-0-spec-final-pdf, sections 5.3.3 and 5.4.1.
"""

from __future__ import annotations

import torch
from torch import Tensor

_TWICE = torch.tensor([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], dtype=torch.int8)


def e2m1_codes(pairs: Tensor) -> Tensor:
    """Twice the numbers of bytes [..., n], as int8 [..., 2n]: E2M1 numbers are halves of integers. The low half of a byte is first."""
    return _TWICE[torch.stack((pairs & 15, pairs >> 4), -1).flatten(-2).int()]


def power_of_two(scale: Tensor) -> Tensor:
    """E8M0 scales, uint8 or float8_e8m0fnu, as float32."""
    return torch.exp2(scale.view(torch.uint8).float() - 127)
