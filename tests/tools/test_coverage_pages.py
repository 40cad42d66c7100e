"""The generated tables of models: they are read as they are written, and give reasons in words of ours."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts.coverage_pages import CAUSAL, ENCODER_DECODERS, IMAGES, Line, Page
from scripts.coverage_reasons import stated
from tests.engine.tiny_models import Outcome

REFUSED = "transformers refuses or cannot run the small config that these tests make of this type"


@pytest.mark.parametrize("page", [CAUSAL, ENCODER_DECODERS, IMAGES])
def test_pages_are_read_as_they_are_written(page: Page, tmp_path: Path) -> None:
    """So that some types can be run again."""
    values = {"verdict": "exact", "path": "", "note": "only 3 distinct tokens", "images": ""}
    values |= {field: values[field] or f"some {field}" for field in page.columns.values()}
    lines = [Line("llama", Outcome(**values)), Line("gpt2", Outcome(**{**values, "note": ""}))]
    (tmp_path / "page.md").write_text(page.text(lines))
    assert page.read(tmp_path / "page.md") == lines


@pytest.mark.parametrize(
    ("note", "reason"),
    [
        ("", ""),
        ("only 1 distinct token", "only 1 distinct token"),
        ("transformers: ValueError: 3 is not 4", REFUSED),
        (
            "InvalidModel: 'x' cannot be run for many rows: NotRagged: logits differ",
            "'x' cannot be run for many rows: logits differ",
        ),
        (
            "model type 'x' cannot be run: RuntimeError: expected 3; it has no cache",
            "model type 'x' cannot be run; it has no cache",
        ),
        ("IndexError: index 4", "its code fails in steps of this engine"),
        ("/home/x/model.safetensors: missing keys: a (1 in all)", REFUSED),
    ],
)
def test_reasons_have_no_exceptions(note: str, reason: str) -> None:
    """Neither their names nor their texts."""
    assert stated("some type", note) == reason
