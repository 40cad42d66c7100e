"""Two machines, as network namespaces with a cable between them. Needs no root where users may have namespaces."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import pytest

ADDRESSES = ("10.77.0.1", "10.77.0.2")
_HOLD = ("sh", "-c", "echo up; exec cat")
"""Keeps a namespace until its standard input is closed."""


@dataclass(frozen=True, slots=True)
class Node:
    """A machine with one address besides the loopback's."""

    address: str
    holder: int
    """Process that keeps the namespace."""

    def command(self, *arguments: str) -> list[str]:
        """A command that runs there."""
        return ["nsenter", "--preserve-credentials", "-U", "-n", "-t", str(self.holder), *arguments]

    def set_up(self, *arguments: str) -> None:
        """Change the network with `ip`. Skips the test if that is not allowed."""
        done = subprocess.run(self.command("ip", *arguments), capture_output=True, text=True, check=False, timeout=30)
        if done.returncode:
            pytest.skip(f"no network namespaces here: {done.stderr.strip()}")


@contextmanager
def two_nodes() -> Generator[tuple[Node, Node], None, None]:
    """Two connected machines. Skips the test where there are no network namespaces."""
    if missing := [tool for tool in ("unshare", "nsenter", "ip") if shutil.which(tool) is None]:
        pytest.skip(f"this machine has no {missing[0]}")
    with ExitStack() as stack:
        first = Node(ADDRESSES[0], _hold(["unshare", "-rn", *_HOLD], stack))
        second = Node(ADDRESSES[1], _hold(first.command("unshare", "-n", *_HOLD), stack))
        first.set_up("link", "add", "name", "cable", "type", "veth", "peer", "name", "cable", "netns", str(second.holder))
        for node in (first, second):
            node.set_up("address", "add", f"{node.address}/24", "dev", "cable")
            for interface in ("lo", "cable"):
                node.set_up("link", "set", interface, "up")
        yield first, second


def _hold(command: list[str], stack: ExitStack) -> int:
    holder = stack.enter_context(
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    )
    assert holder.stdout is not None and holder.stderr is not None
    if holder.stdout.readline() != "up\n":
        pytest.skip(f"no network namespaces here: {holder.stderr.read().strip()}")
    return holder.pid
