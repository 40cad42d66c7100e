"""Images that layers of a model look at: what each token sees, and what is kept."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import isfinite
from typing import NoReturn

import pytest
from tgi_backend_cpu import plugin
from transformers import AutoConfig

from tests.engine.image_models import image, save_model
from tests.engine.test_images import TEXTS, Opened, needs_transformers_5
from tests.engine.tiny_models import NEW_TOKENS, silent
from tgi_core.backend import EMPTY, Feature, Grant, InvalidRequest, OpenOptions, OutputOptions, Sampling
from tgi_core.engine import runner_selection
from tgi_core.engine.attention.interface import NotRagged
from tgi_core.engine.media.tower import item_digest, seen_until

WIDE, TALL, WHOLE = (90, 30), (20, 90), (40, 40)
"""Sizes of pictures that have three of four tiles, and one that has all."""
IN_A_ROW = {
    "<image><image> at first": (WIDE, WHOLE),
    "Then: <image><image>": (TALL, WIDE),
    "One <image> and <image><image><image> four": (WIDE, WHOLE, TALL, WIDE),
    "At last <image>": (WIDE,),
}

pytestmark = needs_transformers_5


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Opened]:
    """A session on a model whose layers look at images."""
    opened = Opened(save_model("mllama", tmp_path_factory.mktemp("cross") / "mllama"))
    for text, sizes in IN_A_ROW.items():
        opened.add(text, *(image(number, *size) for number, size in enumerate(sizes)))
    yield opened
    opened.session.close()


@pytest.mark.parametrize("text", IN_A_ROW)
def test_what_tokens_see(opened: Opened, text: str) -> None:
    """Images in a row are seen together, others until the next one; tiles that pad an image are seen by tokens before all images only."""
    made = opened.alone(text)
    assert made == opened.generated(text)
    run = opened.schedule()
    take, *rest = opened.chunks(text, 2)
    run.step(opened.request(run, 1, text, take))
    for chunk in rest:
        run.step(grants=(Grant(1, chunk),))
    while len(run.tokens[1]) < NEW_TOKENS:
        run.step()
    assert run.tokens[1] == made


def test_text_beside_images(opened: Opened) -> None:
    """Layers that look at images leave rows without them as they are, to the bit."""
    [text] = [text for text, seeds in TEXTS if text == "No picture at all"]
    run = opened.schedule()
    logprobs = []
    for beside in (False, True):
        requests = [opened.request(run, 1 + 2 * beside, text)]
        requests += [opened.request(run, 2, "<image> first")] if beside else []
        step = opened.session.prefill(tuple(requests), run.handle, ())
        logprobs.append(opened.session.rows(step).rows[0].logprobs[0])
        opened.session.clear(None)
    assert logprobs[0] == pytest.approx(logprobs[1], abs=1e-5)


SAMPLINGS = (
    Sampling(repetition_penalty=50.0, frequency_penalty=2.0, presence_penalty=-2.0),
    Sampling(do_sample=True, temperature=100.0, repetition_penalty=0.001, seed=3),
    Sampling(do_sample=True, temperature=0.01, top_k=5, typical_p=0.5, min_p=0.1, seed=3),
)


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_ids_without_logits(opened: Opened, sampling: Sampling) -> None:
    """The placeholder's id is in the session's vocabulary, and is never sampled."""
    id = opened.processor.placeholder_id
    assert id < opened.session.capabilities().vocab_size
    assert all(id not in opened.alone(text, sampling) for text in IN_A_ROW)


def test_logprobs_of_a_prompt_with_placeholders(opened: Opened) -> None:
    """They are numbers; that of a placeholder says that it is no answer."""
    run, text = opened.schedule(), "One <image> and <image><image><image> four"
    asked = replace(opened.request(run, 1, text), want=OutputOptions(top_n=3, prompt_logprobs=True))
    [row] = opened.session.rows(opened.session.prefill((asked,), EMPTY, ())).rows
    ids, id = opened.made[text][0], opened.processor.placeholder_id
    assert row.fault is None and all(map(isfinite, row.prompt_logprobs[1:]))
    assert all((logprob < -1e8) == (token == id) for token, logprob in list(zip(ids, row.prompt_logprobs, strict=True))[1:])
    assert id not in {top.id for top in row.top[0]}


def item_of(opened: Opened) -> tuple[bytes, bytes]:
    """An image, and its digest."""
    [item] = opened.made["At last <image>"][1]
    return item, item_digest(item)


def test_no_drafts(opened: Opened) -> None:
    """Drafts would change tokens: cross attention over several tokens rounds otherwise than over one."""
    [told] = [each for each in opened.session.capabilities().kernels if each.part == "drafts"]
    assert told.name == "none" and "look at images" in told.reason
    assert Feature.SPECULATION not in opened.session.capabilities().features


def test_too_many_images(opened: Opened) -> None:
    """A prompt with more images than are kept is refused before the step."""
    text = "<image>" * 17
    opened.add(text, *(image(number) for number in range(17)))
    run = opened.schedule()
    with pytest.raises(InvalidRequest, match="its prompt has 17 images; layers can look at up to 16"):
        run.step(opened.request(run, 1, text))


def test_kept_images_are_promised(opened: Opened) -> None:
    """The memory of keys and values is part of the promise; images beyond it are computed again, to the same tokens."""
    [kept] = [each.num_bytes for each in opened.capacity.memory if each.name == "images"]
    tower = opened.tower
    assert kept == tower.image_bytes > 16 * tower.embeddings(*item_of(opened)).nbytes
    most = tower.kept.most_bytes
    alone = {text: opened.alone(text) for text in IN_A_ROW}
    tower.kept.clear()
    tower.kept.most_bytes = 1
    try:
        run = opened.schedule()
        for number, text in enumerate(IN_A_ROW, 1):
            run.step(opened.request(run, number, text))
        for _ in range(3):
            run.step()
    finally:
        tower.kept.most_bytes = most
    assert list(run.tokens.values()) == [alone[text][: 7 - number] for number, text in enumerate(IN_A_ROW)]


def test_without_a_processor(tmp_path_factory: pytest.TempPathFactory) -> None:
    """The model serves text."""
    directory = save_model("mllama", tmp_path_factory.mktemp("text") / "mllama")
    (directory / "processor_config.json").unlink()
    (directory / "preprocessor_config.json").unlink(missing_ok=True)
    session = plugin.backend_open(OpenOptions(str(directory)), silent)
    assert Feature.MEDIA not in session.capabilities().features
    session.close()


def test_attention_that_the_engine_does_not_compute(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The model serves text, of those ids that have logits, and says why it takes no images."""

    def raised(*args: object) -> NoReturn:
        raise NotRagged("attention with a mask of the model's own")

    monkeypatch.setattr(runner_selection, "use_ragged_attention", raised)
    directory = save_model("mllama", tmp_path_factory.mktemp("own") / "mllama")
    session = plugin.backend_open(OpenOptions(str(directory)), silent)
    found = session.capabilities()
    assert found.vocab_size == AutoConfig.from_pretrained(directory).text_config.vocab_size
    [told] = [each for each in found.kernels if each.part == "images"]
    assert told.name == "refused" and "a mask of the model's own" in told.reason
    session.close()


def test_where_images_are_seen() -> None:
    """Until the next image, or with it if that follows at once."""
    assert seen_until([3]) == [None]
    assert seen_until([1, 5, 9]) == [5, 9, None]
    assert seen_until([1, 4, 5, 9]) == [4, 9, 9, None]
    assert seen_until([0, 1, 2]) == [None, None, None]
