"""`python -m tgi_core.hub.pickles TARGET FILE...`: what `convert` runs. Loads tensors and nothing else, one file at a time."""

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
    """Print `progress DONE TOTAL` after each file; on failure one line and exit status 1."""
    target, *files = map(Path, sys.argv[1:])
    try:
        write_safetensors(files, target)
    except StartupError as error:
        print(error)
        sys.exit(1)
    except OSError as error:
        print(f"{target}: converted weights cannot be written: {error.strerror or error}")
        sys.exit(1)


def write_safetensors(files: list[Path], target: Path) -> None:
    """Convert file by file into a folder beside, then move the results; the index, or the only file, last."""
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
    """What the only file becomes: a model's weights, or an adapter's."""
    return ADAPTER_WEIGHTS if file.name == ADAPTER_PICKLE else SINGLE


def read_tensors(file: Path) -> dict[str, Tensor]:
    """The tensors of a .bin file by name, each with memory of its own. Raises StartupError for anything else in it."""
    import torch

    try:
        loaded: Any = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # UnpicklingError, RuntimeError, EOFError, zipfile's: whatever is wrong, it is the file
        reason = "holds more than tensors, or is damaged" if _is_pickle(error) else str(error).splitlines()[0]
        raise StartupError(f"{file}: not converted: {reason}") from error
    if not isinstance(loaded, dict) or not all(isinstance(value, torch.Tensor) for value in loaded.values()):
        raise StartupError(f"{file}: not converted: not a table of tensors by name")
    # safetensors refuses tensors that share memory, as tied weights do.
    return {str(name): value.detach().clone().contiguous() for name, value in loaded.items()}


def _is_pickle(error: Exception) -> bool:
    return type(error).__name__ == "UnpicklingError"


if __name__ == "__main__":
    main()
