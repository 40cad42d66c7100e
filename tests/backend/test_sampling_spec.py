"""The table of sampling fields: whatever must know a field knows it, or is named here."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest
from tgi_router.bodies import FurtherSampling, Parameters
from tgi_router.openai_bodies import OpenAIBody
from tgi_router.validation import Extras

from tgi_core.backend import API_VERSION, SAMPLING, Request, Sampling, SamplingField, SamplingSpec, SamplingStage
from tgi_core.backend import sampling as formula
from tgi_core.backend.batch_tracker import RowState
from tgi_core.backend.sampling_spec import FILTERS, HOST_ONLY, PENALTIES, needed_fields, newer_fields, without
from tgi_core.engine import sampler
from tgi_core.proto import contract_pb2 as contract
from tgi_core.proto.generate.v3 import generate_pb2 as pb
from tgi_core.proto.sampling import TGI_FIELDS

ROOT = Path(__file__).parents[2]
NAMES = {spec.name for spec in SAMPLING}
LOGITS = {token: 2.0 - 0.37 * token for token in range(12)}
ROW = (3, 1, 4, 1, 5, 9, 2, 6)

every_field = pytest.mark.parametrize("spec", SAMPLING, ids=lambda spec: spec.name)


def sampled_by(spec: SamplingSpec, value: Any) -> Sampling:
    """One field at a value, beside what it needs; what only a drawn row has is drawn."""
    fields: dict[str, Any] = {"do_sample": spec.stage is not SamplingStage.PENALTY, **dict(spec.beside), spec.name: value}
    return Sampling(**fields)


def test_the_contract_has_the_fields_of_the_table() -> None:
    """types.py: a field of `Sampling` each, and a `SamplingField` of its name for all but text-core and what accompanies a field."""
    assert [spec.name for spec in SAMPLING if spec.name not in {field.name for field in dataclasses.fields(Sampling)}] == []
    assert {field.name for field in dataclasses.fields(Sampling)} == NAMES
    assert {spec.field for spec in SAMPLING if spec.field is not None} == set(SamplingField)
    by_name = {spec.name: spec for spec in SAMPLING}
    named = {spec.field for spec in SAMPLING if spec.field is not None and spec.field.value == spec.name}
    assert named == set(SamplingField)
    assert all(by_name[name].field is spec.field for spec in SAMPLING for name, _ in spec.beside)
    assert all(spec.field is None or spec.field.value == spec.name or spec.field.value in dict(spec.beside) for spec in SAMPLING)


@every_field
def test_the_formula_computes_it(spec: SamplingSpec) -> None:
    """sampling.py: every value that is tried makes another distribution, or another draw, than a row without it."""
    for value in spec.tried:
        how = sampled_by(spec, value)
        plain = dataclasses.replace(how, **{spec.name: spec.neutral})
        one, other = (formula.distribution(LOGITS, each, ROW, 3) for each in (how, plain))
        if spec.name in ("do_sample", "seed"):
            drawn = [[formula.choose(one, each, position) for position in range(50)] for each in (how, plain)]
            assert drawn[0] != drawn[1]
        else:
            assert one != other


def test_whoever_computes_the_formula_declares_all_of_it() -> None:
    """The core's own formula and the engine's sampler."""
    assert frozenset(SamplingField) == formula.FIELDS == sampler.FIELDS


@every_field
def test_the_device_chooses_what_its_samplers_can(spec: SamplingSpec) -> None:
    """A row is left to a sampler on the device if that has all that the row uses."""
    for value in spec.tried:
        row = RowState(Request(1, ROW, 3, 0, ((1,),), len(ROW), sampled_by(spec, value)), list(ROW), len(ROW), ([1],))
        assert sampler.is_plain(row, 1000) == spec.on_device
        assert sampler.is_plain(row, 4) == (spec.on_device or (spec.name == "top_k" and value >= 4))


@every_field
def test_a_request_needs_what_it_uses(spec: SamplingSpec) -> None:
    """Filters need a drawn row; every request has a seed, so nobody can be refused for one."""
    declared = spec.field is not None and spec.stage is not SamplingStage.DRAW
    how = sampled_by(spec, spec.tried[0])
    assert needed_fields(how) == ({spec.field} if declared else set())
    greedy = dataclasses.replace(how, do_sample=False)
    assert needed_fields(greedy) == (set() if spec.stage is SamplingStage.FILTER else needed_fields(how))
    assert without(PENALTIES, how) == (spec.stage is not SamplingStage.PENALTY)
    assert without(FILTERS, how) == (spec.stage is not SamplingStage.FILTER)
    assert without(HOST_ONLY, how) == (spec.stage is SamplingStage.DRAW)
    assert spec.range is None or all(
        spec.range.holds(number) for value in spec.tried for number in spec.numbers(sampled_by(spec, value))
    )


def test_fields_of_a_later_contract() -> None:
    """A plugin cannot know what came after it; one that is newer than this core knows all."""
    assert SamplingField.MIN_P in newer_fields((1, 0)) & newer_fields((1, 1)) and SamplingField.MIN_P not in newer_fields((1, 2))
    assert newer_fields(API_VERSION) == newer_fields((1, 99)) == frozenset()


def test_our_messages_have_them_all() -> None:
    """contract.proto: a column each, two for the biases. What an older router leaves out is 0, which must be neutral."""
    columns = set(contract.Sampling.DESCRIPTOR.fields_by_name)
    assert columns == NAMES - {"logit_bias"} | {"bias_tokens", "biases"}
    assert not any(spec.neutral for spec in SAMPLING if spec.since > (1, 0))


def test_what_tgi_has() -> None:
    """generate.v3: all of its parameters but those that do not choose tokens are fields of the table."""
    others = {"grammar", "grammar_type", "sampling", "grammar_source"}
    assert {spec.name for spec in TGI_FIELDS} == set(pb.NextTokenChooserParameters.DESCRIPTOR.fields_by_name) - others


def test_clients_can_ask_for_them() -> None:
    """bodies.py: a parameter of the native routes, or an extra of /v1; what neither TGI nor OpenAI has is on both. The operator sets
    the watermark's share."""
    native, extra = set(Parameters.model_fields), {field.name for field in dataclasses.fields(Extras)}
    asked = NAMES - {"watermark_gamma"}
    assert native | extra >= asked
    assert (
        {spec.name for spec in SAMPLING if spec.since > (1, 1)} - {spec.name for spec in TGI_FIELDS} & asked
        <= set(FurtherSampling.model_fields)
        <= set(OpenAIBody.model_fields)
    )


def test_the_page_names_them() -> None:
    """docs/sampling.md."""
    text = (ROOT / "docs/sampling.md").read_text()
    assert {name for name in NAMES if f"`{name}`" not in text} == set()


def test_nobody_declares_whatever_there_is() -> None:
    """No backend or example takes its fields from the installed contract's enumeration."""
    folders = ("tgi_core", "backends", "examples", "bench", "docs", "conformance-tests/tgi_conformance/kit")
    files = [path for folder in folders for kind in ("*.py", "*.md") for path in (ROOT / folder).rglob(kind)]
    found = [str(path) for path in files if re.search(r"frozenset\((\w+\.)?SamplingField\)", path.read_text())]
    assert found == []
