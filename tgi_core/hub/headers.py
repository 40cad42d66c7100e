"""A Hub model without the values of its weights: files with the right headers and sizes, and holes where the values would be."""

from __future__ import annotations

import json
from pathlib import Path

from tgi_core.backend import Progress
from tgi_core.errors import StartupError
from tgi_core.hub.fetch import Source, fetch, is_complete, is_hub_id, own_cache, weight_files
from tgi_core.hub.links import link_together
from tgi_core.hub.refusals import Unreachable
from tgi_core.hub.remote import Header, Listing, Remote, replaced
from tgi_core.hub.selection import INDEX, small_files


def fetch_headers(source: Source, show: Progress) -> Path:
    """Return the model's directory. Of a Hub model whose weights are not cached, only headers are downloaded. Raises StartupError."""
    path = Path(source.model).expanduser()
    if path.exists() or not is_hub_id(source.model):
        return fetch(source, show)
    remote = Remote(source.model, source.revision, source.cache)
    cached = remote.cached()
    if remote.offline or (cached is not None and is_complete(source, cached)):
        return fetch(source, show)
    try:
        listing = remote.listing()
        directory = remote.download(listing, small_files(listing.sizes), "config", show)
        names = weight_files(source, listing, directory)
        if not names or not all(name.endswith(".safetensors") for name in names):
            return fetch(source, show)
        weights = own_cache(source.cache) / "headers" / listing.commit
        _write_headers(remote, listing, names, weights, show)
    except Unreachable as error:
        raise StartupError(f"model {source.model}: not in the cache {remote.cache}, and {error}") from error
    return link_together(weights.with_name(f"{listing.commit}-model"), directory, weights)


def _write_headers(remote: Remote, listing: Listing, names: list[str], weights: Path, show: Progress) -> None:
    what = f"headers of {remote.model}"
    for done, name in enumerate(names):
        show(what, done, len(names), "file")
        if not (weights / name).is_file():
            write_hollow(weights / name, remote.header(listing, name))
    index = remote.folder / "snapshots" / listing.commit / INDEX
    if index.is_file() and not (weights / index.name).exists():
        (weights / index.name).write_bytes(index.read_bytes())
    show(what, len(names), len(names), "file")


def write_hollow(path: Path, header: Header) -> None:
    """Write a safetensors file without values, atomically. Raises StartupError."""
    text = json.dumps(header).encode()
    end = max((int(entry["data_offsets"][1]) for entry in header.values()), default=0)
    try:
        with replaced(path) as file:
            file.write(len(text).to_bytes(8, "little") + text)
            file.truncate(8 + len(text) + end)
    except OSError as error:
        raise StartupError(f"{path}: cannot be written: {error.strerror}") from error
