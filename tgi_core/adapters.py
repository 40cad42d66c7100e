"""Names of LoRA adapters and the parser of `--lora-adapters`.

An adapter name from a client is only a key into the table of loaded adapters; it never becomes part of a path or URL.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from tgi_core.errors import StartupError

MAX_NAME = 256
"""Maximum length of a name, in characters."""

RESERVED = "tgi"
"""TGI's alias for the base model."""

_OWN_NAME = re.compile(r"[A-Za-z0-9][\w.+:/-]*", re.ASCII)


@dataclass(frozen=True, slots=True)
class AdapterSource:
    """One item of the list. `model` is a directory or a Hub id; `str` returns the original item."""

    name: str
    model: str
    revision: str | None = None

    def __str__(self) -> str:
        place = self.model if self.revision is None else f"{self.model}@{self.revision}"
        return place if self.name == self.model else f"{self.name}={place}"


def parse_adapters(text: str | None) -> tuple[AdapterSource, ...]:
    """Parse comma-separated HUB_ID, HUB_ID@REVISION, NAME=PATH or NAME=HUB_ID@REVISION. Raises StartupError."""
    found: dict[str, AdapterSource] = {}
    for item in filter(None, map(str.strip, (text or "").split(","))):
        source = _parse(item)
        if source.name in found:
            raise StartupError(f"--lora-adapters {item}: {source.name} is used twice; choose another NAME= for one of them")
        found[source.name] = source
    return tuple(found.values())


def can_be_name(text: str) -> bool:
    """Whether text is a valid adapter name: not an absolute path, no `.` or `..` component, printable, not too long."""
    if not text or len(text) > MAX_NAME or not text.isprintable() or text[0] in "/\\~":
        return False
    return not {".", ".."} & set(re.split(r"[/\\]", text))


def _parse(item: str) -> AdapterSource:
    name, equals, place = item.rpartition("=")
    model, at, revision = place.partition("@")
    if "=" in name or "@" in revision or not model or (equals and not name) or (at and not revision):
        raise StartupError(f"--lora-adapters {item}: must be HUB_ID, HUB_ID@REVISION or NAME=PATH, separated by commas")
    name = name if equals else model
    if not _OWN_NAME.fullmatch(name) or not can_be_name(name):
        raise StartupError(f"--lora-adapters {item}: {name[:60]!r} cannot be the name of an adapter; use NAME={place}")
    if name == RESERVED:
        raise StartupError(
            f"--lora-adapters {item}: {RESERVED} is reserved for the base model; choose another NAME= for the adapter"
        )
    return AdapterSource(name, model, revision if at else None)
