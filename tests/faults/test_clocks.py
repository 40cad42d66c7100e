"""Clocks that jump: nothing that waits, times out or measures reads the wall clock."""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCES = [*(ROOT / "tgi_core").rglob("*.py"), *(ROOT / "router").rglob("*.py"), *(ROOT / "backends").rglob("*.py")]

WALL = {
    "time.time",
    "time.time_ns",
    "time.localtime",
    "time.gmtime",
    "time.ctime",
    "datetime.now",
    "datetime.utcnow",
    "date.today",
}
MEANT = {
    "router/tgi_router/metrics.py": 1,  # since when adapters are loaded, as vLLM says it
    "router/tgi_router/openai.py": 1,  # `created`
    "router/tgi_router/responses_events.py": 2,  # `created_at`, `completed_at`
    "router/tgi_router/template_child.py": 1,  # `strftime_now` of chat templates
    "tgi_core/benchmark/result.py": 1,  # when a run began
    "tgi_core/telemetry/traces.py": 1,  # where the monotonic clock stands among wall-clock times
}
"""How often a file may say what time it is, since a person or a client is told."""


def wall_clock_readings(path: Path) -> int:
    """Uses of a name that reads the wall clock, however it was imported."""
    tree, names = ast.parse(path.read_text(encoding="utf-8")), set[str]()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module in ("time", "datetime"):
            names |= {alias.asname or alias.name for alias in node.names if f"{node.module}.{alias.name}" in WALL}
    found = 0
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            found += any(ast.unparse(node).endswith(name) for name in WALL)
        elif isinstance(node, ast.Name):
            found += node.id in names
    return found


def test_the_wall_clock_is_read_only_to_tell_the_time() -> None:
    """Whoever adds one says here that it is meant: timeouts and durations take `time.monotonic`, `perf_counter` or the loop's clock."""
    assert len(SOURCES) > 150
    found = {str(path.relative_to(ROOT)): wall_clock_readings(path) for path in SOURCES}
    assert {name: count for name, count in found.items() if count} == MEANT


def test_it_would_be_found(tmp_path: Path) -> None:
    """The search knows the ways to import it."""
    for text in ("import time\ntime.time()", "from time import time as now\nnow()", "import datetime\ndatetime.datetime.now()"):
        (tmp_path / "x.py").write_text(text)
        assert wall_clock_readings(tmp_path / "x.py") >= 1, text
    (tmp_path / "x.py").write_text("import time\ntime.monotonic()")
    assert wall_clock_readings(tmp_path / "x.py") == 0
