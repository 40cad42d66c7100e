"""Resolving a model name to a local directory with all files."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path

from tgi_core.backend import Progress
from tgi_core.errors import StartupError
from tgi_core.gguf.directory import LAYOUT, gguf_directory, gguf_in
from tgi_core.hub.conversion import convert
from tgi_core.hub.links import link_together
from tgi_core.hub.newest import newest
from tgi_core.hub.remote import Listing, Remote
from tgi_core.hub.selection import ADAPTER, INDEX, MEDUSA, SINGLE, has_safetensors, pickle_files, shards, small_files

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9_][\w.-]*)?", re.ASCII)


@dataclass(frozen=True, slots=True)
class Source:
    """A model and the places where its files may be."""

    model: str
    """A directory, a GGUF file or a Hub id."""
    revision: str | None = None
    cache: Path | None = None
    """The Hub cache; None for huggingface_hub's default."""
    weights: Path | None = None
    """Directory with the weight files of a Hub model; converted files are written there too."""
    auto_convert: bool = False
    """Convert .bin files if there are no safetensors."""
    only_small: bool = False
    """Fetch only config, tokenizer and templates, without weights."""


def fetch(source: Source, show: Progress) -> Path:
    """Return the model's directory, downloading if needed; for a GGUF file, one that is made for it. A path needs no network, nor does a
    cached model with HF_HUB_OFFLINE set. Raises StartupError."""
    path = Path(source.model).expanduser()
    if (gguf := path if path.suffix == ".gguf" and path.is_file() else gguf_in(path)) is not None:
        return gguf_directory(gguf, own_cache(source.cache) / "gguf" / LAYOUT / fingerprint(gguf.parent, [gguf.name]))
    if path.is_dir():
        return _local(source, path, show)
    if path.exists():
        raise StartupError(f"model {source.model}: is a file; use its directory, or a .gguf file")
    if not is_hub_id(source.model):
        raise StartupError(f"model {source.model}: no such directory, and not a Hub id of the form OWNER/NAME")
    return _from_hub(source, show)


def is_hub_id(text: str) -> bool:
    """Whether text has the form NAME or OWNER/NAME; only such ids are used in URLs and cache paths."""
    return _HUB_ID.fullmatch(text) is not None


def _local(source: Source, directory: Path, show: Progress) -> Path:
    """Return the directory itself, unless its weights must be converted from .bin files."""
    pickles = pickle_files([item.name for item in directory.iterdir()])
    if source.only_small or not pickles or (directory / SINGLE).exists() or (directory / INDEX).exists():
        return directory
    return _converted(source, directory, pickles, own_cache(source.cache) / "local" / fingerprint(directory, pickles), show)


def fingerprint(directory: Path, names: list[str]) -> str:
    """Hash paths, sizes and modification times of files, so that outdated converted weights are not reused."""
    states = [(name, (directory / name).stat().st_size, (directory / name).stat().st_mtime_ns) for name in names]
    return hashlib.blake2b(repr((str(directory.resolve()), states)).encode(), digest_size=16).hexdigest()


def own_cache(cache: Path | None) -> Path:
    """Directory for converted weights and links."""
    if cache is not None:
        return cache / "tgi"
    from huggingface_hub import constants

    return Path(constants.HF_HOME) / "tgi"


def _from_hub(source: Source, show: Progress) -> Path:
    remote = Remote(source.model, source.revision, source.cache)

    def download(listing: Listing) -> Path:
        directory = remote.download(listing, small_files(listing.sizes), "config", show)
        return (
            directory
            if source.only_small
            else remote.download(listing, weight_files(source, listing, directory), "weights", show)
        )

    remedy = f"run `tgi download-weights {source.model}` with access to the Hub"
    try:
        directory = newest(remote, lambda directory: is_complete(source, directory), download, remedy)
    except StartupError as error:
        if "/" in source.model:
            raise
        beginning = f"model {source.model}: "  # a name without an owner is more likely a misspelt directory
        raise StartupError(f"{beginning}no such directory; as a Hub id: {str(error).removeprefix(beginning)}") from error
    return _assembled(source, remote, directory, show)


def is_complete(source: Source, directory: Path) -> bool:
    """Whether a cached directory has the config and, unless only small files are requested, the weights."""
    if source.only_small:
        return (directory / "config.json").is_file()
    names = [item.name for item in directory.iterdir()]
    weights = has_safetensors(directory) or MEDUSA in names or bool(pickle_files(names)) or _elsewhere(source)
    return (directory / "config.json").is_file() and weights


def _elsewhere(source: Source) -> bool:
    return source.weights is not None and has_safetensors(source.weights)


def weight_files(source: Source, listing: Listing, directory: Path) -> list[str]:
    """Names of the weight files to download. Raises StartupError if there are none that can be served."""
    names = listing.sizes
    if _elsewhere(source):
        return []
    if SINGLE in names:
        return [SINGLE]
    if INDEX in names:
        wanted = shards(directory / INDEX)
        if missing := [name for name in wanted if name not in names]:
            raise StartupError(f"model {source.model}: its {INDEX} lists {missing[0]}, which is not in the repository")
        return wanted
    if MEDUSA in names:
        return [MEDUSA]
    pickles = pickle_files(names)
    if ADAPTER in names:
        raise StartupError(
            f"model {source.model}: is an adapter, not a model; serve its base model with --lora-adapters {source.model}"
        )
    if not pickles:
        raise StartupError(f"model {source.model}: has neither {SINGLE} nor {INDEX}")
    if not source.auto_convert:
        raise _only_pickles(source)
    return pickles


def _only_pickles(source: Source) -> StartupError:
    return StartupError(
        f"model {source.model}: has only .bin weights, which can contain code; use --auto-convert to convert them to safetensors "
        "without running it, or a --revision that has safetensors"
    )


def _assembled(source: Source, remote: Remote, directory: Path, show: Progress) -> Path:
    """Return one directory with config, tokenizer and weights, linking or converting weights if needed."""
    if source.only_small:
        return directory
    # The directory is named after the commit, as in the cache.
    target = remote.folder / "tgi" / "snapshots" / directory.name
    if source.weights is not None and has_safetensors(source.weights):
        return link_together(target, directory, source.weights)
    if has_safetensors(directory) or (directory / MEDUSA).is_file():
        return directory
    pickles = pickle_files([item.name for item in directory.iterdir()])
    return _converted(source, directory, pickles, target, show)


def _converted(source: Source, directory: Path, pickles: list[str], target: Path, show: Progress) -> Path:
    """Return a directory with the small files and converted weights, converting them if needed."""
    if not source.auto_convert:
        raise _only_pickles(source)
    weights = source.weights or target.parent.parent / "converted" / target.name
    if not has_safetensors(weights):
        convert([directory / name for name in pickles], weights, show)
    return link_together(target, directory, weights)
