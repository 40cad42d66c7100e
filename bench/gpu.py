"""Correctness and speed of the CUDA backend on one device, in at most nine minutes.

    python bench/gpu.py [--out FILE] [--minutes 9] [--only SECTION …] [--folder FOLDER] [--wheels FOLDER] [--logs FOLDER]
    python bench/gpu.py --first-day              what must hold on a device that nothing of ours has run on, then speed
    python bench/gpu.py --device cpu --small     the same code on the CPU backend, with tiny problems

It needs Python with torch and its friends. What is not installed of this repository is installed into a temporary folder from the wheels
that `make wheels` has built (into dist/). Each section runs in a process group of its own with the remaining time. A section that fails,
is killed or has no time left is reported as not run, with the reason. Models have real shapes and random weights (16 GB for the largest, in
FOLDER); nothing is downloaded. The results are printed as a table, and after each section written with date and versions to FILE as JSON.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import FrameType
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from bench.gpu_parts.children import run_group  # noqa: E402
from bench.gpu_parts.installing import install  # noqa: E402

PACKAGES = (
    "tgi-core",
    "tgi-backend-cuda",
    "tgi-backend-cpu",
    "torch",
    "triton",
    "transformers",
    "flash-attn",
    "flashinfer-python",
)


@dataclass(frozen=True, slots=True)
class Section:
    """A part of the run. `needs` is the minimum remaining time to start it, `most` its time limit, both in seconds."""

    name: str
    needs: int
    most: int


SECTIONS = (
    Section("conformance L1", 30, 90),
    Section("kernels", 15, 40),
    Section("attention", 15, 35),
    Section("qwen3-0.6b", 25, 65),
    Section("ablations", 30, 50),
    Section("http", 40, 65),
    Section("transformers qwen3-0.6b", 25, 40),
    Section("llama-3.1-8b", 60, 80),
    Section("transformers llama-3.1-8b", 40, 45),
)
FIRST_DAY = (
    Section("ceilings", 10, 15),
    Section("self-checks", 20, 60),
    Section("random steps", 20, 65),
    Section("openings", 10, 30),
    Section("recovery", 15, 30),
    Section("far offsets", 10, 25),
    Section("conformance L3", 60, 115),
    Section("batches llama-3.1-8b", 45, 70),
    Section("sampled qwen3-0.6b", 25, 40),
    Section("sanitizer", 30, 60),
)
MINUTES = 9.0
"""For all sections, with their ends and what lies between them."""


def main() -> int:
    """The command line."""
    options = _options()
    if options.section:
        return _child(options)
    deadline = time.time() + options.minutes * 60
    with tempfile.TemporaryDirectory() as scratch:
        packages = ("tgi-core", f"tgi-backend-{options.device}", "tgi-conformance")
        reason = install(packages, options.wheels, Path(scratch) / "packages") or _missing(options.device)
        if reason:
            print(f"bench/gpu.py: {reason}", file=sys.stderr)
            return 1
        signal.signal(signal.SIGTERM, _stop)
        folder = options.folder or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        _run_all(options, folder, deadline)
    print(f"written to {options.out}")
    return 0


def _stop(number: int, frame: FrameType | None) -> None:
    """End the section that runs, and this process."""
    sys.exit(128 + number)


def _run_all(options: argparse.Namespace, folder: Path, deadline: float) -> None:
    """Run all sections, and write what is known after each."""
    found: dict[str, Any] = {}
    document = {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        **_versions(options),
        "sections": found,
    }
    for section in FIRST_DAY if options.first_day else SECTIONS:
        if not options.only or section.name in options.only:
            found[section.name] = _run(section, options, folder, deadline)
            print(_table(section.name, found[section.name]), flush=True)
            # Written anew and moved, so that a run that is killed leaves whole results.
            made = options.out.with_suffix(".part")
            made.write_text(json.dumps(document, indent=1) + "\n")
            made.replace(options.out)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--small", action="store_true", help="run tiny problems to test the script")
    parser.add_argument("--minutes", type=float, default=MINUTES, help="time limit for all sections together")
    parser.add_argument("--wheels", type=Path, default=ROOT / "dist", help="directory with this repository's wheels")
    names = sorted({section.name for section in (*SECTIONS, *FIRST_DAY)})
    parser.add_argument("--first-day", action="store_true", help="run the sections for a device that nothing of ours has run on")
    parser.add_argument("--only", nargs="+", choices=names, help="run only these sections")
    parser.add_argument("--out", type=Path, default=Path("gpu-bench.json"))
    parser.add_argument("--folder", type=Path, help="directory for models; default: a temporary one")
    parser.add_argument("--logs", type=Path, help="directory for what each section printed")
    parser.add_argument("--section", help=argparse.SUPPRESS)
    parser.add_argument("--deadline", type=float, help=argparse.SUPPRESS)
    return parser.parse_args()


def _missing(device: str) -> str:
    """Why nothing can be measured; empty otherwise."""
    from tgi_core.backend.probe import probe
    from tgi_core.backend.registry import find
    from tgi_core.errors import StartupError

    try:
        answer = probe(find(device))
    except StartupError as error:
        return str(error)
    return "" if answer.status.value == "ready" else f"{answer.reason}; {answer.hint}"


def _run(section: Section, options: argparse.Namespace, folder: Path, deadline: float) -> dict[str, Any]:
    """Run a section in a child process and return its status, duration and figures."""
    left = deadline - time.time()
    if left < (1 if options.small else section.needs):
        return {"status": "not run", "reason": f"{left:.0f} s were left, it needs {section.needs}"}
    limit = left if options.small else min(left, section.most)
    out = folder / "section.json"
    out.unlink(missing_ok=True)
    command = [sys.executable, __file__, "--section", section.name, "--device", options.device, "--out", str(out)]
    command += ["--folder", str(folder), "--deadline", str(time.time() + limit), *(["--small"] if options.small else [])]
    started = time.monotonic()
    with tempfile.TemporaryFile("w+") as log:
        reason = run_group(command, log, limit)
        taken = round(time.monotonic() - started, 1)
        log.seek(0)
        printed = log.read()
        if options.logs:
            options.logs.mkdir(parents=True, exist_ok=True)
            (options.logs / f"{section.name.replace(' ', '-')}.log").write_text(printed)
        if out.exists():
            return {**json.loads(out.read_text()), "seconds": taken}
        said = [line for line in printed.splitlines() if line.strip()]
    return {"status": "not run", "reason": f"{reason}: {said[-1][:300] if said else 'it said nothing'}", "seconds": taken}


def _child(options: argparse.Namespace) -> int:
    """Run one section in this process and write its findings to a file."""
    from bench.gpu_parts.place import Figures, Place

    place = Place(options.device, options.small, options.folder, options.deadline)
    figures: Figures = _work(options.section)(place)
    if reason := figures.pop("not run", ""):
        answer: dict[str, Any] = {"status": "not run", "reason": reason}
    else:
        answer = {"status": "done", "figures": figures}
    made = options.out.with_suffix(".part")
    made.write_text(json.dumps(answer))
    made.replace(options.out)
    return 0


def _work(name: str) -> Callable[[Any], Any]:
    """Return the function that runs a section."""
    from bench.gpu_parts import conformance, engines, http, kernels, random_steps, recovery, self_checks

    kind, _, last = name.rpartition(" ")
    of_kind = {
        "transformers": engines.transformers,
        "batches": engines.batches,
        "sampled": engines.sampled,
        "conformance": conformance.granted,
    }
    if kind in of_kind:
        return lambda place: of_kind[kind](place, last)
    simple = {
        "ceilings": self_checks.ceilings,
        "self-checks": self_checks.all_kernels,
        "far offsets": self_checks.far_offsets,
        "random steps": random_steps.equal_tokens,
        "openings": engines.openings,
        "recovery": recovery.recovery,
        "sanitizer": recovery.sanitizer,
        "kernels": kernels.check,
        "attention": kernels.speed,
        "ablations": engines.ablations,
        "http": http.through_http,
    }
    return simple.get(name) or (lambda place: engines.throughput(place, name))


def _versions(options: argparse.Namespace) -> dict[str, Any]:
    """Results with machine and versions."""
    from tgi_core.backend.probe import probe
    from tgi_core.backend.registry import find

    found = {}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "not installed"
    devices = probe(find(options.device)).devices
    machine = {"python": platform.python_version(), "system": platform.platform(), "cores": os.cpu_count()}
    return {"devices": devices, "small": options.small, "machine": machine, "versions": found}


def _table(name: str, found: dict[str, Any]) -> str:
    head = f"{name}: {found['status']}, {found.get('seconds', 0)} s"
    if found["status"] != "done":
        return f"{head}\n    {found['reason']}"
    return "\n".join([head, *(f"    {label:60} {_shown(value)}" for label, value in found["figures"].items())])


def _shown(value: float | str | Sequence[str]) -> str:
    return f"{value:,.4g}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    sys.exit(main())
