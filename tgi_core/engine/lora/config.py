"""adapter_config.json as peft writes it, read without peft. Unsupported settings that would change the result are refused.

Source: https://huggingface.co/docs/peft/package_reference/lora
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tgi_core.backend import InvalidModel
from tgi_core.errors import StartupError
from tgi_core.model_files import read_json

FILE = "adapter_config.json"

MAX_RANK = 512

_PLAIN_STARTS = (None, True, False, "eva", "gaussian", "orthogonal")
"""Values of `init_lora_weights` that leave the base model as it is; others mean that the adapter belongs to a changed one."""

_UNSUPPORTED = {
    "alora_invocation_tokens": "applies only from an invocation on (aLoRA)",
    "layer_replication": "repeats layers of the model",
    "lora_bias": "has its own biases",
    "modules_to_save": "contains whole modules",
    "target_parameters": "changes parameters that are not linear layers, such as fused experts",
    "trainable_token_indices": "changes embeddings of single tokens",
    "use_dora": "is a DoRA adapter",
}

_HARMLESS_SWITCHES = frozenset({"use_rslora"})

_PLAIN_NAME = re.compile(r"[\w.]{1,512}", re.ASCII)


@dataclass(frozen=True, slots=True)
class LoraConfig:
    """Ranks and scales. The patterns override them for modules, by full name or suffix."""

    rank: int
    alpha: float
    rank_stabilized: bool = False
    rank_pattern: dict[str, int] = field(default_factory=dict)
    alpha_pattern: dict[str, float] = field(default_factory=dict)

    def rank_of(self, module: str) -> int:
        """The rank of a module's matrices."""
        return _of(self.rank_pattern, module, self.rank)

    def scale_of(self, module: str) -> float:
        """The scale of a module's adapter: alpha/r, or alpha/√r if it is rank-stabilized."""
        rank, alpha = self.rank_of(module), _of(self.alpha_pattern, module, self.alpha)
        return alpha / math.sqrt(rank) if self.rank_stabilized else alpha / rank


def read_config(directory: Path) -> LoraConfig:
    """Read and check it. Raises InvalidModel that names the file and the field."""
    file = directory / FILE
    try:
        raw = read_json(file)
    except (StartupError, RecursionError) as error:
        raise InvalidModel(str(error) if isinstance(error, StartupError) else f"{file}: is nested too deeply") from error
    _check_kind(file, raw)
    rank = _rank(file, "r", raw.get("r"))
    return LoraConfig(
        rank=rank,
        alpha=_number(file, "lora_alpha", raw.get("lora_alpha", 8)),
        rank_stabilized=bool(raw.get("use_rslora")),
        rank_pattern={name: _rank(file, "rank_pattern", value) for name, value in _pattern(file, raw, "rank_pattern")},
        alpha_pattern={name: _number(file, "alpha_pattern", value) for name, value in _pattern(file, raw, "alpha_pattern")},
    )


def _check_kind(file: Path, raw: dict[str, Any]) -> None:
    kind, task = raw.get("peft_type"), raw.get("task_type")
    if kind != "LORA":
        raise InvalidModel(f"{file}: peft_type is {_shown(kind)}; only LORA adapters are served")
    if task not in (None, "CAUSAL_LM"):
        raise InvalidModel(f"{file}: task_type is {_shown(task)}; only adapters of causal language models are served")
    for name, what in _UNSUPPORTED.items():
        if raw.get(name):
            raise InvalidModel(f"{file}: {name}: the adapter {what}, which is not supported")
    if raw.get("bias", "none") not in ("none", None):
        raise InvalidModel(f"{file}: bias is {_shown(raw['bias'])}: the adapter changes biases, which is not supported")
    start = raw.get("init_lora_weights")
    if not isinstance(start, bool | str | None) or start not in _PLAIN_STARTS:
        raise InvalidModel(
            f"{file}: init_lora_weights is {_shown(start)}: the adapter belongs to a model that was changed first; "
            "convert it to a plain LoRA adapter with peft"
        )
    for name, value in raw.items():
        # Options of newer versions of peft named use_… change the computation.
        if name.startswith("use_") and name not in _HARMLESS_SWITCHES and value:
            raise InvalidModel(f"{file}: {name[:60]} is not supported")


def _rank(file: Path, name: str, value: object) -> int:
    if type(value) is not int or value < 1:
        raise InvalidModel(f"{file}: {name} is {_shown(value)}, not a rank")
    if value > MAX_RANK:
        raise InvalidModel(f"{file}: {name} is {value}; the largest rank that is served is {MAX_RANK}")
    return value


def _number(file: Path, name: str, value: object) -> float:
    good = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e9  # NaN compares false
    if not good or not isinstance(value, int | float):
        raise InvalidModel(f"{file}: {name} is {_shown(value)}, not a number")
    return float(value)


def _pattern(file: Path, raw: dict[str, Any], name: str) -> list[tuple[str, object]]:
    """Peft accepts regular expressions here. Those are refused, since the file is untrusted; only plain names are accepted."""
    pattern = raw.get(name) or {}
    if not isinstance(pattern, dict):
        raise InvalidModel(f"{file}: {name} is not an object")
    for key in pattern:
        if not _PLAIN_NAME.fullmatch(key.removeprefix("^")):
            raise InvalidModel(f"{file}: {name}: {_shown(key)} is a regular expression; only names of modules are supported")
    return list(pattern.items())


def _of(pattern: dict[str, Any], module: str, otherwise: Any) -> Any:
    """The first entry that equals the module's name or, unless it begins with ^, is a suffix of it."""
    for key, value in pattern.items():
        if module == key.removeprefix("^") or (not key.startswith("^") and module.endswith(f".{key}")):
            return value
    return otherwise


def _shown(value: object) -> str:
    return repr(value)[:60]
