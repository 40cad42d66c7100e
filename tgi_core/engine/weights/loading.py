"""Filling a model with the tensors of its checkpoint.

Names that fit are read by us, straight into modules built on the meta device, so that no weight is held twice. What transformers
converts on the way in (fused experts, renamed modules, transposed weights) goes through transformers' own loader, after we have
checked the files. Either way a tensor that is missing or misshapen is an error: nothing is ever left as it was initialised.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from itertools import chain
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, PretrainedConfig, PreTrainedModel

from tgi_core.backend import InvalidModel, Progress
from tgi_core.engine.weights.checkpoint import Checkpoint
from tgi_core.engine.weights.headers import TensorEntry
from tgi_core.engine.weights.mapped import MappedFile

CONFIG_ERRORS = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    ImportError,
    LookupError,
    OSError,
    StrictDataclassError,
    TypeError,
    ValueError,
)
"""What transformers raises for a config that no model can be built from."""

STEP_NAME = "loading weights"


def load_model(config: PretrainedConfig, checkpoint: Checkpoint, dtype: torch.dtype, progress: Progress) -> PreTrainedModel:
    """The model in `dtype` in host memory, in evaluation mode. Raises InvalidModel naming file and tensor."""
    progress(STEP_NAME, 0, checkpoint.num_bytes, "B")
    model = build_empty(config, dtype, checkpoint.most_elements)
    places = None if model is None or _is_converted(model) else _match_names(model, checkpoint)
    if model is None or places is None:
        del model
        model = load_through_transformers(config, checkpoint, dtype)
    else:
        _fill(model, places, checkpoint, progress)
    progress(STEP_NAME, checkpoint.num_bytes, checkpoint.num_bytes, "B")
    return model.eval().requires_grad_(False)


def build_empty(config: PretrainedConfig, dtype: torch.dtype, most: int) -> PreTrainedModel | None:
    """The model without weights, of `most` numbers at most; None if its constructor computes with them. Raises InvalidModel for an
    impossible config."""
    try:
        with parameters_on_meta(most):
            return AutoModelForCausalLM.from_config(deepcopy(config), dtype=dtype)
    except (RuntimeError, NotImplementedError):
        return None
    except CONFIG_ERRORS as error:
        raise InvalidModel(f"model type {config.model_type!r} cannot be built from its config: {_one_line(error)}") from error


@contextmanager
def parameters_on_meta(most: int) -> Iterator[None]:
    """Modules built inside get parameters without storage; buffers, which no checkpoint holds, are computed as ever. Raises InvalidModel
    at the parameter that makes them more than `most` numbers."""
    original = nn.Module.register_parameter
    made = 0

    def register(module: nn.Module, name: str, param: nn.Parameter | None) -> None:
        nonlocal made
        original(module, name, param)
        made += 0 if param is None else param.numel()
        if made > most:
            raise InvalidModel(f"config.json describes a model of more than {most} numbers, many times what its checkpoint holds")
        if param is not None and param.device.type != "meta":
            module._parameters[name] = nn.Parameter(param.to("meta"), requires_grad=False)

    nn.Module.register_parameter = register  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        nn.Module.register_parameter = original  # type: ignore[method-assign]


def _is_converted(model: PreTrainedModel) -> bool:
    """Whether transformers changes this model's tensors on the way in, or keeps some of them in another dtype."""
    if getattr(model, "_keep_in_fp32_modules", None) or getattr(model, "_keep_in_fp32_modules_strict", None):
        return True
    if getattr(model, "_checkpoint_conversion_mapping", None):
        return True
    try:
        from transformers.conversion_mapping import get_checkpoint_conversion_mapping
    except ImportError:  # transformers 4 knows no other conversions
        return False
    return bool(get_checkpoint_conversion_mapping(model.config.model_type))


