"""From the name of a model to a directory with everything in it."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path

from tgi_core.backend import Progress
from tgi_core.errors import StartupError
from tgi_core.hub.conversion import convert
from tgi_core.hub.links import link_together
from tgi_core.hub.newest import newest
from tgi_core.hub.remote import Listing, Remote
from tgi_core.hub.selection import ADAPTER, INDEX, SINGLE, has_safetensors, pickle_files, shards, small_files

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9_][\w.-]*)?", re.ASCII)


@dataclass(frozen=True, slots=True)
class Source:
    """Which model, and where its files may lie."""

    model: str
    """A directory, or an id on the hub."""
    revision: str | None = None
    cache: Path | None = None
    """The hub's cache; None is huggingface_hub's own."""
    weights: Path | None = None
    """A folder with the weight files of a hub model; converted ones go there too."""
    auto_convert: bool = False
    """Make safetensors where there are only .bin files."""
    only_small: bool = False
    """Config, tokenizer and templates are enough."""


def fetch(source: Source, show: Progress) -> Path:
    """The model's directory. A path makes no connection, nor does a model of the cache under HF_HUB_OFFLINE. Raises StartupError."""
    path = Path(source.model).expanduser()
    if path.is_dir():
        return _local(source, path, show)
    if path.exists():
        raise StartupError(f"model {source.model}: is a file; give its directory")
    if not is_hub_id(source.model):
        raise StartupError(f"model {source.model}: no such directory, and not a hub id of the form OWNER/NAME")
    return _from_hub(source, show)


def is_hub_id(text: str) -> bool:
    """Whether it has the form NAME or OWNER/NAME; nothing else becomes an address or a folder of the cache."""
    return _HUB_ID.fullmatch(text) is not None


def _local(source: Source, directory: Path, show: Progress) -> Path:
    """A directory is served as it is, unless it has nothing but .bin files."""
    pickles = pickle_files([item.name for item in directory.iterdir()])
    if source.only_small or not pickles or (directory / SINGLE).exists() or (directory / INDEX).exists():
        return directory
    return _converted(source, directory, pickles, own_cache(source.cache) / "local" / fingerprint(directory, pickles), show)


def fingerprint(directory: Path, names: list[str]) -> str:
    """Another name for other files, so that old converted weights are not taken for new ones."""
    states = [(name, (directory / name).stat().st_size, (directory / name).stat().st_mtime_ns) for name in names]
    return hashlib.blake2b(repr((str(directory.resolve()), states)).encode(), digest_size=16).hexdigest()


def own_cache(cache: Path | None) -> Path:
    """Where what we make ourselves is kept."""
    if cache is not None:
        return cache / "tgi"
    from huggingface_hub import constants

    return Path(constants.HF_HOME) / "tgi"


def _from_hub(source: Source, show: Progress) -> Path:
    remote = Remote(source.model, source.revision, source.cache)

    def download(listing: Listing) -> Path:
        directory = remote.download(listing, small_files(listing.sizes), "config", show)
        return directory if source.only_small else remote.download(listing, _weights(source, listing, directory), "weights", show)

    remedy = f"run `tgi download-weights {source.model}` where the hub can be reached"
    directory = newest(remote, lambda directory: _complete(source, directory), download, remedy)
    return _assembled(source, remote, directory, show)


def _complete(source: Source, directory: Path) -> bool:
    """Whether a directory of the cache has config and weights, or as much of it as is asked for."""
    if source.only_small:
        return (directory / "config.json").is_file()
    names = [item.name for item in directory.iterdir()]
    weights = has_safetensors(directory) or bool(pickle_files(names)) or _elsewhere(source)
    return (directory / "config.json").is_file() and weights


def _elsewhere(source: Source) -> bool:
    return source.weights is not None and has_safetensors(source.weights)


def _weights(source: Source, listing: Listing, directory: Path) -> list[str]:
    """The weight files to fetch. Raises StartupError if there is nothing that can be served."""
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
    """One directory with config, tokenizer and weights, wherever the weights are."""
    if source.only_small:
        return directory
    # The folder's name says the commit, as in the cache.
    target = remote.folder / "tgi" / "snapshots" / directory.name
    if source.weights is not None and has_safetensors(source.weights):
        return link_together(target, directory, source.weights)
    if has_safetensors(directory):
        return directory
    pickles = pickle_files([item.name for item in directory.iterdir()])
    return _converted(source, directory, pickles, target, show)


def _converted(source: Source, directory: Path, pickles: list[str], target: Path, show: Progress) -> Path:
    """The directory beside converted weights, which are made if they are not there yet."""
    if not source.auto_convert:
        raise _only_pickles(source)
    weights = source.weights or target.parent.parent / "converted" / target.name
    if not has_safetensors(weights):
        convert([directory / name for name in pickles], weights, show)
    return link_together(target, directory, weights)
