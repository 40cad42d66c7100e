"""`python -m mutation [MODULE …]`: change the reference backend's source in one place at a time and run the suite on it.

Each mutant runs in a forked process until a clause fails. A survivor is excused only if equivalent.toml lists it with the reason
why nothing that the contract promises has changed. The exit status is 1 if less than nine in ten of the others are killed.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import multiprocessing
import sys
import time
import tomllib
import types
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.abc import InspectLoader
from multiprocessing.connection import Connection
from pathlib import Path

from tgi_conformance.baseline import Alone
from tgi_conformance.clause_run import run_clause
from tgi_conformance.clauses import CLAUSES
from tgi_conformance.golden import default_model
from tgi_conformance.machine import Verbs
from tgi_conformance.target import Target
from tgi_conformance.verdict import Level, Verdict

from mutation.mutating import Mutation, mutations
from tgi_core.backend import OpenOptions
from tgi_core.backend import reference as _preloaded

REFERENCE = "tgi_core.backend.reference"
MODULES = (REFERENCE, "tgi_core.backend.batch_tracker", "tgi_core.backend.sampling", "tgi_core.backend.masking")
OUTSIDE = ("backend_manifest", "backend_probe")
"""Functions that L0 tests in a child process, which cannot see a changed module; the package mutants cover them."""

SECONDS = 60.0
LEAST = 0.9
LOADED = (Verbs, _preloaded)
"""Imported before the fork, so that each child starts fast."""


@dataclass(frozen=True, slots=True)
class MutationOutcome:
    """A mutant's outcome: the clause that killed it, or why it survived."""

    mutation: Mutation
    killer: str
    verdict: str


def target() -> Target:
    """Return the reference backend as it currently is in this process."""
    module = sys.modules[REFERENCE]

    def open_session(options: OpenOptions) -> object:
        return module.backend_open(options)

    return Target("reference", open_session, default_model("none"))


class ChangedSource(InspectLoader):
    """Loads a changed syntax tree as a module."""

    def __init__(self, tree: ast.Module) -> None:
        self._tree = tree

    def get_source(self, fullname: str) -> str:
        """Return the changed source as text."""
        return ast.unparse(self._tree)


def install(name: str, mutation: Mutation) -> None:
    """Install a changed module, and a reference backend that uses it, in place of the real ones."""
    importlib.invalidate_caches()
    path = str(sys.modules[name].__file__)
    module = types.ModuleType(name)
    module.__file__ = path
    sys.modules[name] = module
    parent, _, last = name.rpartition(".")
    setattr(sys.modules[parent], last, module)
    ChangedSource(mutation.tree).exec_module(module)
    if name != REFERENCE:
        importlib.reload(sys.modules[REFERENCE])


def run_suite(name: str, mutation: Mutation, answers: Connection) -> None:
    """Run clauses in the child process until one fails."""
    try:
        install(name, mutation)
        subject = target()
    except Exception as error:  # noqa: BLE001  a module that does not even load is dead
        answers.send(("import", f"{type(error).__name__}: {error}"))
        return
    alone = Alone(subject)
    weak = ""
    chosen = [clause for clause in CLAUSES if clause.level not in (Level.L0, Level.L4)]
    for clause in sorted(chosen, key=lambda item: item.id == "machine.laws"):
        result = run_clause(clause, subject, alone, seed=1)
        if result.verdict is Verdict.FAIL:
            answers.send((clause.id, result.message))
            return
        if result.verdict in (Verdict.ERROR, Verdict.INCONCLUSIVE) and not weak:
            weak = f"{clause.id}: {result.verdict.value}: {result.message}"
    answers.send(("", weak or "survived"))


def fate(name: str, mutation: Mutation) -> MutationOutcome:
    """Run one mutant in a child process."""
    context = multiprocessing.get_context("fork")
    receiving, sending = context.Pipe(duplex=False)
    child = context.Process(target=run_suite, args=(name, mutation, sending))
    child.start()
    sending.close()
    killer, verdict = "time limit", f"more than {SECONDS:.0f} s"
    if receiving.poll(SECONDS):
        try:
            killer, verdict = receiving.recv()
        except EOFError:
            killer, verdict = "crash", "its process ended"
    child.kill()
    child.join()
    return MutationOutcome(mutation, killer, verdict)


def sources() -> dict[str, list[Mutation]]:
    """Return all mutations by module."""
    found = {}
    for name in MODULES:
        module = importlib.import_module(name)
        every = mutations(Path(str(module.__file__)).read_text(encoding="utf-8"))
        found[name] = [mutation for mutation in every if not mutation.place.startswith(OUTSIDE)]
    return found


def equivalent() -> dict[str, str]:
    """Map survivors that change nothing the contract promises to the reason."""
    entries = tomllib.loads(Path(__file__).with_name("equivalent.toml").read_text(encoding="utf-8"))
    return {f"{entry['module']} {entry['change']}": entry["reason"] for entry in entries["equivalent"]}


def main() -> int:
    """Run the mutations, print the outcome, and return the exit status."""
    parser = argparse.ArgumentParser(prog="mutation", description=__doc__)
    parser.add_argument("modules", nargs="*", default=[REFERENCE], help=f"of {', '.join(MODULES)}; all: every one")
    parser.add_argument("--only", default="", help="only mutants whose name contains this text")
    chosen = parser.parse_args()
    names = MODULES if chosen.modules == ["all"] else tuple(chosen.modules)
    known, status, begun = equivalent(), 0, time.monotonic()
    for name in names:
        work = [mutation for mutation in sources()[name] if chosen.only in mutation.name]
        with ThreadPoolExecutor(2) as pool:
            fates = list(pool.map(lambda mutation, name=name: fate(name, mutation), work))
        status |= tell(name, fates, known)
    print(f"{time.monotonic() - begun:.0f} s")
    return status


def tell(name: str, fates: list[MutationOutcome], known: dict[str, str]) -> int:
    """Print one module's outcome; return 1 if too few mutants were killed."""
    alive = [item for item in fates if not item.killer]
    excused = [item for item in alive if f"{name} {item.mutation.name}" in known]
    judged = len(fates) - len(excused)
    killed = len(fates) - len(alive)
    share = killed / judged if judged else 1.0
    print(f"{name}: {killed} of {judged} killed ({share:.1%}), {len(excused)} equivalent")
    for item in alive:
        if item not in excused:
            print(f"  line {item.mutation.line}  {item.mutation.name}  [{item.verdict}]")
    return 0 if share >= LEAST else 1


if __name__ == "__main__":
    sys.exit(main())
