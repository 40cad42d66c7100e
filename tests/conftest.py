"""Fixtures that several folders of tests share."""

from __future__ import annotations

import pytest

from tgi_core.model_files import DEMO
from tgi_core.tokenizer import Tokenizer


@pytest.fixture(scope="session")
def demo_tokenizer() -> Tokenizer:
    """The tokenizer of the bundled model."""
    return Tokenizer.load(DEMO)
