"""Information about devices from the system's files: those of kernel drivers, and of processes that have a device open. Does not import
torch."""

from __future__ import annotations

from pathlib import Path


def read_text(file: Path) -> str:
    """The contents of a driver's file, stripped; empty if it is missing or cannot be read."""
    try:
        return file.read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return ""


def read_hex(file: Path) -> int:
    """A number in a file, such as a vendor's on the PCI bus; 0 if there is none."""
    try:
        return int(read_text(file), 16)
    except ValueError:
        return 0


def holder(node: str, root: Path) -> tuple[int, str] | None:
    """The process that has a device node open, and its command, as far as this user can see; None if there is none."""
    for link in (root / "proc").glob("[0-9]*/fd/*"):
        try:
            if str(link.readlink()) == node:
                return int(link.parts[-3]), read_text(link.parents[1] / "comm")
        except OSError:  # the process or its file is gone, or is another user's
            continue
    return None
