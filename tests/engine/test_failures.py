"""From what torch raises to the contract's errors."""

from __future__ import annotations

import importlib.util

import pytest
import torch

from tgi_core.backend import BackendBug
from tgi_core.engine import failures


def test_a_torch_without_the_error_of_accelerators(monkeypatch: pytest.MonkeyPatch) -> None:
    """A build of torch that has no `AcceleratorError` yet translates a step's failure all the same."""
    monkeypatch.delattr(torch, "AcceleratorError", raising=False)
    spec = importlib.util.spec_from_file_location("failures_without", failures.__file__)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert isinstance(module.translated(RuntimeError("no such operator")), BackendBug)
