"""Loads a checkpoint into a model.

Tensors whose names match are read straight into modules built on the meta device, so that no weight is in memory twice. Models whose
tensors transformers converts (fused experts, renamed modules, transposed weights) go through transformers' own loader, after the files
have been checked. Either way a missing or misshapen tensor is an error: no parameter ever keeps its initial value.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from itertools import chain
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from torch import Tensor, nn
from transformers import (
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    AutoModelForSeq2SeqLM,
    PretrainedConfig,
    PreTrainedModel,
)
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING, MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING

from tgi_core.backend import InvalidModel, Progress
from tgi_core.engine.models.linear import WeightLinear
from tgi_core.engine.models.sources import Source, check_shape, find_sources, keeps_float32
from tgi_core.engine.quantization.rounding import head_rounding, rounded
from tgi_core.engine.quantization.stored import StoredWeights
from tgi_core.engine.quantization.weight import Weight
from tgi_core.errors import one_line

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
"""Exceptions of transformers for a config from which no model can be built."""

STEP_NAME = "loading weights"

_ROUTERS = ("gate", "router")

_CONVERTED = "tensors are missing, or transformers converts those of this type"


def load_model(config: PretrainedConfig, stored: StoredWeights, dtype: torch.dtype, progress: Progress) -> PreTrainedModel:
    """The model in `dtype` in host memory, in evaluation mode. Raises InvalidModel naming file and tensor."""
    total = stored.checkpoint.num_bytes
    progress(STEP_NAME, 0, total, "B")
    model = build_empty(config, dtype, stored.most_elements)
    places = None if model is None else _sources(model, stored, dtype)
    if model is None or places is None:
        del model
        model = load_through_transformers(config, stored, dtype)
    else:
        fill(model, places, stored, progress)
    progress(STEP_NAME, total, total, "B")
    return finished(model, stored.quantize, dtype)


def finished(model: PreTrainedModel, quantize: str, dtype: torch.dtype) -> PreTrainedModel:
    """A filled model in evaluation mode, with weights rounded if they are quantized at load."""
    if quantize:
        for name, value in list(model.named_parameters()):
            if is_rounded(model, name):
                put_weight(model, name, rounded(value.data, quantize, dtype))
        round_head(model, quantize, dtype)
    return model.eval().requires_grad_(False)


def auto_class(config: PretrainedConfig) -> Any:
    """transformers' class of models that generate text from a config of this kind."""
    if config.is_encoder_decoder:
        return AutoModelForSeq2SeqLM
    return AutoModelForImageTextToText if sees_images(config) else AutoModelForCausalLM


def sees_images(config: PretrainedConfig) -> bool:
    """Whether a config describes a language model with a vision tower. One that transformers also has without it is text alone."""
    if type(config) not in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING:
        return False
    model = MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING[type(config)]
    alone = type(config) in MODEL_FOR_CAUSAL_LM_MAPPING and MODEL_FOR_CAUSAL_LM_MAPPING[type(config)] is not model
    return not alone or looks_at_images(config)


def looks_at_images(config: PretrainedConfig) -> bool:
    """Whether layers of its language model look at images through cross attention."""
    return bool(getattr(config.get_text_config(), "cross_attention_layers", None))


def language_model(model: PreTrainedModel) -> PreTrainedModel:
    """The part of a model that decodes text: all of it, unless it sees images. transformers 4 finds it for most types only."""
    if not sees_images(model.config):
        return model
    base = model.base_model
    inside = (model.get_decoder(), getattr(base, "language_model", None), getattr(base, "text_model", None))
    found: PreTrainedModel = next((part for part in inside if part is not None and part is not model and part is not base), model)
    return found


def build_empty(config: PretrainedConfig, dtype: torch.dtype, most: int) -> PreTrainedModel | None:
    """The model without weights, with at most `most` elements; None if its constructor computes with them. Raises InvalidModel for an
    impossible config."""
    try:
        with parameters_on_meta(most):
            return auto_class(config).from_config(deepcopy(config), dtype=dtype)
    except (RuntimeError, NotImplementedError):
        return None
    except CONFIG_ERRORS as error:
        raise InvalidModel(f"model type {config.model_type!r} cannot be built from its config: {one_line(error, 300)}") from error


