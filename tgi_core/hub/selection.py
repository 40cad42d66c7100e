"""Which files of a Hub repository are downloaded: small top-level files and one set of weights."""

from __future__ import annotations

import json
from collections.abc import Collection
from fnmatch import fnmatch
from pathlib import Path

from tgi_core.errors import StartupError

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
MEDUSA = "medusa_lm_head.safetensors"
ADAPTER = "adapter_config.json"
ADAPTER_WEIGHTS = "adapter_model.safetensors"
ADAPTER_PICKLE = "adapter_model.bin"

_SMALL = ("*.json", "*.jinja", "*.model", "*.tiktoken", "merges.txt", "vocab.txt")
_PICKLES = ("pytorch_model.bin", "pytorch_model-*-of-*.bin")


def small_files(names: Collection[str]) -> list[str]:
    """Names of config, tokenizer and template files, without indexes of weights in other formats."""
    top = [name for name in names if "/" not in name and any(fnmatch(name, pattern) for pattern in _SMALL)]
    kept = [name for name in top if name == INDEX or not name.endswith(".index.json")]
    templates = [name for name in names if fnmatch(name, "additional_chat_templates/*.jinja") and name.count("/") == 1]
    return sorted(kept + templates)


def pickle_files(names: Collection[str]) -> list[str]:
    """Names of the .bin files with weights."""
    return sorted(name for name in names if any(fnmatch(name, pattern) for pattern in _PICKLES))


def shards(index: Path) -> list[str]:
    """Names of the files in a safetensors index. Raises StartupError that names the index."""
    try:
        places = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        names = sorted(set(places.values()))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise StartupError(f"{index}: not an index of safetensors files") from error
    for name in names:
        # A name with a slash could escape the model's directory.
        if not isinstance(name, str) or Path(name).name != name:
            raise StartupError(f"{index}: lists the file {name!r}, which is outside its directory")
    return names


def has_safetensors(directory: Path) -> bool:
    """Whether a directory has a complete set of safetensors."""
    if (directory / SINGLE).is_file():
        return True
    index = directory / INDEX
    return index.is_file() and all((directory / name).is_file() for name in shards(index))
