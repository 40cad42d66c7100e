"""Config files: TOML, JSON, or YAML if PyYAML is installed. Keys are setting names, with - or _."""

from __future__ import annotations

import difflib
import importlib
import json
import tomllib
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from tgi_core.errors import StartupError


def read_settings_file(path: Path, names: Collection[str]) -> dict[str, Any]:
    """Read a config file into values by setting name. `names` are the valid names. Raises StartupError that names file and key."""
    found: dict[str, Any] = {}
    for key, value in _parse(path).items():
        name = str(key).replace("-", "_")
        if name not in names:
            close = difflib.get_close_matches(name, names, n=1)
            raise StartupError(f"{path}: {key}: unknown setting" + (f"; did you mean {close[0]}?" if close else ""))
        if name in found:
            raise StartupError(f"{path}: {name}: is set twice")
        if isinstance(value, dict):
            raise StartupError(f"{path}: {key}: is a table; settings must not be nested")
        found[name] = value
    return {name: value for name, value in found.items() if value is not None}


def _parse(path: Path) -> dict[Any, Any]:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise StartupError(f"--config {path}: cannot be read: {getattr(error, 'strerror', None) or error}") from error
    try:
        parse: Callable[[str], Any] = _PARSERS.get(path.suffix.lower(), tomllib.loads)
        value = parse(text)
    except ValueError as error:
        raise StartupError(f"--config {path}: {' '.join(str(error).split())}") from error
    if not isinstance(value, dict):
        raise StartupError(f"--config {path}: contains {type(value).__name__}, expected a table of settings")
    return value


def _yaml(text: str) -> Any:
    try:
        yaml: Any = importlib.import_module("yaml")
    except ImportError as error:
        raise ValueError("reading YAML needs PyYAML; run pip install pyyaml, or use TOML") from error
    try:
        return yaml.safe_load(text) or {}
    except yaml.YAMLError as error:
        raise ValueError(f"invalid YAML: {error}") from error


_PARSERS: dict[str, Callable[[str], Any]] = {".json": json.loads, ".yaml": _yaml, ".yml": _yaml, ".toml": tomllib.loads}
