"""What is known of one setting besides its default: it stands in the metadata of a field of `Settings`."""

from __future__ import annotations

from dataclasses import Field, dataclass, field
from enum import Enum, Flag, auto
from typing import Any

from tgi_core.errors import StartupError

_KEY = "setting"


class Effect(Enum):
    """What the server does with a value that differs from the default."""

    HONOURED = "honoured"
    IGNORED = "ignored"
    """Nothing, and a line at start says so: answers are the same without it."""
    REFUSED = "refused"
    """It does not start: without the setting the answers would be others than those asked for."""


class Scope(Flag):
    """The commands besides `tgi serve`, which has them all, that take a setting."""

    SERVE = 0
    """None."""
    ROUTER = auto()
    SHARD = auto()
    DOWNLOAD = auto()


@dataclass(frozen=True, slots=True)
class Setting:
    """A setting's help, place, limits and effect. Bounds are inclusive."""

    help: str
    group: str
    minimum: float | None = None
    maximum: float | None = None
    choices: tuple[str, ...] = ()
    short: str | None = None
    secret: bool = False
    """Never shown."""
    hidden: bool = False
    """Not in the help."""
    old_names: tuple[str, ...] = ()
    """Names that TGI gave it earlier; each is a flag and an environment variable too."""
    variables: tuple[str, ...] = ()
    """Environment variables besides the one of its name."""
    scope: Scope = Scope.ROUTER
    effect: Effect = Effect.HONOURED
    reason: str = ""
    """Why it is ignored or refused."""
    harmless: tuple[object, ...] = ()
    """Values besides the default that ask for nothing."""


def setting(default: Any, help: str, group: str, **rest: Any) -> Any:
    """A field of `Settings` that is honoured; `rest` are fields of `Setting`."""
    return field(default=default, metadata={_KEY: Setting(help, group, **rest)})


def ignored(default: Any, help: str, group: str, reason: str, **rest: Any) -> Any:
    """A field that is accepted and has no effect."""
    return setting(default, help, group, effect=Effect.IGNORED, reason=reason, **rest)


def refused(default: Any, help: str, group: str, reason: str, **rest: Any) -> Any:
    """A field of which only the default, and what is as harmless, is accepted."""
    return setting(default, help, group, effect=Effect.REFUSED, reason=reason, **rest)


def setting_of(spec: Field[Any]) -> Setting:
    """What the field of `Settings` says of itself."""
    found: Setting = spec.metadata[_KEY]
    return found


def flag(name: str) -> str:
    """The flag of a setting: `--kebab-case`."""
    return "--" + name.replace("_", "-")


def environment_variable(name: str) -> str:
    """The environment variable of a setting: upper snake case, as in TGI."""
    return name.upper()


def check_bounds(spec: Field[Any], value: object) -> None:
    """Raise StartupError when a value breaks its setting's bounds or choices."""
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
    """Raise StartupError for a key or token that opens to all, or that no client can send. The secret is not in the message."""
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
    """Not a number is in no range."""
    return (low is None or value >= low) and (high is None or value <= high)


def _range_text(low: float | None, high: float | None) -> str:
    if low is not None and high is not None:
        return f"from {low} to {high}"
    return f"at least {low}" if low is not None else f"at most {high}"
