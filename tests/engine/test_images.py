"""Images in prompts: the engine's tokens against transformers' own `generate`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from tgi_backend_cpu import plugin
from transformers import AutoModelForImageTextToText

from tests.engine.image_models import image, save_model
from tests.engine.tiny_models import NEW_TOKENS, Schedule, silent
from tgi_core.backend import EMPTY, Feature, Grant, InvalidModel, InvalidRequest, OpenOptions, Request, Sampling, WarmupPlan
from tgi_core.backend.session import Session
from tgi_core.engine.media import placing
from tgi_core.engine.media.tower import item_digest
from tgi_core.media.features import ImageFeatures
from tgi_core.media.processor import MediaProcessor

PLAN = WarmupPlan(max_rows=32, max_row_tokens=320, max_step_tokens=640, num_blocks=640)
needs_torchvision = pytest.mark.skipif(
    find_spec("torchvision") is None, reason="its processor needs torchvision: make test-images"
)
EXACT = (
    *("llava", "llava_next", "idefics2", "idefics3", "aya_vision", "gemma3"),
    *(
        pytest.param(family, marks=needs_torchvision)
        for family in ("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "smolvlm", "internvl", "mistral3")
    ),
)
TEXTS = (
    ("See <image> here", (1,)),
    ("No picture at all", ()),
    ("Two of them: <image> and <image>, said he", (2, 3)),
    ("<image> first", (1,)),
    ("One more without", ()),
)


class Opened:
    """A session on a model, with the model's processor."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        base = plugin.backend_open(OpenOptions(str(directory)), silent)
        self.tower = base.runner.images.tower
        self.session = Session(base, "cpu")
        self.capacity = self.session.warmup(PLAN, silent)
        self.processor = MediaProcessor(directory)
        self.whole_images = self.session.capabilities().whole_images
        self.made = {text: self._prompt(text, seeds) for text, seeds in TEXTS}

    def schedule(self) -> Schedule:
        """A driver over the empty session."""
        self.session.clear(None)
        return Schedule(self.session, self.capacity)

    def request(self, run: Schedule, id: int, text: str, take: int = 0) -> Request:
        """A request for one of the texts, which at first runs `take` tokens, or all."""
        ids, media = self.made[text]
        return replace(run.request(id, ids, take or len(ids)), media=media)

    def alone(self, text: str, sampling: Sampling = Sampling()) -> list[int]:
        """The tokens of a text that runs alone and at once."""
        run = self.schedule()
        run.step(replace(self.request(run, 1, text), sampling=sampling))
        while len(run.tokens[1]) < NEW_TOKENS:
            run.step()
        return run.tokens[1]

    def chunks(self, text: str, size: int) -> list[int]:
        """The sizes of a prompt's chunks: `size`, but images are not cut that must run whole."""
        ids, _ = self.made[text]
        inside = [id == self.processor.placeholder_id and self.whole_images for id in ids]
        ends = [0]
        while ends[-1] < len(ids):
            end = min(len(ids), ends[-1] + size)
            while end < len(ids) and inside[end - 1] and inside[end]:
                end += 1
            ends.append(end)
        return [end - start for start, end in pairwise(ends)]

    def generated(self, text: str) -> list[int]:
        """What transformers generates, greedily."""
        ids, media = self.made[text]
        model = AutoModelForImageTextToText.from_pretrained(self.directory).eval()
        model.generation_config.eos_token_id = None
        images = [ImageFeatures.from_bytes(item).tensors for item in media]
        given = {name: torch.cat([torch.from_numpy(each[name]) for each in images]) for name in (images[0] if images else ())}
        if "mm_token_type_ids" in given:
            given["mm_token_type_ids"] = (torch.tensor([ids]) == self.processor.placeholder_id).int()
        if "token_type_ids" in given:
            given["token_type_ids"] = (torch.tensor([ids]) == self.processor.placeholder_id).int()
        answer = model.generate(torch.tensor([ids]), max_new_tokens=NEW_TOKENS, do_sample=False, pad_token_id=0, **given)
        return answer[0, len(ids) :].tolist()

    def _prompt(self, text: str, seeds: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[bytes, ...]]:
        images, text = [image(seed) for seed in seeds], text.replace("<image>", self.processor.placeholder)
        return self.processor.ids(text, images, special=True), tuple(self.processor.features(each).to_bytes() for each in images)


@pytest.fixture(scope="module", params=EXACT)
def opened(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Opened]:
    """One session per family."""
    opened = Opened(save_model(request.param, tmp_path_factory.mktemp("images") / request.param))
    yield opened
    opened.session.close()


def test_equals_generate(opened: Opened) -> None:
    """Texts with no, one and two images give what transformers generates for them."""
    assert Feature.MEDIA in opened.session.capabilities().features
    texts = [text for text, _ in TEXTS]
    made = [opened.alone(text) for text in texts]
    assert made == [opened.generated(text) for text in texts]
    assert made[0] != made[3] or opened.made[texts[0]] != opened.made[texts[3]]


