"""Prompts whose images do not fit: their request fails alone, before its step."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tgi_backend_cpu import plugin

from tests.engine.image_models import save_model
from tests.engine.test_images import Opened, needs_transformers_5, opened  # noqa: F401
from tests.engine.tiny_models import silent
from tgi_core.backend import Grant, InvalidModel, InvalidRequest, OpenOptions, Unsupported


def test_images_with_nothing_between(opened: Opened) -> None:  # noqa: F811
    """Positions with axes and tokens that see each other cannot tell two such images apart: their request fails alone, before its step."""
    ids, media = opened.made["Two of them: <image> and <image>, said he"]
    holes = [place for place, id in enumerate(ids) if id == opened.processor.placeholder_id]
    between = [place for place in range(holes[0], holes[-1]) if place not in holes]
    joined = tuple(id for place, id in enumerate(ids) if place not in between)
    run = opened.schedule()
    run.step(opened.request(run, 1, "No picture at all"))
    asked = replace(run.request(2, joined, len(joined)), media=media)
    if opened.tower.has_axes or opened.whole_images:
        with pytest.raises(InvalidRequest, match="in a row" if opened.whole_images else "anything between them") as caught:
            run.step(asked)
        assert caught.value.request_ids == (2,)
        del run.tokens[2]
        run.step()
    else:
        run.step(asked, grants=(Grant(1, 0),))
    assert run.tokens[1] == opened.alone("No picture at all")[: len(run.tokens[1])]


def test_a_damaged_image_of_a_later_chunk(opened: Opened) -> None:  # noqa: F811
    """It is refused with its request, not in the step that needs it, though its header is sound."""
    ids, (item, _) = opened.made["Two of them: <image> and <image>, said he"]
    run = opened.schedule()
    with pytest.raises(InvalidRequest, match="damaged"):
        run.step(replace(run.request(1, ids, len(ids) if opened.whole_prompts else 1), media=(item, item[:-8])))


@needs_transformers_5
def test_whole_prompts_with_an_8_bit_cache(tmp_path: Path) -> None:
    """The attention that supports such a cache does not let tokens of a prompt see each other: the model is refused, and says why."""
    with pytest.raises((InvalidModel, Unsupported), match="see those after them"):
        plugin.backend_open(OpenOptions(str(save_model("paligemma", tmp_path)), cache_dtype="int8"), silent)
