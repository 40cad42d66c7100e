"""A worker process that decodes the images of clients and runs the model's processor; `tgi_core.media.processing` runs it as a script.

A damaged image can crash a decoder or need much memory: here, that fails only its request.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from tgi_core.media.decoding import decode_image
from tgi_core.media.errors import ImageRejected
from tgi_core.media.messages import Answer, Job
from tgi_core.media.processor import LOOKED_AT, MediaProcessor
from tgi_core.workers.priority import LOW
from tgi_core.workers.serving import serve

SECONDS = 60.0
"""Limit of CPU time per prompt, in seconds."""
MEMORY_BYTES = 12 << 30
"""Limit of the process's address space, in bytes, of which the libraries take half without using it."""


def process(processor: MediaProcessor, job: Job) -> Answer:
    """The features of a job's images, and the token ids of its text, if it has one."""
    try:
        images = []
        for number, data in enumerate(job.images, 1):
            try:
                images.append(decode_image(data))
            except ImageRejected as error:
                raise ImageRejected(f"image {number}: {error}") from None
        features = tuple(map(processor.features, images))
        items = tuple(each.to_bytes() for each in features)
        if not job.texts:
            return Answer((), (), items)
        ids = processor.ids(_joined(job.texts, len(images), processor), images, job.special)
        spans = _spans(ids, processor.placeholder_id, [each.tokens for each in features])
        if any(LOOKED_AT in each.tensors for each in features):
            spans = ((0, len(ids)),) * len(spans)  # also tokens before an image attend to it
        return Answer(ids, spans, items)
    except ImageRejected as error:
        return Answer((), (), (), str(error))
    except MemoryError:
        return Answer((), (), (), "the images need too much memory")


def _joined(texts: Sequence[str], count: int, processor: MediaProcessor) -> str:
    """The text with a placeholder per image: between its parts, or already in it. Raises ImageRejected."""
    text = processor.inline.join(texts) if len(texts) == count + 1 else "".join(texts)
    found = text.count(processor.placeholder)
    if found != count:
        raise ImageRejected(
            f"the prompt has {found} times {processor.placeholder!r} for {count} images; it must appear once per image"
        )
    return text


def _spans(ids: Sequence[int], placeholder_id: int, counts: Sequence[int]) -> tuple[tuple[int, int], ...]:
    """Where each image's placeholders begin and end. Raises ImageRejected."""
    places = [place for place, id in enumerate(ids) if id == placeholder_id]
    if len(places) != sum(counts):
        raise ImageRejected(f"the processor makes {len(places)} tokens of the images together, {sum(counts)} of each alone")
    spans, begun = [], 0
    for count in counts:
        spans.append((places[begun], places[begun + count - 1] + 1))
        begun += count
    return tuple(spans)


def main(directory: Path) -> None:
    """Serve jobs."""
    os.nice(LOW)
    processor = MediaProcessor(directory)
    serve(lambda request: process(processor, Job.from_bytes(request)).to_bytes(), SECONDS, MEMORY_BYTES)


if __name__ == "__main__":
    main(Path(sys.argv[2]))
