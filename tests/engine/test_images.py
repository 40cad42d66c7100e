"""Images in prompts: the engine's tokens against transformers' own `generate`."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path

import pytest
import torch
import transformers
from PIL.Image import Image
from tgi_backend_cpu import plugin
from transformers import AutoModelForImageTextToText, AutoTokenizer

from tests.engine.image_models import image, save_model
from tests.engine.tiny_configs import TRANSFORMERS_5
from tests.engine.tiny_models import NEW_TOKENS, Schedule, silent
from tgi_core.backend import (
    EMPTY,
    Encoded,
    Feature,
    Grant,
    InvalidRequest,
    OpenOptions,
    OutputOptions,
    Request,
    Sampling,
    WarmupPlan,
)
from tgi_core.backend.session import Session
from tgi_core.engine.media import placing
from tgi_core.engine.media.cross import CrossVision
from tgi_core.engine.media.tower import SEEN_TILES, item_digest
from tgi_core.media.features import ImageFeatures
from tgi_core.media.processor import MediaProcessor

PLAN = WarmupPlan(max_rows=32, max_row_tokens=320, max_step_tokens=640, num_blocks=640)
needs_torchvision = pytest.mark.skipif(
    find_spec("torchvision") is None, reason="its processor needs torchvision: make test-images"
)
V5 = ("idefics2", "aya_vision", "gemma3", "paligemma", "paligemma2", "mllama")
needs_transformers_5 = pytest.mark.skipif(not TRANSFORMERS_5, reason="the tiny model is one of transformers 5")
EXACT = (
    *("llava", "llava_next", "idefics3"),
    *(pytest.param(family, marks=needs_transformers_5) for family in V5),
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
        self.whole_prompts = self.session.capabilities().whole_prompts
        self.tokenizer = AutoTokenizer.from_pretrained(directory)
        self.pictures: dict[str, tuple[Image, ...]] = {}
        self.made: dict[str, tuple[tuple[int, ...], tuple[bytes, ...]]] = {}
        for text, seeds in TEXTS:
            self.add(text, *map(image, seeds))

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
        """The sizes of a prompt's chunks: `size`, but what must run whole is not cut."""
        ids, _ = self.made[text]
        if self.whole_prompts:
            return [len(ids)]
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
        if images and SEEN_TILES in images[0]:  # it depends on the whole prompt
            words, pictures = text.replace("<image>", self.processor.placeholder), list(self.pictures[text])
            made = self.processor._processor(text=[words], images=[pictures], return_tensors="pt")
            answer = model.generate(**made, max_new_tokens=NEW_TOKENS, do_sample=False, pad_token_id=0)
            return answer[0, len(ids) :].tolist()
        given = {name: torch.cat([torch.from_numpy(each[name]) for each in images]) for name in (images[0] if images else ())}
        if "mm_token_type_ids" in given:
            given["mm_token_type_ids"] = (torch.tensor([ids]) == self.processor.placeholder_id).int()
        if "token_type_ids" in given:
            marked = given["token_type_ids"].any()
            given["token_type_ids"] = ((torch.tensor([ids]) == self.processor.placeholder_id) & marked).int()
        if self.whole_prompts and not images:  # transformers makes some of them causal, without the processor's mark of prompts
            given["token_type_ids"] = torch.zeros(1, len(ids), dtype=torch.int64)
        answer = model.generate(torch.tensor([ids]), max_new_tokens=NEW_TOKENS, do_sample=False, pad_token_id=0, **given)
        return answer[0, len(ids) :].tolist()

    def add(self, text: str, *images: Image) -> None:
        """Make a prompt of a text and its images."""
        words = text.replace("<image>", self.processor.placeholder)
        ids = self.processor.ids(words, images, special=True) if images else tuple(self.tokenizer(words)["input_ids"])
        self.pictures[text] = images
        self.made[text] = ids, tuple(self.processor.features(each).to_bytes() for each in images)


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


def test_encoded_beside_steps(opened: Opened) -> None:
    """Images that another thread encodes while a row decodes are there when a step needs them, and change no token."""
    tower, (text, other) = opened.tower, ("Two of them: <image> and <image>, said he", "No picture at all")
    alone = [opened.alone(each) for each in (other, text)]
    tower.kept.clear()
    run = opened.schedule()
    run.step(opened.request(run, 1, other))
    with ThreadPoolExecutor(1) as pool:
        encoding = [pool.submit(opened.session.encode, item) for item in opened.made[text][1]]
        while len(run.tokens[1]) < NEW_TOKENS and not all(each.done() for each in encoding):
            run.step()
    before = tower.runs
    run.step(opened.request(run, 2, text), grants=_grants(run, {1: []}))
    while min(map(len, run.tokens.values())) < NEW_TOKENS:
        run.step(grants=_grants(run, {1: [], 2: []}))
    assert [run.tokens[1], run.tokens[2]] == alone
    assert [each.result() for each in encoding] == [Encoded()] * 2 and tower.runs == before


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
    """If the image's tokens see each other, it is refused as it is launched; a core that obeys `whole_images` and `whole_prompts` launches
    none."""
    run = opened.schedule()
    ids, _ = opened.made["<image> first"]
    inside = ids.index(opened.processor.placeholder_id) + 2
    if opened.whole_images or opened.whole_prompts:
        with pytest.raises(InvalidRequest, match="cuts its prompt" if opened.whole_prompts else "cuts an image"):
            run.step(opened.request(run, 1, "<image> first", inside))
    else:
        run.step(opened.request(run, 1, "<image> first", inside))
    if opened.whole_images:
        run.step(opened.request(run, 2, "<image> first", 1))
        with pytest.raises(InvalidRequest, match="request 2: a step cuts an image"):
            run.step(grants=(Grant(2, inside - 1),))
        run.step(grants=(Grant(2, len(ids) - 1),))