def _match_names(model: PreTrainedModel, checkpoint: Checkpoint) -> dict[str, TensorEntry] | None:
    """Model name → checkpoint tensor for all parameters and persistent buffers; None unless all of them are there.

    Old checkpoints were saved from the base model, without its prefix. A tied parameter may be absent, its twin may not.
    Raises InvalidModel for a tensor of another shape.
    """
    prefix = model.base_model_prefix + "."
    places: dict[str, TensorEntry] = {}
    wanted = model.state_dict()
    for name, value in wanted.items():
        entry = checkpoint.tensors.get(name) or checkpoint.tensors.get(name.removeprefix(prefix))
        if entry is None:
            continue
        if entry.shape != tuple(value.shape):
            raise InvalidModel(f"{entry.file}: tensor {name!r} has shape {list(entry.shape)}, the model's is {list(value.shape)}")
        places[name] = entry
    tied = tied_groups(model)
    covered = set(places) | {name for group in tied if group & places.keys() for name in group}
    return places if wanted.keys() <= covered else None


def tied_groups(model: PreTrainedModel) -> list[set[str]]:
    """Names of one parameter. transformers 5 keeps a table; 4 ties by replacing the module's parameter."""
    table = getattr(model, "all_tied_weights_keys", None)
    if isinstance(table, dict):
        return [{target, source} for target, source in table.items()]
    keys = getattr(model, "_tied_weights_keys", None)
    if not keys or not getattr(model.config, "tie_word_embeddings", True):
        return []
    source = next((name for name, value in model.named_parameters() if value is model.get_input_embeddings().weight), None)
    return [{name, source} for name in keys if source is not None and "*" not in name]


def _fill(model: PreTrainedModel, places: dict[str, TensorEntry], checkpoint: Checkpoint, progress: Progress) -> None:
    done = 0
    maps = {file: MappedFile(file) for file in checkpoint.files}
    for name, current in list(chain(model.named_parameters(), model.named_buffers())):
        entry = places.get(name)
        if entry is None:
            continue
        loaded = torch.empty(entry.shape, dtype=current.dtype).copy_(maps[entry.file].view(entry))
        put(model, name, loaded, is_parameter=isinstance(current, nn.Parameter))
        done += entry.num_bytes
        progress(STEP_NAME, done, checkpoint.num_bytes, "B")
    _tie(model)
    left = [name for name, value in chain(model.named_parameters(), model.named_buffers()) if value.is_meta]
    if left:
        raise InvalidModel(f"{checkpoint.file}: lacks tensor {left[0]!r} of the model ({len(left)} missing)")


def put(model: nn.Module, name: str, value: Tensor, *, is_parameter: bool) -> None:
    path, _, leaf = name.rpartition(".")
    module = model.get_submodule(path)
    if is_parameter:
        module._parameters[leaf] = nn.Parameter(value, requires_grad=False)
    else:
        module._buffers[leaf] = value


def _tie(model: PreTrainedModel) -> None:
    """Let tied names share one tensor: the one that the checkpoint holds."""
    for group in tied_groups(model):
        present = [name for name in sorted(group) if not model.get_parameter(name).is_meta]
        for name in group:
            if present and model.get_parameter(name).is_meta:
                put(model, name, model.get_parameter(present[0]), is_parameter=True)
    if not isinstance(getattr(model, "all_tied_weights_keys", None), dict):
        model.tie_weights()


def load_through_transformers(config: PretrainedConfig, checkpoint: Checkpoint, dtype: torch.dtype) -> PreTrainedModel:
    try:
        model, report = AutoModelForCausalLM.from_pretrained(
            checkpoint.directory,
            config=config,
            dtype=dtype,
            local_files_only=True,
            use_safetensors=True,
            trust_remote_code=False,
            ignore_mismatched_sizes=True,  # reported below, with the tensor's name
            output_loading_info=True,
        )
    except (RuntimeError, ValueError, OSError, LookupError, TypeError, AttributeError, ImportError) as error:
        raise InvalidModel(f"{checkpoint.file}: cannot be loaded: {_one_line(error)}") from error
    for kind in ("missing_keys", "mismatched_keys", "error_msgs", "conversion_errors"):
        names = _report(report, kind)
        if names:
            raise InvalidModel(f"{checkpoint.file}: {kind.replace('_', ' ')}: {names[0]} ({len(names)} in all)")
    return model


def _report(report: Any, kind: str) -> list[str]:
    """transformers 4 reports in a dict, 5 in an object or a dict."""
    found = report.get(kind) if isinstance(report, dict) else getattr(report, kind, None)
    return sorted(map(str, found or ()))


def _one_line(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
