"""What a request with images costs the text streams beside it, on this CPU.

    python -m bench.images [--rounds 5] [--streams 8]

A LLaVA in a true shape, CLIP's ViT-B/16 at 224 pixels before a Llama in SmolLM2-135M's shape, with random bfloat16 weights in the user's
cache directory, is driven through scheduler, model server and CPU backend in one process, with its worker processes. While the streams
decode, a request arrives: a text, or new images, which are encoded in the steps that need them, or beside steps while it is tokenized. The
table has a decode step before it; from then until its first token `missed`, the most steps in a row in which a stream got no token; gaps
between two tokens of a stream (median / 99th percentile / longest), in steps of the same round, before the request, while it is tokenized,
and after, when its prompt runs; and the time until its first token, also without streams.
"""

from __future__ import annotations

import argparse
import io
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, count, islice, pairwise
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from bench.random_model import cache_folder, write_tokenizer
from bench.report.tables import table
from bench.shapes import SHAPES
from tgi_core.cli.collector import settle
from tgi_core.media.digest import image_digest
from tgi_core.media.prompts import MultimodalPrompt, PromptTokens
from tgi_core.scheduler.prefix import ImageSpan

if TYPE_CHECKING:
    from tgi_core.media.processing import MediaProcessing
    from tgi_core.scheduler import Scheduler
    from tgi_core.server.model_server import ModelServer

