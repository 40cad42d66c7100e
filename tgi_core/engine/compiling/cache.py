"""Where compiled programs are kept between starts: a directory for all programs with the same dependencies, and a manifest that names
them, so that a start that has to compile again can say why."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tgi_core.backend import Unsupported

_log = logging.getLogger("tgi_core.engine")

MANIFEST = "manifest.json"
_KEPT = "programs"


@dataclass(frozen=True, slots=True)
class CompileCache:
    """The programs that depend on `fields`, in a directory of their own under `root`."""

    root: Path
    fields: Mapping[str, str]

    @property
    def directory(self) -> Path:
        """Where the compiler keeps the programs."""
        key = json.dumps(dict(self.fields), sort_keys=True)
        return self.root / hashlib.sha256(key.encode()).hexdigest()[:24]

    def open(self) -> Path:
        """Make the directory, and log what is in it. Raises Unsupported if it cannot be written."""
        kept = _read(self.directory / MANIFEST)
        if kept is not None:
            _log.info("compile cache: %d programs of an earlier start in %s", len(kept.get(_KEPT, ())), self.directory)
        elif why := self.missed():
            _log.info("compile cache: %s holds no programs for this start: %s", self.root, why)
        try:
            self.directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            raise Unsupported(
                f"--compile-cache {self.root}: cannot be written: {error.strerror}; name another directory"
            ) from error
        return self.directory

    def missed(self) -> str:
        """How the programs of the most similar earlier start differ from what is needed now; empty if there are none."""
        found = [kept["fields"] for path in sorted(self.root.glob(f"*/{MANIFEST}")) if (kept := _read(path)) is not None]
        if not found:
            return ""
        changes = sorted((self._changes(fields) for fields in found), key=len)
        return "changed: " + ", ".join(changes[0])

    def folder(self, programs: Sequence[str], make: Callable[[Path], None]) -> tuple[Path, bool]:
        """The folder in the directory that a compiler wrote as a whole, and whether `make` had to create it now."""
        kept = self.open() / "model"
        if kept.exists() and _read(self.directory / MANIFEST) is not None:
            return kept, False
        part = kept.with_name(f"model.{os.getpid()}")
        make(part)
        shutil.rmtree(kept, ignore_errors=True)
        part.rename(kept)
        self.write(programs)
        return kept, True

    def write(self, programs: Sequence[str]) -> None:
        """Name the programs that are there now; readers see the old manifest or the new one."""
        path = self.directory / MANIFEST
        part = path.with_suffix(f".{os.getpid()}")
        try:
            part.write_text(json.dumps({"fields": dict(self.fields), _KEPT: list(programs)}, indent=1), encoding="utf-8")
            part.replace(path)
        except OSError as error:
            _log.warning("compile cache: %s cannot be written: %s; the next start may compile again", path, error.strerror)

    def _changes(self, before: Mapping[str, str]) -> list[str]:
        names = sorted(self.fields.keys() | before.keys())
        return [
            f"{name} (was {before.get(name, 'not there')}, is {self.fields.get(name, 'not there')})"
            for name in names
            if self.fields.get(name) != before.get(name)
        ]


def _read(path: Path) -> dict | None:
    """A manifest; None if it is missing or damaged."""
    try:
        kept = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return kept if isinstance(kept, dict) and isinstance(kept.get("fields"), dict) else None
