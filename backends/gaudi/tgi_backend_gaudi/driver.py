"""What the kernel driver says of a device through its control node, which can be opened beside the process that holds the device.

Source: include/uapi/drm/habanalabs_accel.h of Linux, and drivers/accel/habanalabs/common/habanalabs_ioctl.c, which answers.
"""

from __future__ import annotations

import ctypes
import fcntl
from pathlib import Path

INFO_REQUESTS = (0xC0186440, 0xC0184801)
"""`DRM_IOCTL_HL_INFO`, and `HL_IOCTL_INFO` of drivers from before the accel subsystem had its own numbers."""
OPEN_STATS = 18
"""`HL_INFO_OPEN_STATS`."""


class InfoArguments(ctypes.Structure):
    """`struct hl_info_args`: where the answer goes, its size, and what is asked."""

    _fields_ = (
        ("return_pointer", ctypes.c_uint64),
        ("return_size", ctypes.c_uint32),
        ("op", ctypes.c_uint32),
        ("argument", ctypes.c_uint32),
        ("pad", ctypes.c_uint32),
    )


class OpenStats(ctypes.Structure):
    """`struct hl_open_stats_info`."""

    _fields_ = (
        ("open_counter", ctypes.c_uint64),
        ("last_open_period_ms", ctypes.c_uint64),
        ("is_compute_ctx_active", ctypes.c_uint8),
        ("compute_ctx_in_release", ctypes.c_uint8),
        ("pad", ctypes.c_uint8 * 6),
    )


def in_use(control: Path) -> bool:
    """Whether a process has the device of a control node open and is not leaving it; False where the driver does not say."""
    stats = OpenStats()
    asked = InfoArguments(ctypes.addressof(stats), ctypes.sizeof(stats), OPEN_STATS)
    for request in INFO_REQUESTS:
        try:
            with control.open("rb", buffering=0) as node:
                fcntl.ioctl(node, request, asked)
        except OSError:
            continue
        return bool(stats.is_compute_ctx_active and not stats.compute_ctx_in_release)
    return False
