"""Warnings for settings that have no effect."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import Field, fields
from typing import Any

from tgi_core.config import Settings
from tgi_core.settings.environment import VARIABLES
from tgi_core.settings.spec import Effect, flag, setting_of


def review(settings: Settings, environ: Mapping[str, str]) -> list[str]:
    """Return a warning per ignored setting or variable."""
    lines = []
    for spec in fields(settings):
        known, value = setting_of(spec), getattr(settings, spec.name)
        if known.effect is Effect.HONOURED or value == spec.default:
            continue
        lines.append(f"{shown(spec, value)} is ignored: {known.reason}")
    ignored = [variable for variable in VARIABLES if variable.ignored and environ.get(variable.name)]
    return lines + [f"{variable.name} is ignored: {variable.text}" for variable in ignored]


def shown(spec: Field[Any], value: object) -> str:
    """Format a setting as on the command line."""
    if isinstance(value, bool):
        return flag(spec.name) if spec.default is False else f"{flag(spec.name)} {str(value).lower()}"
    text = ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
    return f"{flag(spec.name)} {text}"
