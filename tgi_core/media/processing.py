"""A shard's images: worker processes turn prompts with images into token ids and features, which are kept for the steps that follow."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from tgi_core.media.cache import BoundedCache
from tgi_core.media.digest import image_digest
from tgi_core.media.errors import ImageRejected, MediaBusy
from tgi_core.media.messages import Answer, Job
from tgi_core.media.prompts import MultimodalPrompt, PromptTokens
from tgi_core.workers.command import python
from tgi_core.workers.pool import PoolBusy, TooCostly, WorkerCrashed, WorkerLost, WorkerPool
from tgi_core.workers.priority import LOWEST, thread_gives_way
from tgi_core.workers.semaphore import LimitedSemaphore

T = TypeVar("T")

KEPT_BYTES = 512 << 20
"""Size of the features that are kept, in bytes."""

MOST_PROMPTS = 64
"""Maximum number of prompts that are tokenized at once, and whose images are encoded."""

_WORKERS, _WAIT_S = 2, 30.0
_CHILD = Path(__file__).with_name("processor_child.py")


class MediaProcessing:
    """The processor of one model, in worker processes. Thread-safe."""

    def __init__(self, directory: Path, kept_bytes: int = KEPT_BYTES) -> None:
        self._loop = asyncio.new_event_loop()
        self._pool = WorkerPool(python(_CHILD), [str(directory)], size=_WORKERS, waiting=MOST_PROMPTS, wait_s=_WAIT_S)
        self._lock = threading.Lock()
        self._kept = BoundedCache[bytes](kept_bytes, len)
        self._prompts = 0
        self._encode: Callable[[bytes], object] | None = None
        self._encoding = ThreadPoolExecutor(1, "encoding", initializer=partial(thread_gives_way, LOWEST))
        self._turn = LimitedSemaphore(1, MOST_PROMPTS, _WAIT_S)
        self._thread = threading.Thread(target=self._run, name="media", daemon=True)
        self._thread.start()
        self._submit(self._start())

    def encode_ahead(self, encode: Callable[[bytes], object]) -> None:
        """Call `encode` with the item of each image before its prompt is answered: one after another, prompts by turns, in a thread of low
        priority. It may raise ImageRejected."""
        self._encode = encode

    def tokenize(self, prompt: MultimodalPrompt) -> Future[PromptTokens]:
        """The token ids of a prompt; keeps the features of its images, and encodes them. To cancel the future ends that after the image
        that is encoded now. It raises ImageRejected, MediaBusy, and what encoding raises."""
        return self._submit(self._tokenize(prompt))

    def features(self, images: Sequence[bytes]) -> tuple[bytes, ...]:
        """The items of `Request.media` of some images, at once where they are kept. Waits otherwise. Raises ImageRejected, MediaBusy."""
        found = [self._find(image) for image in images]
        missing = tuple({image: None for image, item in zip(images, found, strict=True) if item is None})
        made = self._submit(self._ask(Job((), False, missing))).result().items if missing else ()
        by_image = dict(zip(missing, made, strict=True))
        return tuple(by_image[image] if item is None else item for image, item in zip(images, found, strict=True))

    def close(self) -> None:
        """End the worker processes. Idempotent."""
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._encoding.shutdown(cancel_futures=True)

    def _run(self) -> None:
        """Run the event loop until it is stopped, and end what still runs on it."""
        self._loop.run_forever()
        self._loop.run_until_complete(self._end())
        self._loop.close()

    async def _end(self) -> None:
        self._pool.close()
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        try:
            return asyncio.run_coroutine_threadsafe(work, self._loop)
        except RuntimeError:  # closed
            work.close()
            raise MediaBusy from None

    async def _start(self) -> None:
        """Start a worker before the first image: it takes seconds to import transformers. An error shows again with that image."""
        with suppress(ImageRejected, MediaBusy):
            await self._ask(Job((), False, ()))

    async def _tokenize(self, prompt: MultimodalPrompt) -> PromptTokens:
        if self._prompts >= MOST_PROMPTS:
            raise MediaBusy
        self._prompts += 1
        try:
            answer = await self._ask(Job(prompt.texts, prompt.special, prompt.images))
            tokens = PromptTokens(answer.ids, answer.spans)
            del answer  # its items stay while they are kept, not while they wait
            for image in dict.fromkeys(prompt.images):
                await self._encode_kept(image)
            return tokens
        finally:
            self._prompts -= 1

    async def _encode_kept(self, image: bytes) -> None:
        """Encode an image, unless its item was evicted."""
        if self._encode is None:
            return
        if not await self._turn.acquire():
            raise MediaBusy
        try:
            if (item := self._find(image)) is not None:
                await self._loop.run_in_executor(self._encoding, self._encode, item)
        finally:
            self._turn.release()

    async def _ask(self, job: Job) -> Answer:
        try:
            answer = Answer.from_bytes(await self._pool.ask(job.to_bytes()))
        except TooCostly:
            raise ImageRejected("the images take too long to process") from None
        except WorkerCrashed:
            raise ImageRejected("the images need too much memory, or cannot be decoded") from None
        except (PoolBusy, WorkerLost):
            raise MediaBusy from None
        if answer.error:
            raise ImageRejected(answer.error)
        for image, item in zip(job.images, answer.items, strict=True):
            self._keep(image, item)
        return answer

    def _find(self, image: bytes) -> bytes | None:
        with self._lock:
            return self._kept.find(image_digest(image))

    def _keep(self, image: bytes, item: bytes) -> None:
        with self._lock:
            self._kept.keep(image_digest(image), item)
