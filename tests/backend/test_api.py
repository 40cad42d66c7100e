"""The contract changes only on purpose: all hooks, fields and errors are held against a committed list."""

from __future__ import annotations

import dataclasses
import enum
import inspect
import json
from pathlib import Path
from typing import Any

from tgi_core.backend import errors, spec, types

GOLDEN = Path(__file__).with_name("api.json")


def described() -> dict[str, Any]:
    """Everything that a backend can see, as plain values."""
    api: dict[str, Any] = {"version": list(types.API_VERSION), "hooks": {}, "types": {}, "errors": {}}
    for tier in (spec.PluginSpec, spec.SessionSpec):
        for name, hook in vars(tier).items():
            if hasattr(hook, "tgi_spec"):
                api["hooks"][name] = str(inspect.signature(hook))
    for name, kind in vars(types).items():
        if dataclasses.is_dataclass(kind):
            api["types"][name] = {field.name: str(field.type) for field in dataclasses.fields(kind)}
        elif isinstance(kind, enum.EnumMeta) and kind.__module__ == types.__name__:
            api["types"][name] = [member.value for member in kind]
    for name, kind in vars(errors).items():
        if isinstance(kind, type) and issubclass(kind, errors.BackendError):
            api["errors"][name] = [kind.scope.value, kind.leaves.value]
    return api


def test_the_contract_is_as_it_was_announced() -> None:
    """A difference means: raise API_VERSION, add a line to the changelog, and write the list anew (run this file)."""
    assert described() == json.loads(GOLDEN.read_text())


def test_the_error_tree_is_in_the_docstring() -> None:
    """Every error stands in the tree of its module's docstring with its scope and the state it leaves."""
    assert errors.__doc__ is not None
    lines = [line.split() for line in errors.__doc__.splitlines()]
    for name, (scope, leaves) in described()["errors"].items():
        assert name == "BackendError" or [name, scope, leaves] in [line[-3:] for line in lines], name


if __name__ == "__main__":
    GOLDEN.write_text(json.dumps(described(), indent=1) + "\n")
