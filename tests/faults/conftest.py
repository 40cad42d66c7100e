"""Servers that many tests poison, and what their requests make when nothing is wrong."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import cache

import pytest

from tests.faults.servers import Servers, mates
from tgi_core.grammar.compiler import GrammarCompiler
from tgi_core.model_files import DEMO
from tgi_core.tokenizer import Tokenizer

# A model this small gains nothing from threads, and threads that wait for each other on a busy machine lose much.
os.environ.setdefault("OMP_NUM_THREADS", "1")

CleanRun = Callable[[str], list[list[int]]]


@pytest.fixture(scope="session")
def servers(demo_tokenizer: Tokenizer) -> Iterator[Servers]:
    """Shards on the demo model."""
    compiler = GrammarCompiler.for_model(DEMO, demo_tokenizer.eos_ids)
    assert compiler is not None
    yield Servers(demo_tokenizer, compiler)
    compiler.close()


@pytest.fixture(scope="session")
def clean_run(servers: Servers) -> CleanRun:
    """The mates' tokens by kind of instance, without the poisoned one."""

    @cache
    def run(kind: str) -> list[list[int]]:
        instance = servers.open(kind)
        keys = [instance.scheduler.add(mate) for mate in mates()]
        instance.run()
        return [instance.tokens[key] for key in keys]

    return run