def test_images_matter(opened: Opened) -> None:
    """Other pictures give other logprobs, so the comparison says something."""
    ids, media = opened.made["See <image> here"]
    other = opened.processor.features(image(9)).to_bytes()

    def logprob(item: bytes) -> float:
        run = opened.schedule()
        [row] = opened.session.rows(
            opened.session.prefill((replace(run.request(1, ids, len(ids)), media=(item,)),), EMPTY, ())
        ).rows
        return float(row.logprobs[0])

    assert logprob(media[0]) != logprob(other)


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(do_sample=True, temperature=0.9, top_p=0.9, seed=7)])
def test_32_rows_equal_alone(opened: Opened, sampling: Sampling) -> None:
    """32 concurrent rows, with images and without, make the tokens that each makes alone. Prompts are chunked, also inside images if the
    model's tokens see none after them."""
    alone = {text: opened.alone(text, sampling) for text, _ in TEXTS}
    run, left = opened.schedule(), dict[int, list[int]]()
    for id in range(1, 33):
        text = TEXTS[id % len(TEXTS)][0]
        take, *rest = opened.chunks(text, 3 + id % 11)
        grants = _grants(run, left)
        left[id] = rest
        run.step(replace(opened.request(run, id, text, take), sampling=sampling), grants=grants)
    while min(map(len, run.tokens.values())) < NEW_TOKENS:
        run.step(grants=_grants(run, left))
    assert run.tokens == {id: alone[TEXTS[id % len(TEXTS)][0]] for id in run.tokens}


def _grants(run: Schedule, left: dict[int, list[int]]) -> tuple[Grant, ...]:
    """The next chunk of each prompt, and a pause for rows with enough tokens."""
    takes = {id: chunks.pop(0) if chunks else 0 for id, chunks in left.items()}
    return tuple(Grant(id, takes[id]) for id in takes if takes[id] or len(run.tokens[id]) >= NEW_TOKENS)


def test_an_image_is_encoded_once(opened: Opened) -> None:
    """The same picture in two requests, in chunks, runs through the tower once."""
    tower = opened.tower
    tower.kept.clear()
    before = tower.runs
    opened.alone("See <image> here")
    opened.alone("<image> first")
    assert tower.runs == before + 1


def test_an_image_is_digested_once(opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many chunks its prompt has: an item can have megabytes."""
    digested = list[bytes]()
    monkeypatch.setattr(placing, "item_digest", lambda item: digested.append(item) or item_digest(item))
    text = "Two of them: <image> and <image>, said he"
    run, (take, *rest) = opened.schedule(), opened.chunks(text, 3)
    run.step(opened.request(run, 1, text, take))
    for chunk in rest:
        run.step(grants=(Grant(1, chunk),))
    assert digested == list(opened.made[text][1])


@pytest.mark.parametrize(
    ("media", "why"),
    [
        ((), "its images have 0 tokens"),
        ((b"picture",), "not a safetensors file"),
        ((b"\xff" * 100,), "not a safetensors file"),
        ((b"\x02" + b"\0" * 7 + b"{}",), "how many tokens"),
    ],
)
def test_wrong_images_fail_their_request_alone(opened: Opened, media: tuple[bytes, ...], why: str) -> None:
    """They are refused before the step, so that other rows go on."""
    run = opened.schedule()
    run.step(opened.request(run, 1, "See <image> here"))
    asked = replace(opened.request(run, 2, "<image> first"), media=media)
    if media:
        with pytest.raises(InvalidRequest, match=why) as caught:
            run.step(asked)
        assert caught.value.request_ids == (2,)
    del run.tokens[2]
    run.step()
    assert run.tokens[1] == opened.alone("See <image> here")[:2]


def test_a_step_that_cuts_an_image(opened: Opened) -> None:
    """It fails if the image's tokens see each other; a core that obeys `Capabilities.whole_images` launches none."""
    run = opened.schedule()
    ids, _ = opened.made["<image> first"]
    inside = ids.index(opened.processor.placeholder_id) + 2
    if opened.whole_images:
        with pytest.raises(InvalidRequest, match="cuts an image"):
            run.step(opened.request(run, 1, "<image> first", inside))
    else:
        run.step(opened.request(run, 1, "<image> first", inside))


@pytest.mark.parametrize(("family", "reason"), [("llava", ""), ("gemma3", "tokens of its images see each other")])
def test_images_with_an_8_bit_cache(tmp_path: Path, family: str, reason: str) -> None:
    """A KV cache of 8 bits changes logits by more than rounding, which must not pass for a wrong image. The attention that supports it
    does not let tokens of an image see each other, so such a model takes text alone."""
    session = plugin.backend_open(OpenOptions(str(save_model(family, tmp_path)), cache_dtype="int8"), silent)
    [told] = [each for each in session.capabilities().kernels if each.part == "images"]
    assert (Feature.MEDIA in session.capabilities().features) == (not reason), told
    assert reason in told.reason
    session.close()


def test_prompts_that_see_their_own_future(tmp_path: Path) -> None:
    """Such a model is refused: its rows cannot be computed in chunks."""
    with pytest.raises(InvalidModel, match="'paligemma' cannot be run"):
        plugin.backend_open(OpenOptions(str(save_model("paligemma", tmp_path))), silent)


def test_a_model_without_a_processor(tmp_path: Path) -> None:
    """The session serves text, and its kernels say why it takes no images."""
    directory = save_model("llava", tmp_path / "llava")
    (directory / "processor_config.json").unlink()
    session = plugin.backend_open(OpenOptions(str(directory)), silent)
    [kernel] = [each for each in session.capabilities().kernels if each.part == "images"]
    assert kernel.name == "refused" and "processor" in kernel.reason
    assert Feature.MEDIA not in session.capabilities().features
    session.close()


def test_one_image_per_step(opened: Opened) -> None:
    """An image runs through the tower in the first step that has a part of it, not when its request begins."""
    tower, text = opened.tower, "Two of them: <image> and <image>, said he"
    tower.kept.clear()
    ids, _ = opened.made[text]
    places = [place for place, id in enumerate(ids) if id == opened.processor.placeholder_id]
    second = places[len(places) // 2]  # both images have as many
    run, before = opened.schedule(), tower.runs
    run.step(opened.request(run, 1, text, second))
    assert tower.runs == before + 1
    run.step(grants=(Grant(1, len(ids) - second),))
    assert tower.runs == before + 2 and run.tokens[1] == opened.alone(text)[:1]
