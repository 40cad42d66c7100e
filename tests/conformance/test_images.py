"""Images in the suite: its items, recordings with them, and which sessions are tested with them."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path

import pytest
from click.testing import CliRunner
from tgi_conformance.baseline import Alone
from tgi_conformance.calls import Call, Encode, Prefill, decode, encode
from tgi_conformance.clause_run import run_clause
from tgi_conformance.clauses import CLAUSES
from tgi_conformance.clauses.media import unfit
from tgi_conformance.cli import main
from tgi_conformance.golden import Golden, image_names
from tgi_conformance.image_rules import ImageRules, ItemForm, read_form
from tgi_conformance.mutants import TWINS
from tgi_conformance.verdict import Verdict

from tgi_core.backend import Request
from tgi_core.media.features import ImageFeatures

GOLDEN = [Golden.load(name) for kind in ("none", "cpu") for name in image_names(kind)]
MEDIA = [clause for clause in CLAUSES if clause.topic == "media"]


@pytest.mark.parametrize("golden", GOLDEN, ids=lambda golden: golden.name)
def test_two_readers_agree(golden: Golden) -> None:
    """The suite's own reader of items and the core's take the same ones, with the same tensors, and refuse the same damaged ones."""
    items = list(golden.images.values())
    form = read_form(items[0])
    assert form is not None and form == ItemForm(9, form.tensors)
    for item in items:
        tensors = ImageFeatures.from_bytes(item).tensors
        assert read_form(item) == form
        assert {(name, shape) for name, _, shape in form.tensors} == {(name, each.shape) for name, each in tensors.items()}
    *damaged, smaller, shorter = unfit(ImageRules(golden.placeholder or 0, form, False), items[0])
    for item in damaged:
        assert read_form(item) is None
        with pytest.raises(ValueError, match="image's features"):
            ImageFeatures.from_bytes(item)
    assert ImageFeatures.from_bytes(shorter).tokens == 8 and ImageFeatures.from_bytes(smaller).tokens == 9
    assert form != read_form(smaller) != read_form(shorter) != form


@pytest.mark.parametrize("golden", GOLDEN, ids=lambda golden: golden.name)
def test_images_matter(golden: Golden) -> None:
    """No two prompts that differ in their images alone have one answer."""
    answers = {(case.prompt, case.media): case.tokens for case in golden.cases}
    assert len(set(answers.values())) == len(answers) == len(golden.cases)
    assert all(case.prompt.count(golden.placeholder or 0) == 9 * len(case.media) for case in golden.cases)
    assert golden.placeholder == next(case for case in golden.cases if case.id == "answered").tokens[0]


@pytest.mark.parametrize("call", [Encode(b"\0\xff"), Prefill((Request(1, (2,), 1, 0, ((1,),), 1, media=(b"\0\xff", b"")),))])
def test_recordings_have_images(call: Call) -> None:
    """Items are bytes, which JSON has not."""
    assert decode(json.loads(json.dumps(encode(3, call)))) == (3, call)


@pytest.mark.parametrize(("name", "clause"), [("encode-takes-all", "media.encode"), ("images-reversed", "media.order")])
def test_a_failure_and_its_replay(name: str, clause: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A recording shows the failure again, and on a sound session none."""
    monkeypatch.chdir(tmp_path)
    assert CliRunner().invoke(main, ["run", "--backend", f"mutant:{name}", "--only", clause]).exit_code == 1
    recording = str(tmp_path / "conformance-failures" / f"{clause}.jsonl")
    again = CliRunner().invoke(main, ["replay", recording])
    assert again.exit_code == 1 and "FAIL" in again.output
    sound = CliRunner().invoke(main, ["replay", recording, "--backend", "mutant:images"])
    assert sound.exit_code == 0, sound.output


def test_images_of_a_model_that_the_suite_does_not_have() -> None:
    """Who takes images only for a model of their own has not been tested; who takes none is not asked for more than a refusal."""
    own = TWINS["images"].target().on(Golden.load("toy-images").model)
    with closing(Alone(own)) as alone:
        alone.__dict__["seeing"] = ()
        assert {run_clause(clause, own, alone).verdict for clause in MEDIA} == {Verdict.INCONCLUSIVE}
    none = TWINS["synchronous"].target()
    with closing(Alone(none)) as alone:
        results = [run_clause(clause, none, alone) for clause in MEDIA]
    assert {(result.verdict, result.message) for result in results} == {
        (Verdict.UNSUPPORTED, "does not declare media, and refuses it")
    }
