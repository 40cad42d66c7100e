"""Trial of a model's tokenizer in a child process with limits on CPU time and memory.

The tokenizers library has no limits: a file of a few kilobytes can turn a word into gigabytes, and its panics are not `Exception`s.
A tokenizer that exceeds the limits or crashes the child is rejected.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

from tgi_core.errors import StartupError
from tgi_core.tokenizer_file import fault, less, read_fast, strays
from tgi_core.workers.command import ONE_THREAD, python
from tgi_core.workers.serving import bound_memory

SECONDS = 30.0
"""CPU time limit of the trial, in seconds; a vocabulary of 262,144 tokens takes less than two."""
MEMORY_BYTES = 4 * 2**30
"""Address space limit of the child, in bytes."""
MAX_FILE_BYTES = 256 * 2**20
"""Maximum file size in bytes; the largest known files have 40 MB."""
_WALL_SECONDS = 300.0
_LONGEST = 300


def try_tokenizer(file: Path, vocab_size: int | None) -> None:
    """Check that a tokenizer can serve a model with `vocab_size` tokens. Blocks. Raises StartupError."""
    if file.stat().st_size > MAX_FILE_BYTES:
        raise StartupError(f"{file}: has {file.stat().st_size} bytes; the limit for a tokenizer is {MAX_FILE_BYTES}")
    command = python("tgi_core.tokenizer_trial", file, "" if vocab_size is None else vocab_size)
    try:
        child = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=os.environ | ONE_THREAD,
            timeout=_WALL_SECONDS,
            start_new_session=True,
            check=False,
        )
        answer = child.stdout
    except subprocess.TimeoutExpired:
        answer = b""
    if not answer:
        raise StartupError(
            f"{file}: takes more than {SECONDS:.0f} s of CPU time or {MEMORY_BYTES >> 30} GiB of memory to load or to use"
        )
    if found := json.loads(answer):
        raise StartupError(f"{file}: {found}")


def _try(file: Path, vocab_size: int | None) -> str:
    try:
        fast = read_fast(file)
        if few := strays(fast, vocab_size):
            fast = less(fast, few)
        return fault(fast, vocab_size)
    except BaseException as error:  # noqa: BLE001  the library raises bare Exceptions, and panics derive from BaseException
        return f"not a tokenizer: {' '.join(str(error).split())[:_LONGEST]}"


def _main(file: str, vocab_size: str) -> None:
    """Entry point of the child. The timer's signal has no handler, so it terminates the child."""
    bound_memory(MEMORY_BYTES)
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    sys.stdout.write(json.dumps(_try(Path(file), int(vocab_size) if vocab_size else None)))


if __name__ == "__main__":
    _main(*sys.argv[1:])
