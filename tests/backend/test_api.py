"""The contract changes only on purpose: all hooks, fields and errors are held against a committed list."""

from __future__ import annotations

import dataclasses
import enum
import inspect
import json
import re
from pathlib import Path
from typing import Any

import pytest

from tgi_core.backend import errors, spec, types

GOLDEN = Path(__file__).with_name("api.json")
FROZEN = Path(__file__).with_name("frozen")
RENAMED = {"Want": "OutputOptions"}
"""Types that have another name now; the old one is an alias."""
REMOVED = {"Capacity": ("max_step_blocks", "shapes"), "Mixing": ("graph",)}
"""Fields and values that 1.2 took away: no core ever read them. No release held them, so the list grows no more."""


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


def arguments(signature: str) -> dict[str, str]:
    """Names and types of a hook's arguments, as the golden file has them."""
    inside = signature.partition("(")[2].rpartition(") ->")[0]
    return dict(item.split(": ", 1) for item in re.split(r", (?=\w+: )", inside.removeprefix("self").removeprefix(", ")) if item)


def without(fields: dict[str, str], gone: tuple[str, ...]) -> dict[str, str]:
    """The fields of a type but for some, in order."""
    return {name: kind for name, kind in fields.items() if name not in gone}


@pytest.mark.parametrize("path", sorted(FROZEN.glob("api_*.json")), ids=lambda path: path.stem)
def test_a_minor_only_adds(path: Path) -> None:
    """Beside every released minor of this major: no hook, argument, field, value or error is gone, moved or of another type."""
    text, now = path.read_text(), described()
    for old, new in RENAMED.items():
        assert getattr(types, old) is getattr(types, new)
        text = re.sub(rf"\b{old}\b", new, text)
    then = json.loads(text)
    for name, gone in REMOVED.items():
        kept = then["types"][name]
        then["types"][name] = [item for item in kept if item not in gone] if isinstance(kept, list) else without(kept, gone)
    assert then["version"][0] == now["version"][0] and then["version"] <= now["version"]
    for name, signature in then["hooks"].items():
        assert arguments(signature).items() <= arguments(now["hooks"][name]).items(), name
        assert signature.rpartition(" -> ")[2] == now["hooks"][name].rpartition(" -> ")[2], name
    for name, content in then["types"].items():
        if isinstance(content, list):
            assert set(content) <= set(now["types"][name]), name
        else:  # plugins may give fields by position, so new ones stand at the end
            assert list(content.items()) == list(now["types"][name].items())[: len(content)], name
    assert then["errors"].items() <= now["errors"].items()


@pytest.mark.parametrize("path", sorted(FROZEN.glob("api_*.json")), ids=lambda path: path.stem)
def test_what_a_minor_adds_has_a_default(path: Path) -> None:
    """A plugin of an older minor makes its values without the new fields."""
    for name, then in json.loads(path.read_text())["types"].items():
        if isinstance(then, dict):
            for field in dataclasses.fields(getattr(types, name))[len(without(then, REMOVED.get(name, ()))) :]:
                assert field.default is not dataclasses.MISSING, f"{name}.{field.name}"


def test_the_error_tree_is_in_the_docstring() -> None:
    """Every error stands in the tree of its module's docstring with its scope and the state it leaves."""
    assert errors.__doc__ is not None
    lines = [line.split() for line in errors.__doc__.splitlines()]
    for name, (scope, leaves) in described()["errors"].items():
        assert name == "BackendError" or [name, scope, leaves] in [line[-3:] for line in lines], name


if __name__ == "__main__":
    GOLDEN.write_text(json.dumps(described(), indent=1) + "\n")
