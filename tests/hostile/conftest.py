"""One instance for all cases: each leaves it as it was, which is what is tested."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tgi_router import ServedModel

from tests.hostile.server import ServerUnderTest, opened
from tests.hostile.watch import Canary, Watch
from tgi_core.config import Settings
from tgi_core.model_files import DEMO


@pytest.fixture(scope="session")
def watch() -> Watch:
    """The only one, since hooks stay."""
    return Watch()


@pytest.fixture(scope="session")
def model() -> ServedModel:
    """The bundled model's tokenizer and template."""
    return ServedModel.load(DEMO, "demo", Settings())


@pytest.fixture(scope="session")
def instance(model: ServedModel, watch: Watch) -> Iterator[ServerUnderTest]:
    """The server."""
    with opened(model, watch, {}) as running:
        yield running


@pytest.fixture
def canary(watch: Watch) -> Iterator[Canary]:
    """A listener to which nothing may connect."""
    made = Canary()
    yield made
    made.check_alone()
    made.close()


@pytest.fixture(autouse=True)
def unharmed(instance: ServerUnderTest) -> Iterator[None]:
    """After each case the server is as it was."""
    yield
    instance.check_unharmed()
