"""`--rope-scaling` and `--rope-factor`: a model directory whose config.json has other RoPE parameters."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tgi_core.errors import StartupError
from tgi_core.model_files import read_json, text_config
from tgi_core.run_folder import RunFolder

_SIGNS = ("rope_theta", "rope_parameters", "rope_scaling", "rotary_emb_base", "rotary_dim", "rotary_pct", "partial_rotary_factor")
"""Fields of config.json by which a model says that it has RoPE."""

_CONFIG = "config.json"


def with_rope_scaling(directory: Path, scaling: str | None, factor: float | None) -> Path:
    """Return a directory of this run that has the model's files and the given RoPE scaling; the model's own if neither is given.

    As in TGI, a factor alone is linear, a type alone has the factor 1, and both replace the scaling of config.json. Raises StartupError.
    """
    if scaling is None and factor is None:
        return directory
    config = _scaled(read_json(directory / _CONFIG), directory / _CONFIG, scaling or "linear", factor or 1.0)
    made = RunFolder("shard").path / directory.name
    made.mkdir()
    for entry in directory.iterdir():
        if entry.name != _CONFIG:
            (made / entry.name).symlink_to(entry.resolve())
    (made / _CONFIG).write_text(json.dumps(config), encoding="utf-8")
    return made


def _scaled(config: dict[str, Any], file: Path, kind: str, factor: float) -> dict[str, Any]:
    """The config with the scaling. With linear scaling a model reads texts that are `factor` times as long."""
    text = text_config(config)
    known = text.get("rope_parameters") or {}
    if not any(name in text for name in _SIGNS):
        raise StartupError(
            f"--rope-scaling, --rope-factor: {file} names no rotary positions (RoPE) to scale; leave the flags out"
        )
    if any(isinstance(value, dict) for value in known.values()):
        raise StartupError(f"--rope-scaling, --rope-factor: {file} has RoPE parameters per kind of layer; scale them there")
    kept = {name: known[name] for name in ("rope_theta", "partial_rotary_factor") if name in known}
    changed: dict[str, Any] = {"rope_parameters" if known else "rope_scaling": {**kept, "rope_type": kind, "factor": factor}}
    positions = text.get("max_position_embeddings")
    if kind == "linear" and isinstance(positions, int):
        changed["max_position_embeddings"] = int(positions * factor)
    nested = config.get("text_config")
    return {**config, "text_config": {**nested, **changed}} if isinstance(nested, dict) else {**config, **changed}
