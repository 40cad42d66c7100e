"""Plugin probing in a child process, so that device detection can neither hang nor crash this one.

The child is `python -m tgi_core.backend.probe NAME`; it prints one JSON object as the last line of its standard output.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import asdict

from tgi_core.backend.registry import Plugin, PluginStatus, find
from tgi_core.backend.types import Probe, ProbeStatus
from tgi_core.workers.command import python

TIME_LIMIT_S = 20.0


def probe(plugin: Plugin, time_limit_s: float = TIME_LIMIT_S) -> Probe:
    """Probe a plugin; one that fails to load, hangs or crashes is BROKEN."""
    return collect(start(plugin), plugin, time_limit_s)


def probe_all(plugins: Iterable[Plugin], time_limit_s: float = TIME_LIMIT_S) -> list[tuple[Plugin, Probe]]:
    """Probe plugins concurrently."""
    started = [(plugin, start(plugin)) for plugin in plugins]
    return [(plugin, collect(child, plugin, time_limit_s)) for plugin, child in started]


def start(plugin: Plugin) -> subprocess.Popen[str] | None:
    """Start the child process, or return None for a plugin that did not load."""
    if plugin.status is not PluginStatus.OK:
        return None
    command = python("tgi_core.backend.probe", plugin.name)
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True)


def collect(child: subprocess.Popen[str] | None, plugin: Plugin, time_limit_s: float) -> Probe:
    """Wait for a child and return its result."""
    if child is None:
        return Probe(ProbeStatus.BROKEN, reason=plugin.reason)
    try:
        output, errors = child.communicate(timeout=time_limit_s)
    except subprocess.TimeoutExpired:
        child.kill()
        child.communicate()
        return Probe(ProbeStatus.BROKEN, reason=f"the probe took more than {time_limit_s:.0f} s")
    if child.returncode:
        last = (errors.strip().splitlines() or [f"exit status {child.returncode}"])[-1]
        return Probe(ProbeStatus.BROKEN, reason=f"the probe failed: {last}")
    return decode(output.strip().splitlines()[-1])


def encode(found: Probe) -> str:
    """Encode a probe as one line of JSON."""
    return json.dumps(asdict(found) | {"status": found.status.value})


def decode(line: str) -> Probe:
    """Decode a line written by `encode`."""
    value = json.loads(line)
    return Probe(
        ProbeStatus(value["status"]), tuple(value["devices"]), value["reason"], value["hint"], value["verified_on_hardware"]
    )


if __name__ == "__main__":
    print(encode(find(sys.argv[1]).hooks.backend_probe()))
