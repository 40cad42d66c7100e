"""Run one clause: its scenario, what stops it, and the shortest sequence that shows a failure."""

from __future__ import annotations

import time
import traceback
from dataclasses import asdict
from typing import Any

from tgi_conformance import __version__
from tgi_conformance.baseline import Alone
from tgi_conformance.calls import Trace, encode, sentence
from tgi_conformance.clause import Clause
from tgi_conformance.features import missing
from tgi_conformance.result import Result
from tgi_conformance.scenario import Scene
from tgi_conformance.session_setup import Setup
from tgi_conformance.shrink import shortest
from tgi_conformance.target import Target
from tgi_conformance.verdict import DoesNotApply, NotReached, Verdict, Violation
from tgi_core.backend import BackendError


def run_clause(
    clause: Clause, target: Target, alone: Alone, seed: int = 0, effort: float = 1.0, *, shorten: bool = True
) -> Result:
    """Run a clause on a backend; never raises for a mistake of either. `shorten` shrinks a failing sequence, which takes time."""
    begun = time.perf_counter()
    scene = Scene(target, alone, seed, effort, shorten)
    result = _tried(clause, scene)
    if result.verdict is Verdict.FAIL and scene.culprit is not None and scene.culprit.used:
        result, scene = _again(clause, Scene(target, alone, seed, effort, shorten, fresh=True), result)
    return Result(
        clause.id,
        result.verdict,
        result.message,
        time.perf_counter() - begun,
        dict(sorted(scene.situations.items())),
        scene.figures,
        result.sequence,
        result.failure,
    )


def _again(clause: Clause, scene: Scene, failed: Result) -> tuple[Result, Scene]:
    """Repeat a failure in a fresh session: only there can it be shown and replayed without the calls of earlier clauses."""
    result = _tried(clause, scene)
    if result.verdict not in (Verdict.PASS, Verdict.UNSUPPORTED):
        return result, scene
    why = f"{failed.message} (in a session that other clauses had used and cleared; in a fresh session the clause passes)"
    return failed.become(Verdict.FAIL, why), scene


def _tried(clause: Clause, scene: Scene) -> Result:
    """Run the scenario and drop its session."""
    try:
        return _outcome(clause, scene)
    finally:
        scene.end()


def _outcome(clause: Clause, scene: Scene) -> Result:
    try:
        if absent := missing(scene, clause.needs):
            for extension in absent:
                if extension.refusal is not None:
                    extension.refusal(scene)
            scene.leave()
            names = "; ".join(item.name + (f" ({item.why})" if item.why else ", and refuses it") for item in absent)
            return Result(clause.id, Verdict.UNSUPPORTED, f"does not declare {names}")
        if clause.rows > 1 and (room := scene.declared[1].max_rows) < clause.rows:
            return Result(clause.id, Verdict.UNSUPPORTED, f"needs {clause.rows} rows at a time, but max_rows is {room}")
        _check(clause, scene)
    except Violation as violation:
        return _failed(clause, scene, violation)
    except DoesNotApply as reason:
        return Result(clause.id, Verdict.UNSUPPORTED, str(reason))
    except NotReached as reason:
        return Result(clause.id, Verdict.INCONCLUSIVE, str(reason))
    except BackendError as error:
        return Result(clause.id, Verdict.FAIL, f"{type(error).__name__}: {error}", sequence=_told(scene))
    except Exception as error:  # noqa: BLE001  the suite's own mistake, or a session hook called outside its wrapper
        return Result(clause.id, Verdict.ERROR, _where(error), sequence=_told(scene))
    unreached = [name for name in clause.situations if not scene.situations[name]]
    if unreached:
        return Result(clause.id, Verdict.INCONCLUSIVE, f"never reached: {', '.join(unreached)}")
    return Result(clause.id, Verdict.PASS)


def _check(clause: Clause, scene: Scene) -> None:
    """Run the scenario. If it stops early, wrong rows take precedence over the reason why it stopped."""
    try:
        clause.check(scene)
    except (Violation, DoesNotApply, NotReached):
        scene.settle()
        raise
    scene.leave()


def _where(error: Exception) -> str:
    """Describe an exception and its location in one line."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {error} ({last.filename.rpartition('/')[2]}:{last.lineno})"


def _told(scene: Scene) -> tuple[str, ...]:
    play = scene.culprit
    return tuple(sentence(number, call) for number, call in play.trace) if play else ()


def _failed(clause: Clause, scene: Scene, violation: Violation) -> Result:
    """Return a failure with the shortest sequence, if the oracle can judge it from the calls alone."""
    play = scene.culprit
    if play is None:
        return Result(clause.id, Verdict.FAIL, str(violation))
    trace, message = play.trace, str(violation)
    judged = play.failed is not None
    scene.end()
    if play.failed is not None and scene.shorten:
        trace, message = shortest(scene.target, play.setup, scene.alone, play.trace, play.failed)
    lines = (_header(clause, scene, play.setup, message, judged), *(encode(number, call) for number, call in trace))
    return Result(clause.id, Verdict.FAIL, message, sequence=told(trace), failure=lines)


def told(trace: Trace) -> tuple[str, ...]:
    """Describe a trace in sentences."""
    return tuple(sentence(number, call) for number, call in trace)


def _header(clause: Clause, scene: Scene, setup: Setup, message: str, judged: bool) -> dict[str, Any]:
    """Return the first line of a recording. Failures that are not `judged` only show when the whole clause runs again."""
    return {
        "suite": __version__,
        "clause": clause.id,
        "sentence": clause.sentence,
        "backend": scene.target.name,
        "dtype": scene.target.dtype,
        "seed": scene.seed,
        "effort": scene.effort,
        "judged": judged,
        "message": message,
        "setup": asdict(setup) | ({"plan": _plan(setup)} if setup.plan else {}),
    }


def _plan(setup: Setup) -> dict[str, Any]:
    plan = asdict(setup.plan) if setup.plan else {}
    return plan | {"features": sorted(feature.value for feature in plan.get("features", ()))}