VISION = {"hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12, "num_attention_heads": 12}
SIDE, PATCH = 224, 16
WARM, COUNTS = 16, (1, 4)
"""Undisturbed decode steps per round, and the numbers of images in a request."""


def make() -> Path:
    """The directory of the model, created on first use (450 MB)."""
    folder = cache_folder() / "random-llava-135m"
    if (folder / "processor_config.json").exists():
        return folder
    import torch
    from transformers import AutoTokenizer, CLIPVisionConfig, LlamaConfig, LlavaConfig, LlavaProcessor
    from transformers.models.auto import AutoModelForImageTextToText
    from transformers.models.auto.image_processing_auto import get_image_processor_class_from_name

    torch.manual_seed(0)
    folder.mkdir(parents=True, exist_ok=True)
    shape = dict(SHAPES["135m"].config)
    write_tokenizer(folder, shape["vocab_size"] - 64)
    tokenizer: Any = AutoTokenizer.from_pretrained(folder)
    tokenizer.add_special_tokens({"additional_special_tokens": ["<image>"]})
    none = {"eos_token_id": None, "bos_token_id": None, "pad_token_id": None}
    text = LlamaConfig(**shape | {"max_position_embeddings": 8192, "tie_word_embeddings": True} | none)
    tower = CLIPVisionConfig(**VISION, image_size=SIDE, patch_size=PATCH)
    id = tokenizer.convert_tokens_to_ids("<image>")
    config = LlavaConfig(text_config=text, vision_config=tower, image_token_index=id, tie_word_embeddings=True)
    AutoModelForImageTextToText.from_config(config, dtype=torch.bfloat16).save_pretrained(folder)
    images: Any = get_image_processor_class_from_name("CLIPImageProcessorPil")
    processor = LlavaProcessor(
        image_processor=images(size={"shortest_edge": SIDE}, crop_size={"height": SIDE, "width": SIDE}), tokenizer=tokenizer,
        patch_size=PATCH, vision_feature_select_strategy="default", num_additional_image_tokens=1,
    )  # fmt: skip
    processor.save_pretrained(folder)
    return folder


@dataclass(frozen=True, slots=True)
class Disturbed:
    """A round: gaps between two tokens of the streams, in steps, before the request, while it was tokenized and after, until its first
    token; the most steps in a row that a stream missed then; seconds of a step, the median of those before, and until that token."""

    before: tuple[float, ...]
    tokenizing: tuple[float, ...]
    after: tuple[float, ...]
    missed: int
    step: float
    first: float


class Streams:
    """Scheduler, model server and CPU backend, a turn at a time."""

    def __init__(self, model: Path, streams: int) -> None:
        from tgi_backend_cpu import plugin

        from tgi_core.backend import OpenOptions, WarmupPlan
        from tgi_core.backend.session import Session
        from tgi_core.media.processing import MediaProcessing
        from tgi_core.scheduler import Scheduler
        from tgi_core.server.model_server import ModelServer
        from tgi_core.tokenizer import Tokenizer
        from tgi_core.wire.types import ShardInfo

        opened: Any = plugin.backend_open(OpenOptions(str(model)), _quiet)
        if opened.runner.images is None:
            raise SystemExit(f"the model takes no images: {opened.capabilities().kernels}")
        self._tower, self._session = opened.runner.images.tower, Session(opened, "cpu")
        info = ShardInfo("llava", "cpu", "cpu", "bfloat16", (1, 10), self._session.capabilities())
        self.media: MediaProcessing = MediaProcessing(model)
        self._server: ModelServer = ModelServer(self._session, Tokenizer.load(model), info, media=self.media)
        plan = WarmupPlan(max_rows=streams + 1, max_row_tokens=4096, max_step_tokens=2048)
        self._scheduler: Scheduler = Scheduler(info.capabilities, self._server.warmup(plan, _quiet))
        self._made: dict[int, list[float]] = {}
        self._keys: list[int] = []
        self._missed, self._longest = dict[int, int](), 0

    def encode(self, ahead: bool) -> None:
        """Encode images from now on beside steps, or in them."""
        self.media.encode_ahead(self._session.encode if ahead else len)

    def begin(self, streams: int) -> None:
        """Let new streams decode instead of those that do."""
        for key in self._keys:
            self._scheduler.cancel(key)
        self._keys = [self._add(tuple(range(50 + 9 * row, 90 + 9 * row)), 4000) for row in range(streams)]
        while not all(self._made.get(key) for key in self._keys):
            self._turn()

    def first_token(self, prompt: tuple[bytes, ...] | PromptTokens) -> tuple[float, float]:
        """Ask about new images, or a text of so many tokens. Returns when it was queued, and when the first token came."""
        images = () if isinstance(prompt, PromptTokens) else prompt
        tokens = prompt if isinstance(prompt, PromptTokens) else self._tokenized(images)
        spans = tuple(ImageSpan(*span, image_digest(image)) for span, image in zip(tokens.spans, images, strict=True))
        queued = time.perf_counter()
        key = self._add(tokens.ids, 2, images=images, image_spans=spans)
        while not self._made.get(key):
            self._turn()
        return queued, self._made[key][0]

    def _tokenized(self, images: tuple[bytes, ...]) -> PromptTokens:
        prompt = MultimodalPrompt(("<image>" * len(images) + "What is it?",), images, special=False)
        asked = self.media.tokenize(prompt)
        while self._keys and not asked.done():
            self._turn()
        return asked.result()

    def disturb(self, prompt: tuple[bytes, ...] | PromptTokens) -> Disturbed:
        """Undisturbed steps, then a request until its first token."""
        begin = [len(self._made[key]) - 1 for key in self._keys]
        for _ in range(WARM):
            self._turn()
        self._missed, self._longest, began = dict.fromkeys(self._keys, 0), 0, time.perf_counter()
        queued, first = self.first_token(prompt)
        times = [self._made[key][number:] for key, number in zip(self._keys, begin, strict=True)]
        gaps = [(end, end - start) for each in times for start, end in pairwise(each)]
        step = median(gap for end, gap in gaps if end <= began)
        before, tokenizing, later = (
            tuple(gap / step for end, gap in gaps if after < end <= until)
            for after, until in pairwise((0.0, began, queued, first))
        )
        return Disturbed(before, tokenizing, later, self._longest, step, first - began)

    def _turn(self) -> None:
        """Run a step, and note when each request gets a token."""
        events, got = self._scheduler.complete(self._server.exchange(self._scheduler.plan())), set[int]()
        for event in events:
            if event.error is not None:
                raise SystemExit(str(event.error))
            if event.generation is not None and event.generation.tokens:
                self._made.setdefault(event.key, []).append(time.perf_counter())
                got.add(event.key)
        self._missed = {key: 0 if key in got else count + 1 for key, count in self._missed.items()}
        self._longest = max([self._longest, *self._missed.values()])

    def _add(self, tokens: tuple[int, ...], count: int, **given: Any) -> int:
        from tgi_core.backend import Sampling
        from tgi_core.scheduler import GenerationRequest
        from tgi_core.wire.types import Stopping

        return self._scheduler.add(GenerationRequest.of(tokens, Sampling(), Stopping(count, ignore_eos=True), **given))


def picture(seed: int) -> bytes:
    """A new picture in PNG."""
    import numpy as np
    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(np.random.default_rng(seed).integers(0, 256, (SIDE, SIDE, 3), dtype=np.uint8)).save(file, "PNG")
    return file.getvalue()


def lines(streams: Streams, rounds: int, rows: int) -> Iterator[list[object]]:
    """A row of the table per number of images, for a text of as many tokens, and for images encoded in steps and beside them; `rows`
    streams decode meanwhile."""
    made = map(picture, count())
    for images in COUNTS:
        for name in ("as text", "in steps", "beside"):
            streams.encode(ahead=name == "beside")
            asked: list[Any] = [tuple(islice(made, images)) for _ in range(2 * (rounds + 1))]
            if name == "as text":
                size = images * (SIDE // PATCH) ** 2 + 4
                asked = [
                    PromptTokens(tuple(range(100 * number + 60, 100 * number + 60 + size)), ()) for number in range(len(asked))
                ]
            streams.begin(0)
            alone = [_seconds(streams, each) for each in asked[: rounds + 1]][1:]
            streams.begin(rows)
            found = [streams.disturb(each) for each in asked[rounds + 1 :]][1:]
            gaps = [
                sorted(chain(*each)) for each in zip(*((one.before, one.tokenizing, one.after) for one in found), strict=True)
            ]
            cells = [max(each.missed for each in found), *map(_spread, gaps), _ms([each.first for each in found]), _ms(alone)]
            yield [f"{images}, {name}", _ms([each.step for each in found]), *cells]


def _seconds(streams: Streams, prompt: Any) -> float:
    began = time.perf_counter()
    return streams.first_token(prompt)[1] - began


def _spread(gaps: list[float]) -> str:
    """Median, 99th percentile and maximum."""
    places = (int(len(gaps) * share) for share in (0.5, 0.99))
    return " / ".join(f"{gap:.1f}" for gap in (*(gaps[place] for place in places), gaps[-1])) if gaps else ""


def _ms(seconds: list[float]) -> str:
    return f"{median(seconds) * 1e3:.0f}"


def main() -> None:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(
        prog="bench.images", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--streams", type=int, default=8)
    options = parser.parse_args()
    streams = Streams(make(), options.streams)
    settle()
    head = ["images", "step, ms", "missed", "gaps before", "gaps while tokenized", "gaps after", "first token, ms", "alone, ms"]
    print(table(head, lines(streams, options.rounds, options.streams)))
    streams.media.close()


def _quiet(what: str, done: int, total: int, unit: str) -> None:
    pass


if __name__ == "__main__":
    main()
