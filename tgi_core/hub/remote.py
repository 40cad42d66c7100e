"""A Hub repository at one commit."""

from __future__ import annotations

import importlib.util
import inspect
import logging
import os
import re
import tempfile
from collections.abc import Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from tgi_core import __version__
from tgi_core.backend import Progress
from tgi_core.errors import StartupError
from tgi_core.hub.bars import DownloadProgress, file_bar
from tgi_core.hub.refusals import NETWORK_LIBRARIES, refusal, token

if TYPE_CHECKING:
    from huggingface_hub import HfApi

_log = logging.getLogger(__name__)

_CONNECTIONS = 8
_COMMIT = re.compile(r"[0-9a-f]{40}")
_LIBRARY = {"library_name": "tgi-core", "library_version": __version__}

Header = dict[str, dict[str, Any]]
"""Of a safetensors file: dtype, shape and data_offsets by tensor."""


@dataclass(frozen=True, slots=True)
class Listing:
    """Files of a repository at a commit: sizes in bytes by file name."""

    commit: str
    sizes: dict[str, int]


class Remote:
    """The repository of a model, or of another `kind`. `listing` resolves `revision` to a commit, at which all files are then
    requested."""

    def __init__(self, model: str, revision: str | None, cache: Path | None, kind: str = "model") -> None:
        _prepare_library()
        from huggingface_hub import constants

        self.model, self.revision, self.kind = model, revision, kind
        self.offline = bool(constants.HF_HUB_OFFLINE)
        self.cache = cache or Path(constants.HF_HUB_CACHE)
        self.folder = self.cache / f"models--{model.replace('/', '--')}"
        """The repository's directory in the cache, in huggingface_hub's layout."""

    def cached(self) -> Path | None:
        """Return the revision's cached directory, if any; files may be missing. Does not use the network."""
        commit = self.revision or "main"
        reference = self.folder / "refs" / commit
        if not _COMMIT.fullmatch(commit) and reference.is_file():
            commit = reference.read_text(encoding="utf-8").strip()
        directory = self.folder / "snapshots" / commit
        return directory if _COMMIT.fullmatch(commit) and directory.is_dir() else None

    def listing(self) -> Listing:
        """Request the file list from the Hub. Raises StartupError or Unreachable."""
        try:
            found: Any = _api().model_info(self.model, revision=self.revision, files_metadata=True)
        except Exception as error:
            raise refusal(error, self.model, self.revision, self.kind) from error
        if not _COMMIT.fullmatch(found.sha or ""):
            raise StartupError(f"{self.kind} {self.model}: the Hub returned no commit for revision {self.revision or 'main'}")
        return Listing(found.sha, {file.rfilename: file.size or 0 for file in found.siblings or ()})

    def download(self, listing: Listing, names: Collection[str], what: str, show: Progress) -> Path:
        """Download files that are not cached and return their directory. Raises StartupError or Unreachable."""
        total = sum(listing.sizes[name] for name in names)
        progress = DownloadProgress(f"download {what} of {self.model}", total, show)

        def fetch(name: str) -> None:
            self._file(listing.commit, name, progress)
            progress.finish(name, listing.sizes[name])

        with ThreadPoolExecutor(_CONNECTIONS, "download") as pool:
            running = [pool.submit(fetch, name) for name in names]
            try:
                for download in running:
                    download.result()
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise
        return self.folder / "snapshots" / listing.commit

    def header(self, listing: Listing, name: str) -> Header:
        """Request the header of a safetensors file. Raises StartupError or Unreachable."""
        try:
            found = _api().parse_safetensors_file_metadata(self.model, name, revision=listing.commit)
        except Exception as error:
            raise refusal(error, self.model, self.revision, self.kind) from error
        return {
            tensor: {"dtype": info.dtype, "shape": list(info.shape), "data_offsets": list(info.data_offsets)}
            for tensor, info in found.tensors.items()
        }

    def remember(self, listing: Listing) -> None:
        """Record the commit under the revision's name, so that the model can be found offline."""
        name = self.revision or "main"
        if name == listing.commit:
            return
        reference = self.folder / "refs" / name
        if reference.is_file() and reference.read_text(encoding="utf-8").strip() == listing.commit:
            return
        try:
            with replaced(reference) as file:
                file.write(listing.commit.encode())
        except OSError as error:  # for example a read-only cache
            _log.warning("%s: cannot write, so %s will not be found offline: %s", reference, self.model, error.strerror)

    def _file(self, commit: str, name: str, progress: DownloadProgress) -> None:
        from huggingface_hub import hf_hub_download

        # Versions before 1.0 have no progress callback; progress is then reported per file.
        reports = "tqdm_class" in inspect.signature(hf_hub_download).parameters
        bar = {"tqdm_class": file_bar(progress, name)} if reports else {}
        try:
            hf_hub_download(
                self.model,
                name,
                revision=commit,
                cache_dir=self.cache,
                token=token(),
                **_LIBRARY,
                **bar,
            )
        except Exception as error:
            raise refusal(error, self.model, self.revision, self.kind) from error


@contextmanager
def replaced(path: Path) -> Iterator[IO[bytes]]:
    """A file that takes the place of `path` once the block has written it. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, fresh = tempfile.mkstemp(dir=path.parent)
    with os.fdopen(handle, "wb") as file:
        yield file
    Path(fresh).replace(path)


def _api() -> HfApi:
    from huggingface_hub import HfApi

    return HfApi(token=token(), **_LIBRARY)


def _prepare_library() -> None:
    """Set up huggingface_hub's environment and output before it is imported."""
    # Otherwise it requests a list of programs from the Hub to detect which one is calling it.
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    # Set by TGI's images; versions before 1.0 then require a package that later ones do not use.
    if importlib.util.find_spec("hf_transfer") is None:
        os.environ.pop("HF_HUB_ENABLE_HF_TRANSFER", None)
    from huggingface_hub.utils import disable_progress_bars

    disable_progress_bars()  # replaced by ours
    for library in NETWORK_LIBRARIES:
        logging.getLogger(library).setLevel(logging.WARNING)  # they log every request