@contextmanager
def parameters_on_meta(most: int) -> Iterator[None]:
    """Modules built inside get parameters without storage; buffers, which checkpoints lack, are computed as usual. Raises InvalidModel at
    the parameter that exceeds `most` elements in total."""
    original = nn.Module.register_parameter
    made = 0

    def register(module: nn.Module, name: str, param: nn.Parameter | None) -> None:
        nonlocal made
        original(module, name, param)
        made += 0 if param is None else param.numel()
        if made > most:
            raise InvalidModel(
                f"config.json describes a model of more than {most} elements, many times what its checkpoint holds"
            )
        if param is not None and param.device.type != "meta":
            module._parameters[name] = nn.Parameter(param.to("meta"), requires_grad=False)

    nn.Module.register_parameter = register  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        nn.Module.register_parameter = original  # type: ignore[method-assign]


def _sources(model: PreTrainedModel, stored: StoredWeights, dtype: torch.dtype) -> dict[str, Source] | None:
    """The weights that `fill` can load; None if transformers must."""
    places = None if _is_converted(model) else _match_names(model, stored)
    if places is None and not (keeps_float32(model) and dtype is not torch.float32):
        found = find_sources(model, stored)
        if found is None or stored.format is not None:
            return found
        stacked = any(place.stacked for place in found.values())
        return found if _covers(model, found) and not stacked else None
    return places


def _is_converted(model: PreTrainedModel) -> bool:
    """Whether transformers converts this model's tensors when it loads them, or keeps some of them in another dtype."""
    if keeps_float32(model) or getattr(model, "_checkpoint_conversion_mapping", None):
        return True
    try:
        from transformers.conversion_mapping import get_checkpoint_conversion_mapping
    except ImportError:  # transformers 4 knows no other conversions
        return False
    return bool(get_checkpoint_conversion_mapping(model.config.model_type))


def _match_names(model: PreTrainedModel, stored: StoredWeights) -> dict[str, Source] | None:
    """Model name → weight in the checkpoint for all parameters and persistent buffers; None unless all of them are present.

    Old checkpoints were saved from the base model, without its prefix. Of tied parameters one must be present.
    Raises InvalidModel for a tensor of another shape.
    """
    prefix = model.base_model_prefix + "."
    places: dict[str, Source] = {}
    wanted = model.state_dict()
    for name, value in wanted.items():
        found = stored.by_name.get(name) or stored.by_name.get(name.removeprefix(prefix))
        if found is None:
            continue
        places[name] = Source(((found,),))
        check_shape(places[name], name, value.shape)
    return places if _covers(model, places) else None


def _covers(model: PreTrainedModel, places: dict[str, Source]) -> bool:
    """Whether all parameters and persistent buffers are there; of tied parameters, one suffices."""
    covered = set(places) | {name for group in tied_groups(model) if group & places.keys() for name in group}
    return model.state_dict().keys() <= covered


def tied_groups(model: PreTrainedModel) -> list[set[str]]:
    """Names of one parameter, before weights are read. transformers 5 keeps a table; 4 ties by replacing the module's parameter."""
    table = getattr(model, "all_tied_weights_keys", None)
    if isinstance(table, dict):
        return [{target, source} for target, source in table.items()]
    same: dict[int, set[str]] = {}
    for name, value in model.named_parameters(remove_duplicate=False):
        same.setdefault(id(value), set()).add(name)
    return [names for names in same.values() if len(names) > 1]


def fill(model: PreTrainedModel, places: dict[str, Source], stored: StoredWeights, progress: Progress) -> None:
    """Read the weights of a model from their places. Raises InvalidModel naming file and tensor."""
    done, total, tied = 0, stored.checkpoint.num_bytes, tied_groups(model)
    for name, current in list(chain(model.named_parameters(), model.named_buffers())):
        found = places.get(name)
        if found is None:
            continue
        check_shape(found, found.first.name, current.shape)
        weight = found.weight(stored, current.dtype)
        if weight is not None:
            put_weight(model, name, weight)
        else:
            loaded = found.copy_to(torch.empty(current.shape, dtype=current.dtype), stored)
            put(model, name, loaded, is_parameter=isinstance(current, nn.Parameter))
        done += found.num_bytes
        progress(STEP_NAME, done, total, "B")
    _tie(model, tied)
    left = [name for name, value in chain(model.named_parameters(), model.named_buffers()) if value.is_meta]
    if left:
        raise InvalidModel(f"{stored.checkpoint.file}: lacks tensor {left[0]!r} of the model ({len(left)} missing)")


