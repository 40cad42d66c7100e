"""The child of `convert`, `python -m tgi_core.hub.pickles TARGET FILE...`. Loads only tensors, one file at a time."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tgi_core.errors import StartupError
from tgi_core.hub.selection import ADAPTER_PICKLE, ADAPTER_WEIGHTS, INDEX, SINGLE

if TYPE_CHECKING:
    from torch import Tensor


def main() -> None:
    """Print `progress DONE TOTAL` after each file. On failure, print one line and exit with status 1."""
    target, *files = map(Path, sys.argv[1:])
    try:
        write_safetensors(files, target)
    except StartupError as error:
        print(error)
        sys.exit(1)
    except OSError as error:
        print(f"{target}: cannot write converted weights: {error.strerror or error}")
        sys.exit(1)


def write_safetensors(files: list[Path], target: Path) -> None:
    """Convert each file in a temporary directory, then move the results into place, the index last."""
    from safetensors.torch import save_file

    places: dict[str, str] = {}
    sizes = [file.stat().st_size for file in files]
    target.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target, prefix=".converting-") as folder:
        for number, file in enumerate(files, 1):
            name = _single(file) if len(files) == 1 else f"model-{number:05}-of-{len(files):05}.safetensors"
            tensors = read_tensors(file)
            save_file(tensors, Path(folder) / name, metadata={"format": "pt"})
            places |= dict.fromkeys(tensors, name)
            print(f"progress {sum(sizes[:number])} {sum(sizes)}", flush=True)
        if len(files) > 1:
            (Path(folder) / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": places}), encoding="utf-8")
        for path in sorted(Path(folder).iterdir(), key=lambda path: path.name == INDEX):
            path.chmod(0o644)
            os.replace(path, target / path.name)


def _single(file: Path) -> str:
    """Output name for a single file: a model's or an adapter's weights."""
    return ADAPTER_WEIGHTS if file.name == ADAPTER_PICKLE else SINGLE


def read_tensors(file: Path) -> dict[str, Tensor]:
    """Read the tensors of a .bin file, each in its own memory. Raises StartupError if the file contains anything else."""
    import torch

    try:
        loaded: Any = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # UnpicklingError, RuntimeError, EOFError, zipfile errors: all mean a bad file
        reason = "contains more than tensors, or is corrupt" if _is_pickle(error) else str(error).splitlines()[0]
        raise StartupError(f"{file}: not converted: {reason}") from error
    if not isinstance(loaded, dict) or not all(isinstance(value, torch.Tensor) for value in loaded.values()):
        raise StartupError(f"{file}: not converted: not a dict of tensors")
    # safetensors rejects tensors that share memory, as tied weights do.
    return {str(name): value.detach().clone().contiguous() for name, value in loaded.items()}


def _is_pickle(error: Exception) -> bool:
    return type(error).__name__ == "UnpicklingError"


if __name__ == "__main__":
    main()
