"""What the suite must be itself: independent of what it judges, careful with processes, and light."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import psutil
import pytest
import tgi_conformance
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tgi_conformance import reference_sampling
from tgi_conformance.child import probe_in_child
from tgi_conformance.clause import clause
from tgi_conformance.clauses import CLAUSES
from tgi_conformance.fields import using
from tgi_conformance.golden import Golden, image_names, names, toy
from tgi_conformance.result import Result
from tgi_conformance.verdict import Level, Verdict
from tgi_conformance.worker import Settings, Worker

from tgi_core.backend import SAMPLING, Sampling, SamplingSpec, reference, sampling

ROOT = Path(tgi_conformance.__file__).parent
JUDGED = (
    "tgi_core.backend.drawing",
    "tgi_core.backend.batch_tracker",
    "tgi_core.backend.reference",
    "tgi_core.backend.sampling",
    "tgi_core.backend.masking",
    "tgi_core.engine",
)

logits = st.dictionaries(st.integers(0, 40), st.floats(-8, 8), min_size=2, max_size=20)


def test_the_oracle_shares_no_code_with_what_it_judges() -> None:
    """But for mutants, written and generated, and the kit, no module imports the tracker, the reference backend, the formula or the
    engine."""
    for path in ROOT.rglob("*.py"):
        if path.relative_to(ROOT).parts[0] in ("mutants", "generated", "kit"):
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            found = [item.name for item in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom):
                found = [f"{node.module}.{item.name}" for item in node.names]
            assert not [name for name in found if name.startswith(JUDGED)], path


def test_no_torch() -> None:
    """A run over a backend without torch needs none."""
    code = "import sys, tgi_conformance.clauses, tgi_conformance.machine, tgi_conformance.cli.run; print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"


def test_wheel_is_small() -> None:
    """All golden checkpoints together stay under a megabyte and a half."""
    assert sum(path.stat().st_size for path in ROOT.joinpath("golden", "models").rglob("*")) < 1.5 * 2**20
    assert {Golden.load(name).name for name in (*names("cpu"), *names("none"))} == {"llama", "gpt2", "gemma2", "toy"}
    assert (*image_names("cpu"), *image_names("none")) == ("gemma3", "llava", "toy-images")


def test_ids_are_unique_and_sentences_are_sentences() -> None:
    """A clause's id is part of the suite's surface."""
    with pytest.raises(ValueError, match="two clauses"):
        clause(CLAUSES[0].id, "Again.", Level.L0)(CLAUSES[0].check)
    assert all(item.sentence[0].isupper() and item.sentence.endswith(".") for item in CLAUSES)


@settings(deadline=None)
@example({0: -1.4e-217, 1: 0.0}, 0, 0.25, 1.0, 0.0, 1.0, 0, 0)
@given(
    logits,
    st.integers(0, 6),
    st.floats(0.05, 1.0),
    st.floats(0.05, 1.0),
    st.sampled_from([0.0, 0.0, 0.01, 0.3, 1.0]),
    st.floats(0.2, 3.0),
    st.integers(0, 2**64 - 1),
    st.integers(0, 99),
)
def test_two_writings_of_the_formula_agree(
    values: dict[int, float],
    top_k: int,
    top_p: float,
    typical_p: float,
    min_p: float,
    temperature: float,
    seed: int,
    position: int,
) -> None:
    """The suite's own formula and the core's choose the same token, wherever rounding cannot decide."""
    how = Sampling(True, temperature, top_k, top_p, typical_p, 1.3, 0.4, 0.2, ((3, 1.0),), seed, min_p)
    history = (3, 5, 7, 3, 9)
    drawn = reference_sampling.draw(reference_sampling.penalized(values, how, history, 2), how, position)
    logprobs = sampling.distribution(values, how, history, 2)
    if drawn.sure:
        assert sampling.choose(logprobs, how, position) == drawn.token
    assert reference_sampling.fraction(seed, position) == sampling.uniform(seed, position)


@pytest.mark.parametrize("spec", SAMPLING, ids=lambda spec: spec.name)
def test_both_writings_have_every_field(spec: SamplingSpec) -> None:
    """Each value that is tried makes the same distribution in both."""
    values = {token: 2.0 - 0.37 * token for token in range(12)}
    for value in spec.tried:
        how = using(spec, value)
        scores = reference_sampling.penalized(values, how, (3, 5, 7), 2)
        found = reference_sampling.filtered(scores, how) if how.do_sample else reference_sampling.logprobs(scores)
        assert found == pytest.approx(sampling.distribution(values, how, (3, 5, 7), 2))


@settings(deadline=None)
@given(st.lists(st.integers(0, 23), min_size=1, max_size=30))
def test_two_writings_of_the_toy_agree(tokens: list[int]) -> None:
    """The golden toy is the reference backend's model."""
    states: list[int] = []
    for position, token in enumerate(tokens):
        before, far = (states[position - 1], states[position // 2]) if position else (0, 0)
        states.append(reference.mix(before ^ reference.mix(far ^ token)))
    assert toy.scores(tokens, 24) == [reference.toy_logits(state, 24) for state in states]


def test_a_plugin_that_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Is left after a time limit, with what it had shown until then."""
    (tmp_path / "hangs.py").write_text("import time\ndef backend_probe(): time.sleep(600)\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path) + os.pathsep + os.environ.get("PYTHONPATH", ""))
    seen = probe_in_child("hangs", 4.0)
    assert "took more than" in seen.trouble and not seen.probe


def test_a_clause_that_hangs_or_crashes_takes_nothing_with_it() -> None:
    """Its process is ended and another one goes on."""
    by_id = {item.id: item for item in CLAUSES}
    before = set(psutil.Process().children())
    with closing(Worker(Settings("reference"), 60.0)) as worker:
        assert worker(by_id["open.first-step"]).verdict is Verdict.PASS
        [child] = set(psutil.Process().children()) - before
        child.kill()
        lost = worker(by_id["open.stats"])
        assert lost.verdict is Verdict.FAIL and "signal 9" in lost.message
        assert worker(by_id["open.stats"]).verdict is Verdict.PASS
    with closing(Worker(Settings("reference"), 0.001)) as hasty:
        slow = hasty(by_id["machine.laws"])
        assert slow.verdict is Verdict.FAIL and "took more than" in slow.message and "--time-limit" in slow.message


def test_results_go_through_json() -> None:
    """From the worker's process to this one."""
    result = Result("a.a", Verdict.KNOWN, "m", 1.5, {"x": 1}, {"y": 2.0}, ("one",), ({"two": 2},))
    assert Result.from_json(result.as_json()) == result