def is_rounded(model: PreTrainedModel, name: str) -> bool:
    """Whether a parameter is the weight of a linear layer that is quantized at load: neither the head's, nor that of a router of
    experts."""
    path, _, leaf = name.rpartition(".")
    layer = model.get_submodule(path)
    inner = layer is not model.get_output_embeddings() and path.rpartition(".")[2] not in _ROUTERS
    return type(layer) is nn.Linear and leaf == "weight" and inner


def rounding_of(model: PreTrainedModel, name: str, quantize: str) -> str:
    """What a parameter is rounded to where weights are quantized at load; "" if it is kept."""
    if is_rounded(model, name):
        return quantize
    path, _, leaf = name.rpartition(".")
    head = model.get_output_embeddings()
    return head_rounding(quantize) if head is model.get_submodule(path) and type(head) is nn.Linear and leaf == "weight" else ""


def round_head(model: PreTrainedModel, quantize: str, dtype: torch.dtype) -> None:
    """Round the output head if weights are quantized at load. A tied embedding stays as it is."""
    head = model.get_output_embeddings()
    paths = [path for path, layer in model.named_modules() if layer is head]
    if paths and rounding_of(model, f"{paths[0]}.weight", quantize):
        weight = rounded(head.weight.data, head_rounding(quantize), dtype)
        model.set_submodule(paths[0], WeightLinear(weight.apply(torch.clone), head.bias))


def put_weight(model: PreTrainedModel, name: str, weight: Weight) -> None:
    """Set a quantized weight, in new memory: quantized if it is an untied linear layer's, else dequantized."""
    path, _, leaf = name.rpartition(".")
    layer = model.get_submodule(path)
    if type(layer) is nn.Linear and leaf == "weight" and not any(name in group for group in tied_groups(model)):
        model.set_submodule(path, WeightLinear(weight.apply(torch.clone), layer.bias))
    else:
        put(model, name, weight.dequantize(), is_parameter=True)


def put(model: nn.Module, name: str, value: Tensor, *, is_parameter: bool) -> None:
    path, _, leaf = name.rpartition(".")
    module = model.get_submodule(path)
    if is_parameter:
        module._parameters[leaf] = nn.Parameter(value, requires_grad=False)
    else:
        module._buffers[leaf] = value


def _tie(model: PreTrainedModel, tied: Iterable[set[str]]) -> None:
    """Let tied names share the tensor that the checkpoint holds."""
    for group in tied:
        present = [name for name in sorted(group) if not model.get_parameter(name).is_meta]
        for name in group:
            if present and model.get_parameter(name).is_meta:
                put(model, name, model.get_parameter(present[0]), is_parameter=True)
    if not isinstance(getattr(model, "all_tied_weights_keys", None), dict):
        model.tie_weights()


def load_through_transformers(config: PretrainedConfig, stored: StoredWeights, dtype: torch.dtype) -> PreTrainedModel:
    checkpoint = stored.checkpoint
    if stored.format is not None:
        raise InvalidModel(
            f"{checkpoint.file}: quantized weights of model type {config.model_type!r} cannot be loaded: {_CONVERTED}"
        )
    try:
        model, report = auto_class(config).from_pretrained(
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
        raise InvalidModel(f"{checkpoint.file}: cannot be loaded: {one_line(error, 300)}") from error
    for kind in ("missing_keys", "mismatched_keys", "error_msgs", "conversion_errors"):
        names = _report(report, kind)
        if names:
            raise InvalidModel(f"{checkpoint.file}: {kind.replace('_', ' ')}: {names[0]} ({len(names)} in all)")
    return model


def _report(report: Any, kind: str) -> list[str]:
    """transformers 4 reports in a dict, 5 in an object or a dict."""
    found = report.get(kind) if isinstance(report, dict) else getattr(report, kind, None)
    return sorted(map(str, found or ()))
