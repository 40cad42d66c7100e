"""Asks the kernel driver about a device through its control node, which can be opened while another process holds the device.

Source: include/uapi/drm/habanalabs_accel.h of Linux, and drivers/accel/habanalabs/common/habanalabs_ioctl.c, which answers.
"""

from __future__ import annotations

import ctypes
import fcntl
import struct
from pathlib import Path

INFO_REQUESTS = (0xC0186440, 0xC0184801)
"""`DRM_IOCTL_HL_INFO`, and `HL_IOCTL_INFO` of drivers from before the accel subsystem had its own numbers."""
OPEN_STATS = 18
"""`HL_INFO_OPEN_STATS`."""
_ARGUMENTS, _ANSWER = "=QIIII", "=QQBB6x"
"""`struct hl_info_args`: the address and size of the result, the request, and two fields that are zero. `struct hl_open_stats_info`: two
counters, whether there is a context, and whether it is being released."""


def in_use(control: Path) -> bool:
    """Whether a process has the device of a control node open and is not releasing it; False if the driver does not say."""
    stats = ctypes.create_string_buffer(struct.calcsize(_ANSWER))
    asked = struct.pack(_ARGUMENTS, ctypes.addressof(stats), len(stats), OPEN_STATS, 0, 0)
    for request in INFO_REQUESTS:
        try:
            with control.open("rb", buffering=0) as node:
                fcntl.ioctl(node, request, asked)
        except OSError:
            continue
        *_, is_active, is_leaving = struct.unpack(_ANSWER, stats.raw)
        return bool(is_active and not is_leaving)
    return False
