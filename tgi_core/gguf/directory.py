"""A model directory over a GGUF file: config and tokenizer from its metadata, and a link to the file."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

from tgi_core.errors import StartupError
from tgi_core.gguf.config import config_of
from tgi_core.gguf.header import GgufFile, read_gguf
from tgi_core.gguf.names import named_tensors
from tgi_core.gguf.tokenizer import tokenizer_of

WEIGHTS = "model.gguf"
"""The link's name."""
LAYOUT = "1"
"""Changes with what is written, so that directories of another version are not used."""


def gguf_in(directory: Path) -> Path | None:
    """The single GGUF file of a directory that has nothing else to serve; None if there is none. Raises StartupError for several."""
    if (directory / "config.json").exists() or not directory.is_dir():
        return None
    found = sorted(directory.glob("*.gguf"))
    if len(found) > 1:
        raise StartupError(f"model {directory}: holds {len(found)} GGUF files; name one of them, as {found[0]}")
    return found[0] if found else None


def gguf_directory(file: Path, target: Path) -> Path:
    """Atomically create `target` for a file, unless it is there. Raises StartupError that names the file."""
    if (target / WEIGHTS).exists():
        return target
    contents = _contents(read_gguf(file))
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=".new-") as folder:
            new = Path(folder) / "new"
            new.mkdir()
            for name, text in contents.items():
                (new / name).write_text(text, encoding="utf-8")
            (new / WEIGHTS).symlink_to(file.resolve())
            if target.exists():
                target.rename(Path(folder) / "old")
            new.rename(target)
    except OSError as error:
        if not (target / WEIGHTS).exists():  # another server may have created it concurrently
            raise StartupError(f"{target}: cannot create: {error.strerror}") from error
    return target


def _contents(file: GgufFile) -> dict[str, str]:
    """The small files of a model directory."""
    config = config_of(file)
    named_tensors(file, config["model_type"])
    tokenizer, settings = tokenizer_of(file)
    generation = {
        name: config[name] for name in ("bos_token_id", "eos_token_id", "pad_token_id") if config[name] not in (None, [])
    }
    files = {
        "config.json": config | {"quantization_config": {"quant_method": "gguf", "head_size": config.get("head_dim")}},
        "generation_config.json": generation,
        "tokenizer.json": tokenizer,
        "tokenizer_config.json": settings,
    }
    return {name: json.dumps(content, ensure_ascii=False, indent=None) for name, content in files.items()}
