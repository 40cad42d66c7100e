"""A shard's worker processes: token ids and features of prompts with images."""

from __future__ import annotations

import concurrent.futures
import gc
from collections.abc import Iterator
from pathlib import Path
from queue import SimpleQueue
from threading import Event, Semaphore

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.engine.image_models import image, save_model
from tests.media.pictures import encoded, hostile
from tests.waiting import wait_until
from tgi_core.media import processing
from tgi_core.media.cache import BoundedCache
from tgi_core.media.errors import ImageRejected, MediaBusy
from tgi_core.media.features import ImageFeatures, num_tokens
from tgi_core.media.messages import Answer, Job
from tgi_core.media.processing import MediaProcessing
from tgi_core.media.processor import MediaProcessor, NoProcessor
from tgi_core.media.prompts import MultimodalPrompt, PromptTokens
from tgi_core.model_files import DEMO

PICTURES = tuple(encoded(image(seed)) for seed in (1, 2))


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that cuts images into tiles."""
    return save_model("idefics3", tmp_path_factory.mktemp("images") / "idefics3")


@pytest.fixture(scope="module")
def media(directory: Path) -> Iterator[MediaProcessing]:
    """Its workers."""
    media = MediaProcessing(directory)
    yield media
    media.close()


def tokens(media: MediaProcessing, *texts: str, images: tuple[bytes, ...] = PICTURES, special: bool = True) -> PromptTokens:
    """The tokens of a prompt."""
    return media.tokenize(MultimodalPrompt(texts, images, special)).result()


def test_tokens_are_the_processors(media: MediaProcessing, directory: Path) -> None:
    """Whether images go between texts or at placeholders, the ids are the processor's own, and the spans hold all placeholders."""
    processor = MediaProcessor(directory)
    made = tokens(media, "See <image> and <image>, too")
    assert made == tokens(media, "See ", " and ", ", too")
    assert made.ids == processor.ids("See <image> and <image>, too", [image(1), image(2)], special=True)
    assert len(tokens(media, "See <image> and <image>, too", special=False).ids) == len(made.ids) - 1
    items = media.features(PICTURES)
    for (start, end), item in zip(made.spans, items, strict=True):
        inside = made.ids[start:end]
        assert inside[0] == inside[-1] == processor.placeholder_id
        assert inside.count(processor.placeholder_id) == num_tokens(item)


def test_spans_of_images_that_layers_look_at(tmp_path: Path) -> None:
    """All tokens of the prompt depend on each of its images: also those before it attend to it."""
    media = MediaProcessing(save_model("mllama", tmp_path / "mllama"))
    made = tokens(media, "See <|image|> and <|image|>, too")
    media.close()
    assert made.spans == ((0, len(made.ids)),) * 2


def test_features_are_kept(media: MediaProcessing, directory: Path) -> None:
    """Features are computed once; evicted ones are computed anew, with the same result."""
    first = media.features(PICTURES)
    assert media.features(PICTURES)[0] is first[0]
    small = MediaProcessing(directory, kept_bytes=1)
    first = small.features(PICTURES)
    small.features((encoded(image(3)),))
    again = small.features((*PICTURES, PICTURES[0]))
    small.close()
    assert again == (*first, first[0]) and again[0] is not first[0]


@pytest.mark.parametrize(
    ("texts", "images", "why"),
    [
        (("No picture",), PICTURES, "has 0 times '<image>' for 2 images"),
        (("<image><image><image>",), PICTURES, "has 3 times"),
        (("<image> x ", ""), PICTURES[:1], "has 2 times"),
        (("<image>",), (b"nothing",), "image 1: not an image"),
    ],
)
def test_refusals(media: MediaProcessing, texts: tuple[str, ...], images: tuple[bytes, ...], why: str) -> None:
    """They say what is wrong."""
    with pytest.raises(ImageRejected, match=why):
        tokens(media, *texts, images=images)


def test_hostile_images_fail_alone(media: MediaProcessing) -> None:
    """Each hostile image fails its own prompt, and no other."""
    asked = [media.tokenize(MultimodalPrompt(("<image>",), (data,), True)) for _, data in hostile()]
    good = media.tokenize(MultimodalPrompt(("<image>",), PICTURES[:1], True))
    concurrent.futures.wait([*asked, good])
    assert good.exception() is None
    assert {type(each.exception()) for each in asked} == {ImageRejected}


