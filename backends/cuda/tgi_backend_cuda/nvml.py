"""NVIDIA's devices, through the driver's management library: no CUDA context, no torch.

Source: NVML API reference, `nvmlInit_v2`, `nvmlDeviceGet…`; all of it is in every driver since 2016.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

LIBRARY = "libnvidia-ml.so.1"
_TEXT = 96
"""Longest name and UUID, with the zero (NVML_DEVICE_NAME_V2_BUFFER_SIZE)."""

_REASONS = {
    9: "no driver is loaded",
    15: "a device has fallen off the bus",
    18: "the loaded driver and its library differ in version; reboot, or reload the driver",
}
"""nvmlReturn_t of nvmlInit, in words."""


class NoNvml(Exception):
    """The library is missing or does not start; the text says why."""


@dataclass(frozen=True, slots=True)
class Card:
    """One device. `capability` is CUDA's (major, minor), `num_bytes` all of its memory."""

    name: str
    uuid: str
    capability: tuple[int, int]
    num_bytes: int


class _MemoryInfo(ctypes.Structure):
    _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))


def read_cards() -> tuple[list[Card], tuple[int, int]]:
    """All devices in the order of their PCI addresses, and the newest CUDA that the driver runs. Raises NoNvml."""
    library = _opened()
    try:
        count, version = ctypes.c_uint(), ctypes.c_int()
        library.nvmlDeviceGetCount_v2(ctypes.byref(count))
        library.nvmlSystemGetCudaDriverVersion_v2(ctypes.byref(version))
        cards = [_card(library, index) for index in range(count.value)]
        return cards, (version.value // 1000, version.value % 1000 // 10)
    finally:
        library.nvmlShutdown()


def driver_version() -> str:
    """The version of the loaded driver, like 580.95.05. Raises NoNvml."""
    library = _opened()
    try:
        version = ctypes.create_string_buffer(_TEXT)
        library.nvmlSystemGetDriverVersion(version, _TEXT)
        return version.value.decode()
    finally:
        library.nvmlShutdown()


def _opened() -> ctypes.CDLL:
    try:
        library = ctypes.CDLL(LIBRARY)
    except OSError as error:
        raise NoNvml(f"the driver's library {LIBRARY} does not load: {error}") from error
    if code := library.nvmlInit_v2():
        raise NoNvml(_REASONS.get(code, f"nvmlInit failed with {code}"))
    return library


def _card(library: ctypes.CDLL, index: int) -> Card:
    handle, name, uuid = ctypes.c_void_p(), ctypes.create_string_buffer(_TEXT), ctypes.create_string_buffer(_TEXT)
    major, minor, memory = ctypes.c_int(), ctypes.c_int(), _MemoryInfo()
    if code := library.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(handle)):
        raise NoNvml(_REASONS.get(code, f"device {index} answers with {code}"))
    library.nvmlDeviceGetName(handle, name, _TEXT)
    library.nvmlDeviceGetUUID(handle, uuid, _TEXT)
    library.nvmlDeviceGetCudaComputeCapability(handle, ctypes.byref(major), ctypes.byref(minor))
    library.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(memory))
    return Card(name.value.decode(), uuid.value.decode(), (major.value, minor.value), memory.total)
