"""Numbers in a config.json, checked."""

from __future__ import annotations

from typing import Any

from tgi_core.engine.decoder.unsupported import UnsupportedFamily


def read_count(config: dict[str, Any], *names: str) -> int:
    """The positive integer under the first of these names that the config has. Raises UnsupportedFamily."""
    value = next((config[name] for name in names if name in config), None)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise UnsupportedFamily(f"its config does not say {names[0]}")
    return value


def read_number(config: dict[str, Any], name: str, default: float | None = None) -> float:
    """The positive number of this name. Raises UnsupportedFamily."""
    value = config.get(name, default)
    if not isinstance(value, int | float) or isinstance(value, bool) or not value > 0:
        raise UnsupportedFamily(f"its {name} is {str(value)[:40]}")
    return float(value)