def test_images_are_encoded_before_the_answer(media: MediaProcessing) -> None:
    """Each image of a prompt once, in their order, as the item that a step gets. One that cannot be encoded fails its prompt alone."""
    encoded_items = list[bytes]()

    def encode(item: bytes) -> None:
        if item == bad:
            raise ImageRejected("it does not fit the model")
        encoded_items.append(item)

    bad, *good = media.features((encoded(image(7)), *PICTURES))
    media.encode_ahead(encode)
    failing = media.tokenize(MultimodalPrompt(("<image>",), (encoded(image(7)),), True))
    assert tokens(media, "<image> and <image>, then <image>", images=(*PICTURES, PICTURES[0])).spans
    with pytest.raises(ImageRejected, match="does not fit the model"):
        failing.result()
    assert encoded_items == good


def test_too_many_prompts(media: MediaProcessing, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those beyond the limit are refused at once, while images of others are encoded."""
    monkeypatch.setattr(processing, "MOST_PROMPTS", 1)
    begun, may_end = Event(), Event()

    def encode(item: bytes) -> None:
        begun.set()
        assert may_end.wait(60)

    media.encode_ahead(encode)
    first = media.tokenize(MultimodalPrompt(("<image>",), PICTURES[:1], True))
    assert begun.wait(60)
    with pytest.raises(MediaBusy):
        tokens(media, "<image>", images=PICTURES[:1])
    may_end.set()
    assert first.result(60) == tokens(media, "<image>", images=PICTURES[:1])


def test_prompts_take_turns(directory: Path) -> None:
    """While images of one prompt are encoded, those of another are, too. A prompt that is given up has no more of its images encoded."""
    begun, may_end, media = SimpleQueue[bytes](), Semaphore(0), MediaProcessing(directory)

    def encode(item: bytes) -> None:
        begun.put(item)
        assert may_end.acquire(timeout=60)

    three, one = tuple(encoded(image(seed)) for seed in (11, 12, 13)), encoded(image(14))
    items = media.features((*three, one))
    numbers = {item: number for number, item in enumerate(items)}
    media.encode_ahead(encode)
    many = media.tokenize(MultimodalPrompt(("<image>" * 3,), three, True))
    order = [numbers[begun.get(timeout=60)]]
    single = media.tokenize(MultimodalPrompt(("<image>",), (one,), True))
    wait_until(lambda: media.features((one,))[0] is not items[3])  # it is tokenized, and waits
    for _ in range(2):
        may_end.release()
        order.append(numbers[begun.get(timeout=60)])
    many.cancel()
    may_end.release(2)
    assert single.result(60).spans
    media.close()
    assert order == [0, 3, 1] and begun.empty()


@pytest.mark.filterwarnings("error")
def test_closing(directory: Path) -> None:
    """Closing works at once, while prompts wait, and twice. Waiting and later prompts are refused."""
    MediaProcessing(directory).close()
    media = MediaProcessing(directory)
    waiting = [media.tokenize(MultimodalPrompt(("<image>",), PICTURES[:1], True)) for _ in range(3)]
    media.close()
    media.close()
    assert all(each.cancelled() or isinstance(each.exception(), MediaBusy) for each in waiting)
    with pytest.raises(MediaBusy):
        media.tokenize(MultimodalPrompt(("<image>",), PICTURES[:1], True))
    gc.collect()


def test_no_processor() -> None:
    """A model of text alone has none."""
    with pytest.raises(NoProcessor):
        MediaProcessor(DEMO)


@given(st.lists(st.tuples(st.sampled_from(b"abcdef"), st.integers(1, 9), st.booleans()), max_size=30))
def test_a_cache_within_bytes(calls: list[tuple[int, int, bool]]) -> None:
    """It holds the most recently used values that fit, and the newest even if it does not fit."""
    cache, used = BoundedCache[bytes](12, len), dict[bytes, bytes]()
    for number, size, keeps in calls:
        key = bytes([number])
        if keeps:
            cache.keep(key, bytes(size))
            used.pop(key, None)
            used[key] = bytes(size)
            while sum(map(len, used.values())) > 12 and len(used) > 1:
                del used[next(iter(used))]
        else:
            assert cache.find(key) == used.get(key)
            if key in used:
                used[key] = used.pop(key)


def test_messages_survive_the_way() -> None:
    """Jobs, answers and features decode to what was encoded."""
    job = Job(("a\nb", "é"), True, (b"\n\0", b""))
    assert Job.from_bytes(job.to_bytes()) == job
    answer = Answer((1, 2), ((0, 1),), (b"\nx",), "why\nnot")
    assert Answer.from_bytes(answer.to_bytes()) == answer


@pytest.mark.parametrize(
    "data", [b"", b"\xff" * 8, b"\0" * 8, b"\x02" + bytes(7) + b"{}", b"\x02" + bytes(7) + b"[]", b"\x01" + bytes(7) + b"{"]
)
def test_damaged_features(data: bytes) -> None:
    """They are reported as such."""
    with pytest.raises(ValueError, match="image's features"):
        ImageFeatures.from_bytes(data)
