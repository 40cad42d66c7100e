"""Import and probe a plugin in a child process, which contains its imports, hangs and crashes.

`python -m tgi_conformance.child MODULE` prints one JSON object per stage to standard output.
"""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from dataclasses import asdict, dataclass, field
from typing import Any

from tgi_core.workers.command import python, same_imports

TIME_LIMIT_S = 30.0


@dataclass(frozen=True, slots=True)
class ImportReport:
    """What the child process saw. `imported` lists the top-level modules added by importing the plugin, `probing` those added by its
    probe; `trouble` says what went wrong, or is "".
    """

    imported: tuple[str, ...] = ()
    probing: tuple[str, ...] = ()
    probe: dict[str, Any] = field(default_factory=dict)
    trouble: str = ""


def probe_in_child(module: str, time_limit_s: float = TIME_LIMIT_S) -> ImportReport:
    """Import and probe a plugin in a child process."""
    command = python("tgi_conformance.child", module)
    try:
        child = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=time_limit_s,
            stdin=subprocess.DEVNULL,
            env=same_imports(),
            check=False,
        )
    except subprocess.TimeoutExpired as expired:
        output = expired.stdout.decode() if isinstance(expired.stdout, bytes) else expired.stdout or ""
        return _seen(
            output, f"it took more than {time_limit_s:g} s (the limit is {TIME_LIMIT_S:g} s, or --time-limit if that is less)"
        )
    last = (child.stderr.strip().splitlines() or [f"exit status {child.returncode}"])[-1]
    return _seen(child.stdout, last if child.returncode else "")


def _seen(output: str, trouble: str) -> ImportReport:
    stages: dict[str, Any] = {}
    for line in output.splitlines():
        if line.startswith('{"stage"'):
            value = json.loads(line)
            stages[value["stage"]] = value
    imported = stages.get("import", {}).get("modules", ())
    probed = stages.get("probe", {})
    return ImportReport(tuple(imported), tuple(probed.get("modules", ())), probed.get("result", {}), trouble)


def _top_level() -> set[str]:
    return {name.partition(".")[0] for name in sys.modules}


def main(module: str) -> None:
    """Run the stages in the child process."""
    before = _top_level()
    plugin = importlib.import_module(module)
    imported = _top_level()
    print(json.dumps({"stage": "import", "modules": sorted(imported - before)}), flush=True)
    found = plugin.backend_probe()
    if not hasattr(found, "status"):
        result: dict[str, Any] = {"wrong": type(found).__name__}
    else:
        result = asdict(found) | {"status": getattr(found.status, "value", str(found.status))}
    print(json.dumps({"stage": "probe", "modules": sorted(_top_level() - imported), "result": result}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
