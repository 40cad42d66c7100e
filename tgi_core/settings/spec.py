"""Properties of a setting besides its default, stored in the metadata of its field in `Settings`."""

from __future__ import annotations

from dataclasses import Field, dataclass, field
from enum import Enum, Flag, auto
from typing import Any

from tgi_core.errors import StartupError

_KEY = "setting"


class Effect(Enum):
    """How the server treats a value that differs from the default."""

    HONOURED = "honoured"
    IGNORED = "ignored"
    """Logs a warning at startup. Results are the same without the setting."""


class Scope(Flag):
    """Commands that accept a setting, besides `tgi serve`, which accepts all."""

    SERVE = 0
    """No other command."""
    ROUTER = auto()
    SHARD = auto()
    DOWNLOAD = auto()


@dataclass(frozen=True, slots=True)
class Setting:
    """Help, group, bounds (inclusive) and effect of a setting."""

    help: str
    group: str
    minimum: float | None = None
    maximum: float | None = None
    choices: tuple[str, ...] = ()
    short: str | None = None
    secret: bool = False
    """Never printed or logged."""
    hidden: bool = False
    """Not shown in the help."""
    old_names: tuple[str, ...] = ()
    """TGI's earlier names; each is also accepted as a flag and an environment variable."""
    variables: tuple[str, ...] = ()
    """Additional environment variables."""
    scope: Scope = Scope.ROUTER
    effect: Effect = Effect.HONOURED
    reason: str = ""
    """Why the setting is ignored."""


def setting(default: Any, help: str, group: str, **rest: Any) -> Any:
    """Define an honoured field of `Settings`; `rest` are fields of `Setting`."""
    return field(default=default, metadata={_KEY: Setting(help, group, **rest)})


def ignored(default: Any, help: str, group: str, reason: str, **rest: Any) -> Any:
    """Define a field that is accepted but has no effect."""
    return setting(default, help, group, effect=Effect.IGNORED, reason=reason, **rest)


def setting_of(spec: Field[Any]) -> Setting:
    """Return the properties of a field of `Settings`."""
    found: Setting = spec.metadata[_KEY]
    return found


def flag(name: str) -> str:
    """Flag of a setting: `--kebab-case`."""
    return "--" + name.replace("_", "-")


def environment_variable(name: str) -> str:
    """Environment variable of a setting: upper snake case, as in TGI."""
    return name.upper()


def check_bounds(spec: Field[Any], value: object) -> None:
    """Check a value against its setting's bounds and choices. Raises StartupError."""
    known = setting_of(spec)
    low, high = known.minimum, known.maximum
    if value is None:
        return
    for text in value if isinstance(value, tuple) else (value,):
        if isinstance(text, str):
            _check_text(spec, text)
    if known.choices and value not in known.choices:
        raise StartupError(f"{flag(spec.name)} {value}: choose from {', '.join(known.choices)}")
    if isinstance(value, int | float) and not _within(value, low, high):
        raise StartupError(f"{flag(spec.name)} {value}: must be {_range_text(low, high)}")


def check_secret(name: str, secret: str) -> None:
    """Check that a key or token is not empty and can be sent in a header. Raises StartupError without the secret in the message."""
    if not secret.strip():
        raise StartupError(f"{name}: is empty and would protect nothing; set a secret or leave it unset")
    if secret != secret.strip() or not secret.isprintable():
        raise StartupError(
            f"{name}: must not start or end with a space, or contain a line break or other characters that are invalid in an HTTP header"
        )


def _check_text(spec: Field[Any], text: str) -> None:
    if setting_of(spec).secret:
        check_secret(flag(spec.name), text)
    elif not text.strip():
        raise StartupError(f"{flag(spec.name)}: is empty; give a value or remove it")


def _within(value: float, low: float | None, high: float | None) -> bool:
    """Whether a value is in a range; false for NaN."""
    return (low is None or value >= low) and (high is None or value <= high)


def _range_text(low: float | None, high: float | None) -> str:
    if low is not None and high is not None:
        return f"from {low} to {high}"
    return f"at least {low}" if low is not None else f"at most {high}"
