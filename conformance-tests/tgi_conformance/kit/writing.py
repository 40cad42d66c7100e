"""A copy of the template under a vendor's name."""

from __future__ import annotations

import re
from pathlib import Path

TEMPLATE = Path(__file__).with_name("template")
NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
LONGEST = 24
TAKEN = frozenset({"auto", "core", "conformance", "mutant", "mydevice", "none", "reference"})
"""Names that mean something else to the server or the suite."""

_ELSEWHERE = {"ci.yml": ".github/workflows/conformance.yml", "gitignore": ".gitignore"}
"""Final names of template files that are stored under names that this repository's tools ignore."""


class CannotWrite(ValueError):
    """The name or the folder cannot be used; the message is one line that says why."""


def new_backend(name: str, folder: Path) -> list[Path]:
    """Write the package `tgi-backend-<name>` into `folder`, which must not exist or be empty. Return its files. Raises CannotWrite."""
    check_name(name)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise CannotWrite(f"{folder}: exists already, and nothing is overwritten; choose another folder with --out")
    try:
        return [_write(path, name, folder) for path in sources()]
    except OSError as error:
        raise CannotWrite(f"{error.filename or folder}: {error.strerror}") from error


def check_name(name: str) -> None:
    """Raises CannotWrite."""
    if not NAME.fullmatch(name) or len(name) > LONGEST:
        raise CannotWrite(f"NAME {name!r}: up to {LONGEST} lowercase letters, digits and single hyphens, beginning with a letter")
    if name in TAKEN:
        raise CannotWrite(f"NAME {name}: is taken; it means something else to the server or the suite")


def sources() -> list[Path]:
    """The template's files, without those that tools have added."""
    found = [*TEMPLATE.glob("*"), *TEMPLATE.glob("*/*.py")]
    return sorted(path for path in found if path.is_file() and not path.name.startswith("."))


def renamed(text: str, name: str) -> str:
    """`mydevice` becomes the name; in a module's name hyphens become underscores."""
    return text.replace("tgi_backend_mydevice", f"tgi_backend_{name.replace('-', '_')}").replace("mydevice", name)


def _write(source: Path, name: str, folder: Path) -> Path:
    inside = str(source.relative_to(TEMPLATE))
    target = folder / _ELSEWHERE.get(inside, renamed(inside, name))
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.open("x", encoding="utf-8") as file:
        file.write(renamed(source.read_text(encoding="utf-8"), name))
    return target
