"""Fixtures of the router's tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import pytest
from tgi_router import ServedModel, create_app

from tests.router.scripted import Script, ScriptedGenerator, says
from tests.router.serving import Served, already, serving
from tgi_core.config import Settings
from tgi_core.model_files import DEMO

Serve = Callable[..., tuple[Served, ScriptedGenerator]]


@pytest.fixture(scope="session")
def model() -> ServedModel:
    """The bundled model's tokenizer and template, under a name of the tests."""
    return ServedModel.load(DEMO, "demo", Settings())


@pytest.fixture
def serve(model: ServedModel) -> Iterator[Serve]:
    """Starts servers on a scripted generator: a script, `changes` of the model, what the generator takes, settings."""
    with ExitStack() as stack:

        def start(script: Script | None = None, *, changes: Any = None, scripted: Any = None, **settings: Any) -> Any:
            generator = ScriptedGenerator(script or (lambda request: says("Hello", " world")), **(scripted or {}))
            served, chosen = replace(model, **(changes or {})), Settings(**settings)
            served_app = serving(lambda made: create_app(chosen, served, made), already(generator), chosen)
            return stack.enter_context(served_app), generator

        yield start


@pytest.fixture(scope="module")
def hello(model: ServedModel) -> Iterator[Served]:
    """A server that always says hello; for tests that leave nothing behind."""
    generator = ScriptedGenerator(lambda request: says("Hello", " world"))
    with serving(lambda made: create_app(Settings(), model, made), already(generator)) as served:
        yield served
