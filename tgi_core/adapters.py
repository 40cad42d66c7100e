"""LoRA adapters by name: TGI's list of them, and what a name may look like.

A name is a key of the table of loaded adapters and nothing else: no path, address or file is ever made from one that a client sends.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from tgi_core.errors import StartupError

MAX_NAME = 256
"""Characters of a name."""

RESERVED = "tgi"
"""TGI's word for the model itself, whatever it is called."""

_OWN_NAME = re.compile(r"[A-Za-z0-9][\w.+:/-]*", re.ASCII)


@dataclass(frozen=True, slots=True)
class AdapterSource:
    """One item of the list. `model` is a directory or an id on the hub; `str` gives the item back."""

    name: str
    model: str
    revision: str | None = None

    def __str__(self) -> str:
        place = self.model if self.revision is None else f"{self.model}@{self.revision}"
        return place if self.name == self.model else f"{self.name}={place}"


def parse_adapters(text: str | None) -> tuple[AdapterSource, ...]:
    """HUB_ID, HUB_ID@REVISION, NAME=PATH or NAME=HUB_ID@REVISION, separated by commas. Raises StartupError."""
    found: dict[str, AdapterSource] = {}
    for item in filter(None, map(str.strip, (text or "").split(","))):
        source = _parse(item)
        if source.name in found:
            raise StartupError(f"--lora-adapters {item}: {source.name} is used twice; choose another NAME= for one of them")
        found[source.name] = source
    return tuple(found.values())


def can_be_name(text: str) -> bool:
    """Whether an adapter might be called so: no path out of a folder or from a root, no control characters, not too long."""
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
        raise StartupError(f"--lora-adapters {item}: {name[:60]!r} cannot be the name of an adapter; give NAME={place}")
    if name == RESERVED:
        raise StartupError(
            f"--lora-adapters {item}: {RESERVED} is the name of the model itself; choose another NAME= for the adapter"
        )
    return AdapterSource(name, model, revision if at else None)
