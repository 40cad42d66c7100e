"""One compiler for the demo model's tokenizer: its child process and its vocabulary are made once."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tgi_core.grammar.compiler import GrammarCompiler
from tgi_core.model_files import DEMO
from tgi_core.tokenizer import Tokenizer


@pytest.fixture(scope="session")
def compiler(demo_tokenizer: Tokenizer) -> Iterator[GrammarCompiler]:
    """A compiler that tests share; what it remembers of one changes nothing for another."""
    made = GrammarCompiler.for_model(DEMO, demo_tokenizer.eos_ids)
    assert made is not None
    yield made
    made.close()
