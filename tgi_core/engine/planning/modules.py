"""Plans models that run through transformers' modules, built without weights."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace

import torch
from transformers import PreTrainedModel

from tgi_core.backend import Kernel, OpenOptions, Unsupported
from tgi_core.engine.attention.interface import NotRagged
from tgi_core.engine.attention.provider import SEES_NOTHING_AHEAD, AttentionProvider
from tgi_core.engine.comparison import MODEL_ERRORS
from tgi_core.engine.device import DeviceKit, attention_refusal
from tgi_core.engine.encoder_decoder.opening import check_options, decoder_rules, new_runner
from tgi_core.engine.hf_cache import HFCacheModel, HFCacheRunner
from tgi_core.engine.lora.adapters import Adapters
from tgi_core.engine.models.attention_layers import (
    ShapeRecorder,
    default_attention,
    name_attention,
    probe_forward,
    use_ragged_attention,
)
from tgi_core.engine.models.build import ModelSource, is_encoder_decoder, shape_of
from tgi_core.engine.models.calling import Convention, ModelCall
from tgi_core.engine.models.linear_layers import linear_sizes
from tgi_core.engine.models.loading import build_empty, looks_at_images, rounding_of, sees_images, tied_groups
from tgi_core.engine.models.merging import observed_inputs
from tgi_core.engine.models.shape import ModelShape
from tgi_core.engine.models.states.finding import state_kernels
from tgi_core.engine.open_model import model_source
from tgi_core.engine.planning.images import plan_images_in_layers
from tgi_core.engine.planning.runners import PlannedKit, PlannedRunner
from tgi_core.engine.planning.samples import WeightSamples
from tgi_core.engine.quantization.linear import Linears
from tgi_core.engine.quantization.stored import StoredWeights, open_weights
from tgi_core.engine.rows.runner import ModelAttention, row_caches
from tgi_core.engine.runner import Runner
from tgi_core.engine.selection import first_supported
from tgi_core.engine.state_runner import StateRunner
from tgi_core.engine.whole_prompts import not_causal
from tgi_core.errors import one_line

_UNCHECKED = Kernel("self-check", "at load", "what is chosen here must then agree with the model in transformers")


def plan_modules(options: OpenOptions, kit: DeviceKit, free_bytes: int | None) -> tuple[Runner, ModelShape]:
    """The runner that `select_runner` would try first and keep if the model passes its self-check. Raises InvalidModel, Unsupported."""
    source = model_source(options, kit, encoders=True)
    if is_encoder_decoder(source.config):
        return _encoder_decoder(source, options, kit, free_bytes)
    stored = open_weights(source.directory, source.quantize)

    def build(dtype: torch.dtype) -> PreTrainedModel | None:
        return build_empty(deepcopy(source.config), dtype, stored.most_elements)

    return plan_decoder(build, source, stored, kit, free_bytes)


def plan_decoder(
    build: Callable[[torch.dtype], PreTrainedModel | None],
    source: ModelSource,
    stored: StoredWeights,
    kit: DeviceKit,
    free_bytes: int | None,
) -> tuple[Runner, ModelShape]:
    """The same of a model that `build` makes without weights, whose names `stored` has. Raises InvalidModel, Unsupported."""
    model = build(source.dtype)
    if model is None:
        raise Unsupported(
            f"model type {source.config.model_type!r} computes with weights while it is built, so it must be loaded"
        )
    shape = replace(shape_of(model, source.dtype), weight_bytes=weight_bytes(model), whole_head=model.base_model is model)
    # in bfloat16: without values, some expert kernels accept nothing else
    probe = build(torch.bfloat16) or model
    _empty_buffers(probe)
    try:
        # of models with a vision tower, only such ones are not causal; whether this one is, its weights show
        convention = Convention(whole_prompts=sees_images(source.config) and not_causal(probe))
        call, seen = use_ragged_attention(probe.eval(), convention=convention)
        with observed_inputs(probe) as inputs:
            probe_forward(probe, call)
        runner, shape = _ragged(model, list(inputs), call, seen, shape, stored, kit, free_bytes)
        if looks_at_images(source.config):
            shape = plan_images_in_layers(runner, probe, PlannedKit.of(kit, free_bytes, shape.weight_bytes).free_bytes())
        return runner, shape
    except NotRagged as reason:
        return _row_by_row(model.eval(), shape, kit, free_bytes, str(reason))
    except MODEL_ERRORS as error:
        raise Unsupported(
            f"model type {model.config.model_type!r} reads its weights to choose what it runs, so it must be loaded: "
            f"{type(error).__name__}: {' '.join(str(error).split())[:120]}"
        ) from error


def _empty_buffers(model: PreTrainedModel) -> None:
    """Take the values of buffers that a checkpoint has, such as the biases of a router, as if they were weights."""
    for module in model.modules():
        for name, value in module._buffers.items():
            if value is not None and name not in module._non_persistent_buffers_set:
                module._buffers[name] = value.to("meta")


def _encoder_decoder(
    source: ModelSource, options: OpenOptions, kit: DeviceKit, free_bytes: int | None
) -> tuple[Runner, ModelShape]:
    check_options(source, options, kit)
    model = build_empty(deepcopy(source.config), source.dtype, open_weights(source.directory).most_elements)
    if model is None:
        raise Unsupported(
            f"model type {source.config.model_type!r} computes with weights while it is built, so it must be loaded"
        )
    weights = weight_bytes(model)
    try:
        runner = new_runner(model.to("meta").eval(), source, PlannedKit.of(kit, free_bytes, weights), decoder_rules(source))
    except MODEL_ERRORS as error:
        raise Unsupported(
            f"model type {model.config.model_type!r} reads its weights to be planned, so it must be loaded"
        ) from error
    runner.shape = replace(runner.shape, weight_bytes=weights)
    runner.kernels = (*runner.kernels, _UNCHECKED)
    runner.reserve = runner.promise  # type: ignore[method-assign]
    return runner, runner.shape


def weight_bytes(model: PreTrainedModel) -> int:
    """Bytes of all parameters, counting tied ones once."""
    sizes = {name: value.numel() * value.itemsize for name, value in model.named_parameters()}
    for group in tied_groups(model):
        for name in sorted(group & sizes.keys())[1:]:
            sizes.pop(name)
    return sum(sizes.values())


def _ragged(
    model: PreTrainedModel,
    names: list[str],
    call: ModelCall,
    seen: ShapeRecorder,
    shape: ModelShape,
    stored: StoredWeights,
    kit: DeviceKit,
    free_bytes: int | None,
) -> tuple[PlannedRunner, ModelShape]:
    def refusal(provider: AttentionProvider) -> str:
        if call.whole_prompts and not provider.sees_ahead:
            return SEES_NOTHING_AHEAD
        return attention_refusal(provider, seen.layers, shape.dtype, kit)

    states = call.states
    provider, rejected = first_supported(kit.attention(), refusal)
    if provider is None:
        raise Unsupported("; ".join(["no attention provider can run on this device", *rejected]))
    linears = Linears(kit.linears(), kit.device)
    samples = WeightSamples(linears, shape.dtype)
    packed = dense = kept = 0
    tied = {name for group in tied_groups(model) for name in group}
    for name in names:
        layer, weight = model.get_submodule(name), f"{name}.weight"
        columns, rows = linear_sizes(layer) or (0, 0)
        found = stored.by_name.get(weight)
        rounding = rounding_of(model, weight, stored.quantize)
        if found is not None and found.format is not None:
            packed += samples.stored_bytes(found, rounding)
        else:
            packed += samples.plain_bytes((rows, columns), rounding)
        dense += rows * columns * shape.dtype.itemsize
        kept += rows * columns * shape.dtype.itemsize if weight in tied else 0
    beside = kept if kit.device.type == "cpu" else 0  # a tied head that is packed leaves the embedding as it is
    shape = replace(shape, weight_bytes=shape.weight_bytes + packed - dense + beside)
    attention = Kernel("attention", provider.name, "; ".join(rejected))
    planned = PlannedKit.of(kit, free_bytes, shape.weight_bytes)
    if states is None:
        kernels = (attention, *linears.kernels(), _UNCHECKED)
        runner = PlannedRunner(seen.shapes, shape, planned, provider.block_sizes, kernels)
        runner.whole_prompts = call.whole_prompts
        return runner, shape
    kernels = (*state_kernels(states, attention), *linears.kernels(), _UNCHECKED)
    sizes = provider.block_sizes if seen.shapes else (shape.max_positions,)
    features, row_bytes = StateRunner.features, states.row_bytes_as(shape.dtype)
    return PlannedRunner(seen.shapes, shape, planned, sizes, kernels, features, row_state_bytes=row_bytes), shape


def _row_by_row(
    model: PreTrainedModel, shape: ModelShape, kit: DeviceKit, free_bytes: int | None, reason: str
) -> tuple[Runner, ModelShape]:
    """Over paged blocks if the model's cache fits in them, else with its own cache."""
    planned = PlannedKit.of(kit, free_bytes, shape.weight_bytes)
    name_attention(model, default_attention(model))
    try:
        layers = row_caches(HFCacheModel(model), kit).shapes
    except MODEL_ERRORS as error:
        runner = HFCacheRunner(
            model, shape, planned, Adapters(model, (), torch.float32, kit.device), reason=f"{reason}; {one_line(error)}"
        )
        runner.shape = shape
        runner.kernels = (*runner.kernels, _UNCHECKED)
        return runner, shape
    kernels = (Kernel("attention", ModelAttention.name, reason), _UNCHECKED)
    return PlannedRunner(layers, shape, planned, ModelAttention.block_sizes, kernels), shape
