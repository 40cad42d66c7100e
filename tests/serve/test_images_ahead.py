"""Images over HTTP are encoded before the steps that need them, and in those steps otherwise."""

from __future__ import annotations

import asyncio
import threading
from base64 import b64encode
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from tgi_backend_cpu import plugin
from tgi_router import Generator, ServedModel, create_app

from tests.engine.image_models import image, save_model
from tests.media.pictures import encoded
from tests.router.serving import Served, serving
from tgi_core.backend import OpenOptions, WarmupPlan
from tgi_core.backend.session import Session
from tgi_core.client.local import LocalShard
from tgi_core.config import Settings
from tgi_core.media.processing import MediaProcessing
from tgi_core.scheduler import SchedulerLoop, SchedulerOptions
from tgi_core.server.model_server import ModelServer
from tgi_core.wire.types import ShardInfo

PICTURES = tuple(encoded(image(seed)) for seed in (1, 2))


class Seeing:
    """A tiny LLaVA in this process. `threads` are those in which its vision tower has run, image by image."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        opened: Any = plugin.backend_open(OpenOptions(str(directory)), _quiet)
        self.runner, self._session = opened.runner, Session(opened, "cpu")
        self.model, self.threads = ServedModel.load(directory, "llava", Settings()), list[str]()
        self.embeddings = self.runner.images.tower.kept
        self.runner.model.model.vision_tower.register_forward_pre_hook(self._note, with_kwargs=True)
        self.broken = False

    @asynccontextmanager
    async def opening(self) -> AsyncIterator[Generator]:
        """A scheduler's loop on it, whose steps need all images of a prompt."""
        info = ShardInfo("llava", "cpu", "cpu", "float32", (1, 10), self._session.capabilities())
        shard = LocalShard(ModelServer(self._session, self.model.tokenizer, info, media=MediaProcessing(self._directory)))
        capacity = await shard.warmup(WarmupPlan(max_rows=8, max_row_tokens=256, max_step_tokens=256), _quiet)
        loop = SchedulerLoop(shard, info, capacity, options=SchedulerOptions(prefix_caching=False))
        running = asyncio.create_task(loop.run())
        try:
            yield loop
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            await shard.close()

    def _note(self, module: torch.nn.Module, args: Any, kwargs: Any) -> None:
        self.threads.append(threading.current_thread().name.partition("_")[0])
        if self.broken:
            raise RuntimeError("the tower has fallen")


@pytest.fixture(scope="module")
def seeing(tmp_path_factory: pytest.TempPathFactory) -> Seeing:
    """One model for all tests."""
    return Seeing(save_model("llava", tmp_path_factory.mktemp("images") / "llava"))


@pytest.fixture(scope="module")
def served(seeing: Seeing) -> Iterator[Served]:
    """Its server."""
    with serving(lambda made: create_app(Settings(), seeing.model, made), seeing.opening) as served:
        yield served


def ask(served: Served, *images: bytes, words: str = "What is it?") -> httpx.Response:
    """A prompt with images."""
    shown = "".join(f"![](data:image/png;base64,{b64encode(data).decode()})" for data in images)
    return served.client.post("/generate", json={"inputs": shown + words, "parameters": {"max_new_tokens": 20}})


def said(answer: httpx.Response) -> str:
    """Its text."""
    assert answer.status_code == 200, answer.text
    text: str = answer.json()["generated_text"]
    return text


def test_a_step_finds_images_encoded(seeing: Seeing, served: Served) -> None:
    """The tower runs once per image, in a thread beside that of the steps, and not again for the same image."""
    seeing.threads.clear()
    seeing.embeddings.clear()
    said(ask(served, *PICTURES))
    said(ask(served, PICTURES[1], words="And this?"))
    assert seeing.threads == ["encoding", "encoding"]


def test_a_step_encodes_what_was_evicted(seeing: Seeing, served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """With room for the embeddings of one image, a prompt with two gets the same answer."""
    expected = said(ask(served, *PICTURES))
    seeing.threads.clear()
    seeing.embeddings.clear()
    monkeypatch.setattr(seeing.embeddings, "most_bytes", 1)
    assert said(ask(served, *PICTURES)) == expected
    assert seeing.threads[:2] == ["encoding", "encoding"] and "shard" in seeing.threads


def test_a_tower_that_fails(seeing: Seeing, served: Served) -> None:
    """It fails the requests whose images it does not encode, and no other."""
    expected = [said(ask(served, *shown, words="Go on")) for shown in ((), PICTURES[:1])]
    seeing.broken = True
    with ThreadPoolExecutor(3) as pool:
        asked = [pool.submit(ask, served, *shown, words="Go on") for shown in ((), PICTURES[:1], (encoded(image(9)),))]
        *good, bad = [each.result() for each in asked]
    seeing.broken = False
    assert [said(each) for each in good] == expected
    assert bad.status_code == 422 and "the tower has fallen" in bad.json()["error"]
    assert said(ask(served, encoded(image(9)), words="Go on"))


def _quiet(what: str, done: int, total: int, unit: str) -> None:
    pass
