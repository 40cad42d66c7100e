"""Directories of links to the files of two others."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from tgi_core.errors import StartupError
from tgi_core.hub.selection import INDEX, small_files


def link_together(target: Path, small: Path, weights: Path) -> Path:
    """Atomically create `target` with links to the small files of one directory and the safetensors of another. Raises
    StartupError."""
    names = [str(path.relative_to(small)) for path in small.rglob("*") if path.is_file()]
    files = {name: small / name for name in small_files(names) if name != INDEX}
    files |= {path.name: path for path in weights.iterdir() if path.suffix == ".safetensors" or path.name == INDEX}
    wanted = {name: str(path.resolve()) for name, path in files.items()}
    if _links(target) == wanted:
        return target
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=".new-") as folder:
            _build(Path(folder) / "new", wanted)
            if target.exists():
                target.rename(Path(folder) / "old")
            (Path(folder) / "new").rename(target)
    except OSError as error:
        if _links(target) != wanted:  # another server may have created it concurrently
            raise StartupError(f"{target}: cannot create: {error.strerror}") from error
    return target


def _links(directory: Path) -> dict[str, str]:
    paths = [path for path in directory.rglob("*") if path.is_symlink()] if directory.is_dir() else []
    return {str(path.relative_to(directory)): os.readlink(path) for path in paths}


def _build(directory: Path, wanted: dict[str, str]) -> None:
    for name, path in wanted.items():
        link = directory / name
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(path)
