"""Command line of a child shard."""

from __future__ import annotations

from dataclasses import fields

from tgi_core.config import Scope, Settings, flag, settings_in


def shard_flags(settings: Settings) -> list[str]:
    """Flags that pass this process's shard settings to a child. The caller adds the model."""
    flags: list[str] = []
    names = settings_in(Scope.SHARD) - {"model_id"}
    for spec in fields(Settings):
        value = getattr(settings, spec.name)
        if spec.name not in names or value is None:
            continue
        if isinstance(value, bool) and spec.default is not None:  # a switch; other flags take a value
            flags.append(flag(spec.name) if value else f"--no-{flag(spec.name)[2:]}")
        else:
            flags += [flag(spec.name), str(value)]
    return flags
