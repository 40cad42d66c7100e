"""Resolving items of --lora-adapters to directories with an adapter's config and weights."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from tgi_core.adapters import AdapterSource
from tgi_core.backend import Adapter, Progress
from tgi_core.errors import StartupError
from tgi_core.hub.conversion import convert
from tgi_core.hub.fetch import fingerprint, is_hub_id, own_cache
from tgi_core.hub.links import link_together
from tgi_core.hub.newest import newest
from tgi_core.hub.remote import Listing, Remote
from tgi_core.hub.selection import ADAPTER, ADAPTER_PICKLE, ADAPTER_WEIGHTS


def fetch_adapter(source: AdapterSource, cache: Path | None, auto_convert: bool, show: Progress) -> Adapter:
    """Return the adapter, downloading it if needed. Like a model, a path needs no network, and a repository is pinned to one
    commit. Raises StartupError."""
    path = Path(source.model).expanduser()
    if path.is_dir():
        if source.revision is not None:
            raise StartupError(f"--lora-adapters {source}: a directory has no revision; use {source.name}={source.model}")
        return Adapter(source.name, str(_local(source, path, cache, auto_convert, show)))
    if path.exists():
        raise StartupError(f"--lora-adapters {source}: is a file; use its directory")
    if not is_hub_id(source.model):
        raise StartupError(f"--lora-adapters {source}: no such directory, and not a Hub id of the form OWNER/NAME")
    return Adapter(source.name, str(_from_hub(source, cache, auto_convert, show)))


def _local(source: AdapterSource, directory: Path, cache: Path | None, auto_convert: bool, show: Progress) -> Path:
    _check(source, [item.name for item in directory.iterdir()], auto_convert)
    if (directory / ADAPTER_WEIGHTS).exists():
        return directory
    return _converted(directory, own_cache(cache) / "local" / fingerprint(directory, [ADAPTER_PICKLE]), show)


def _from_hub(source: AdapterSource, cache: Path | None, auto_convert: bool, show: Progress) -> Path:
    remote = Remote(source.model, source.revision, cache, "adapter")

    def complete(directory: Path) -> bool:
        names = {item.name for item in directory.iterdir()}
        return ADAPTER in names and bool(names & {ADAPTER_WEIGHTS, ADAPTER_PICKLE})

    def download(listing: Listing) -> Path:
        weights = _check(source, listing.sizes, auto_convert)
        return remote.download(listing, [ADAPTER, weights], "adapter", show)

    remedy = f"run `tgi download-weights MODEL --lora-adapters {source}` with access to the Hub"
    directory = newest(remote, complete, download, remedy)
    if _check(source, [item.name for item in directory.iterdir()], auto_convert) == ADAPTER_WEIGHTS:
        return directory
    return _converted(directory, remote.folder / "tgi" / "snapshots" / directory.name, show)


def _check(source: AdapterSource, names: Collection[str], auto_convert: bool) -> str:
    """Return the name of the weights file. Raises StartupError if there is none that can be served."""
    if ADAPTER not in names:
        raise StartupError(f"--lora-adapters {source}: has no {ADAPTER}; is this a LoRA adapter?")
    if ADAPTER_WEIGHTS in names:
        return ADAPTER_WEIGHTS
    if ADAPTER_PICKLE not in names:
        raise StartupError(f"--lora-adapters {source}: has no {ADAPTER_WEIGHTS}")
    if not auto_convert:
        raise StartupError(
            f"--lora-adapters {source}: has only .bin weights, which can contain code; --auto-convert converts them to safetensors "
            "without running it"
        )
    return ADAPTER_PICKLE


def _converted(directory: Path, target: Path, show: Progress) -> Path:
    """Return a directory with the config and converted weights, converting them if needed."""
    weights = target.parent.parent / "converted" / target.name
    if not (weights / ADAPTER_WEIGHTS).exists():
        convert([directory / ADAPTER_PICKLE], weights, show)
    return link_together(target, directory, weights)