@pytest.mark.parametrize(
    ("family", "reason"),
    [
        ("llava", ""),
        pytest.param("gemma3", "tokens of its images see each other", marks=needs_transformers_5),
    ],
)
def test_images_with_an_8_bit_cache(tmp_path: Path, family: str, reason: str) -> None:
    """A KV cache of 8 bits changes logits by more than rounding, which must not pass for a wrong image. The attention that supports it
    does not let tokens of an image see each other, so such a model takes text alone."""
    session = plugin.backend_open(OpenOptions(str(save_model(family, tmp_path)), cache_dtype="int8"), silent)
    [told] = [each for each in session.capabilities().kernels if each.part == "images"]
    assert (Feature.MEDIA in session.capabilities().features) == (not reason), told
    assert reason in told.reason
    session.close()


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(do_sample=True, temperature=0.9, top_p=0.9, seed=7)])
def test_rows_continue_after_their_answers(opened: Opened, sampling: Sampling) -> None:
    """Rows that were preempted make the tokens that they would have made: where tokens of a prompt see each other, those of the
    answer so far see what precedes them, whether they run with the prompt or after it."""
    for text, _ in TEXTS:
        ids, media = opened.made[text]
        alone = opened.alone(text, sampling)
        for kept, later in ((1, 0), (4, 0), (4, 1), (6, 4)):
            run, tokens = opened.schedule(), (*ids, *alone[:kept])
            asked = replace(run.request(1, tokens, len(tokens) - later), prompt_len=len(ids), media=media, sampling=sampling)
            run.step(asked)
            if later:
                run.step(grants=(Grant(1, later),))
            while len(run.tokens[1]) < NEW_TOKENS - kept:
                run.step()
            assert run.tokens[1] == alone[kept:], (text, kept, later)


def test_logprobs_of_a_prompt_that_sees_its_own_future(opened: Opened) -> None:
    """They are those of one run over all of it, as for other models."""
    if not opened.whole_prompts:
        pytest.skip("its prompts see the past")
    ids, media = opened.made["See <image> here"]
    model = AutoModelForImageTextToText.from_pretrained(opened.directory).eval()
    given = {name: torch.from_numpy(each) for name, each in ImageFeatures.from_bytes(media[0]).tensors.items()}
    given["token_type_ids"] = torch.zeros(1, len(ids), dtype=torch.int64)
    with torch.inference_mode():
        scores = model(torch.tensor([ids]), **given).logits[0].log_softmax(-1)
    expected = scores[torch.arange(len(ids) - 1), torch.tensor(ids[1:])].tolist()
    run = opened.schedule()
    asked = replace(run.request(1, ids, len(ids)), media=media, want=OutputOptions(prompt_logprobs=True))
    [row] = opened.session.rows(opened.session.prefill((asked,), EMPTY, ())).rows
    assert row.prompt_logprobs[0] is None and row.prompt_logprobs[1:] == pytest.approx(expected, abs=1e-3)


def test_a_prompt_that_is_in_the_cache(opened: Opened) -> None:
    """It runs its last block, also if the blocks before were computed with all of it."""
    ids, _ = opened.made["See <image> here"]
    alone, run = opened.alone("See <image> here"), opened.schedule()
    first = opened.request(run, 1, "See <image> here")
    run.step(first)
    size = opened.capacity.groups[0].block_size
    known = (len(ids) - 1) // size
    again = opened.request(run, 2, "See <image> here")
    blocks = tuple(held[:known] + new[known:] for held, new in zip(first.blocks, again.blocks, strict=True))
    start = known * size
    run.step(replace(again, blocks=blocks, cached=start, take=len(ids) - start))
    while len(run.tokens[2]) < NEW_TOKENS:
        run.step()
    assert run.tokens[2] == alone


@pytest.mark.skipif(transformers.__version__ != "5.24.0", reason="known of transformers 5.24 only")
@pytest.mark.parametrize("sees", [False, True])
def test_llama_4_does_not_run_in_transformers(sees: bool) -> None:
    """With an image or without, it expects a field of its language model's output that there is not. So there is nothing to compare with,
    and Llama 4 serves text. Once this fails, `sees_images` may include it."""
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}
    text = transformers.Llama4TextConfig(
        vocab_size=16, intermediate_size_mlp=16, num_key_value_heads=1, head_dim=8, num_local_experts=1, pad_token_id=0, **sizes
    )
    outer = {"vision_output_dim": 16, "projector_input_dim": 16, "projector_output_dim": 16}
    tower = transformers.Llama4VisionConfig(image_size=28, patch_size=7, **sizes, **outer)
    model = transformers.Llama4ForConditionalGeneration(
        transformers.Llama4Config(text_config=text, vision_config=tower, image_token_index=9)
    )
    ids = torch.tensor([[3, 9, 9, 9, 9, 5] if sees else [3, 4, 5]])
    pictures = {"pixel_values": torch.randn(1, 3, 28, 28)} if sees else {}
    with pytest.raises(AttributeError, match="'MoeCausalLMOutputWithPast' object has no attribute 'image_outputs'"):
        model.generate(ids, max_new_tokens=2, pad_token_id=0, **pictures)


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
    """An image runs through the tower in the first step that has a part of it, unless tokens before it see it."""
    if opened.whole_prompts or isinstance(opened.tower, CrossVision):
        pytest.skip("tokens of its prompts see images that follow them")
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
