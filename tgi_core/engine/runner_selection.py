"""Choosing how a model runs, and checking the choice on the model itself before serving."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor
from transformers import PreTrainedModel

from tgi_core.backend import InvalidModel, Kernel, Progress, Unsupported
from tgi_core.engine.attention.interface import NotRagged
from tgi_core.engine.attention.provider import SEES_NOTHING_AHEAD, AttentionProvider
from tgi_core.engine.attention.sharing import drop_head_shards
from tgi_core.engine.attention_choice import fastest_attention
from tgi_core.engine.collectives import Collectives
from tgi_core.engine.comparison import MODEL_ERRORS, Agree
from tgi_core.engine.device import DeviceKit, attention_refusal, experts_of
from tgi_core.engine.hf_cache import HFCacheRunner
from tgi_core.engine.lora.adapters import Adapters
from tgi_core.engine.lora.files import AdapterFile
from tgi_core.engine.media.opening import ImageCheck, offer_images, plan_images, refused
from tgi_core.engine.models.attention_layers import (
    ShapeRecorder,
    default_attention,
    name_attention,
    probe_forward,
    use_ragged_attention,
)
from tgi_core.engine.models.build import ModelSource, first_position, ids_without_logits, shape_of
from tgi_core.engine.models.calling import Convention, ModelCall
from tgi_core.engine.models.expert_layers import use_kernel
from tgi_core.engine.models.generating import counts_positions, generated_logits, plain_logits
from tgi_core.engine.models.linear import KernelLinear
from tgi_core.engine.models.loading import tied_groups
from tgi_core.engine.models.merging import observed_inputs
from tgi_core.engine.models.preparing import replace_linears
from tgi_core.engine.models.shape import ModelShape
from tgi_core.engine.models.states.finding import state_kernels
from tgi_core.engine.quantization.linear import Linears
from tgi_core.engine.quantization.stored import open_weights
from tgi_core.engine.ragged import RaggedRunner
from tgi_core.engine.rows.runner import RowRunner
from tgi_core.engine.runner import Runner
from tgi_core.engine.selection import first_supported
from tgi_core.engine.self_check import OWN_CACHE_CHUNKS, RAGGED_CHUNKS, Expected, check_runner, probe_ids
from tgi_core.engine.state_runner import StateRunner
from tgi_core.engine.whole_prompts import prompt_and_answer_logits, sees_whole_prompts
from tgi_core.errors import one_line

_log = logging.getLogger("tgi_core.engine")

_WHOLE_PROMPTS = "model type {!r} cannot be run, since tokens of its prompts see those after them"


def select_runner(
    source: ModelSource,
    kit: DeviceKit,
    progress: Progress,
    files: Sequence[AdapterFile] = (),
    collectives: Collectives | None = None,
) -> tuple[Runner, ModelShape]:
    """The ragged engine if its self-check passes, else attention by the model, row by row; the same on all ranks.
    Raises InvalidModel, Unsupported."""
    agree = int if collectives is None else collectives.least
    model = source.build(progress)
    # In float32 even if the model runs in bfloat16: a CPU computes GEMMs as small as these in a quarter of the time (8 instead of 30 µs
    # for one token, rank 16, 576 → 1536), and adapters are small.
    adapters = Adapters(model, files, torch.float32, kit.device)
    shape = shape_of(model, source.dtype)
    whole_prompts = sees_whole_prompts(model, probe_ids(shape.vocab_size))
    if whole_prompts and (collectives is not None or kit.queue() is not None):
        raise InvalidModel(f"{_WHOLE_PROMPTS.format(model.config.model_type)}: this engine runs them on CPUs, with one rank")
    convention, given = Convention(whole_prompts, counts_positions(model)), list[int]()
    if convention.counts_positions:
        shape = replace(shape, max_positions=max(1, shape.max_positions - first_position(model.config)))
    expected = expected_logits(model, adapters, probe_ids(shape.vocab_size), whole_prompts, given)
    convention = replace(convention, whole_rows=len(given) > 1 and given[1] > 1)
    adapters.pack(kit.lora_kernel)
    shape = replace(shape, adapter_bytes=adapters.num_bytes)
    images = plan_images(model, source.directory, whole_prompts)
    # elsewhere images are refused, and text needs no such attention
    sees_ahead = isinstance(images, ImageCheck) and images.sees_ahead and collectives is None and kit.queue() is None
    while True:
        try:
            runner = _ragged(model, expected, shape, source, kit, progress, adapters, agree, sees_ahead, convention)
            told = offer_images(runner, runner.model, images, kit.free_bytes()) if isinstance(images, ImageCheck) else images
            if told is not None:
                runner.kernels = (*runner.kernels, told)
            return runner, runner.shape
        except MODEL_ERRORS as reason:
            if drop_head_shards(model):
                _log.info("%s: every rank computes all heads: %s", model.config.model_type, reason)
                continue
            if whole_prompts:
                raise InvalidModel(f"{_WHOLE_PROMPTS.format(model.config.model_type)}: {one_line(reason)}") from reason
            _log.info("%s computes attention by itself, row by row: %s", model.config.model_type, reason)
            why_own = one_line(reason)
            break
    adapters.remove(model)
    name_attention(model, default_attention(model))
    adapters.install(model)
    shape = replace(shape, vocab_size=shape.vocab_size - ids_without_logits(model))
    own, shape = _row_by_row(model, expected, shape, kit, adapters, agree, why_own, convention)
    if images is not None:
        told = images if isinstance(images, Kernel) else refused(model, f"this engine does not compute its attention: {why_own}")
        own.kernels = (*own.kernels, told)
    return own, shape


def _row_by_row(
    model: PreTrainedModel,
    expected: Expected,
    shape: ModelShape,
    kit: DeviceKit,
    adapters: Adapters,
    agree: Agree,
    reason: str,
    convention: Convention,
) -> tuple[RowRunner | HFCacheRunner, ModelShape]:
    """A runner for a model that the ragged engine cannot run for this reason: over paged blocks if its cache fits in them, else with its
    own cache, or without one; the same on all ranks. Raises InvalidModel."""
    if adds_tokens(model):
        raise InvalidModel(
            f"model type {model.config.model_type!r} predicts at a token of its own after the text: this engine runs models that predict "
            "at the text's last token"
        )
    try:
        runner = RowRunner(model, shape, kit, adapters, agree, reason, convention)
        check_runner(runner, expected, RAGGED_CHUNKS)
        return runner, runner.shape
    except MODEL_ERRORS as error:
        _log.warning("%s runs with its own cache, one row at a time: %s", model.config.model_type, error)
        reason = f"{reason}; {one_line(error)}"
    for cached in (True, False):
        own = HFCacheRunner(model, shape, kit, adapters, agree, reason, cached, convention)
        try:
            check_runner(own, expected, OWN_CACHE_CHUNKS)
            return own, own.shape
        except MODEL_ERRORS as error:
            last = one_line(error)
            _log.warning("%s: not %s: %s", model.config.model_type, own.kernels[0].name, last)
            reason = f"{reason}; {last}"
    raise InvalidModel(f"model type {model.config.model_type!r} cannot be run for many rows: {last}")


def _ragged(
    model: PreTrainedModel,
    expected: Expected,
    shape: ModelShape,
    source: ModelSource,
    kit: DeviceKit,
    progress: Progress,
    adapters: Adapters,
    agree: Agree,
    sees_ahead: bool,
    convention: Convention,
) -> RaggedRunner:
    """The ragged engine, self-checked with the model's own modules, then with the device's linear kernels and the adapters: those are kept
    if they pass as well."""
    if adapters.partial:
        raise NotRagged(f"adapters change {min(adapters.partial)}, which gets only some of a step's tokens")
    call, seen_layers = use_ragged_attention(model, agree, convention)
    if call.states is not None and (inside := adapters.inside(call.states.layers)):
        raise NotRagged(f"adapters change {inside}, part of a layer that keeps states")
    shape = replace(shape, whole_head=call.head is None)
    if kit.kv_cache_dtype is not None:
        seen_layers.use_scales(open_weights(source.directory).cache_scales)
    runner = _with_attention(call, seen_layers, expected, shape, kit, adapters, agree, sees_ahead)
    with observed_inputs(model) as seen:
        probe_forward(model, call)
    linears, tied = Linears(kit.linears(), kit.device), _tied(model)
    replace_linears(model, seen, lambda weight, bias: KernelLinear(linears.load(weight, bias), weight, bias))
    kernel = experts_of(kit)
    fused = kernel is not None and use_kernel(model, kernel)
    adapters.install(model)
    runner.rounds_inputs = linears.rounds_inputs
    try:
        check_runner(runner, expected, RAGGED_CHUNKS)
    except MODEL_ERRORS as reason:
        _log.warning("%s keeps its own modules: %s", model.config.model_type, reason)
        model = source.build(progress)
        call, _ = use_ragged_attention(model, agree, convention)
        adapters.install(model)
        kernels = (*runner.kernels, Kernel("linear", "transformers' own", one_line(reason)))
        runner = type(runner)(call, runner.layers, shape, kit, runner.provider, adapters, agree)
        runner.kernels = kernels
        if adapters.names:
            check_runner(runner, expected, RAGGED_CHUNKS)
        return runner
    runner.kernels = (*runner.kernels, *linears.kernels())
    if kernel is not None and fused:
        runner.kernels = (*runner.kernels, Kernel("experts", kernel.name))
    runner.shape = replace(shape, weight_bytes=shape.weight_bytes - linears.saved_bytes + _kept_bytes(model, tied))
    return runner


def _tied(model: PreTrainedModel) -> list[set[str]]:
    """Names of parameters that are one; a head that was rounded at load is no longer its embedding."""
    parameters = dict(model.named_parameters(remove_duplicate=False))
    return [
        group for group in tied_groups(model) if len({parameters[name].data_ptr() for name in group & parameters.keys()}) == 1
    ]


def _kept_bytes(model: PreTrainedModel, tied: list[set[str]]) -> int:
    """Bytes of tied weights, such as embeddings, that stay beside what a kernel has packed for the output head."""
    kept = 0
    for group in tied:
        modules = [model.get_submodule(name.rpartition(".")[0]) for name in sorted(group)]
        packed = [module for module in modules if isinstance(module, KernelLinear) and not module.keeps_weight]
        if packed and len(packed) < len(modules):
            kept += packed[0].weight.numel() * packed[0].weight.itemsize
    return kept


def _with_attention(
    call: ModelCall,
    seen: ShapeRecorder,
    expected: Expected,
    shape: ModelShape,
    kit: DeviceKit,
    adapters: Adapters,
    agree: Agree,
    sees_ahead: bool,
) -> RaggedRunner:
    """A runner with the fastest attention provider that supports the layers and passes the self-check, the same on all ranks.

    `sees_ahead`: preferably one with which tokens of an image can see each other; those of a prompt must if they do. Logs rejections.
    Raises the last self-check's error, or Unsupported.
    """
    failures: list[Exception] = []

    def runner(provider: AttentionProvider) -> RaggedRunner:
        new = RaggedRunner if call.states is None else StateRunner
        return new(call, tuple(seen.shapes), shape, kit, provider, adapters, agree)

    def refusal(provider: AttentionProvider) -> str:
        if (sees_ahead or call.whole_prompts) and not provider.sees_ahead:
            return SEES_NOTHING_AHEAD
        reason = attention_refusal(provider, seen.layers, shape.dtype, kit)
        if agree(int(not reason)):
            try:
                check_runner(runner(provider), {None: expected[None]}, RAGGED_CHUNKS)
            except MODEL_ERRORS as error:
                failures.append(error)
                reason = one_line(error)
        else:
            reason = reason or "another rank cannot"
        if reason:
            _log.info("attention: not %s: %s", provider.name, reason)
        return reason

    providers = list(kit.attention())
    provider, rejected = first_supported(providers, refusal)
    if provider is None and sees_ahead:
        return _with_attention(call, seen, expected, shape, kit, adapters, agree, sees_ahead=False)
    if provider is None:
        reasons = "; ".join(["no attention provider can run on this device", *rejected])
        raise failures[-1] if failures else Unsupported(reasons)
    choices = providers[providers.index(provider) :]
    provider, told = fastest_attention(kit, seen.layers, shape.dtype, choices, refusal, agree)
    found, attention = runner(provider), Kernel("attention", provider.name, "; ".join([*rejected, *told]))
    _log.info("attention: %s", "; ".join([provider.name, *told]))
    found.kernels = (attention,) if call.states is None else state_kernels(call.states, attention)
    return found


def adds_tokens(model: PreTrainedModel) -> bool:
    """Whether `generate` gives the model more tokens than the text has, such as a mask to be filled in (XLM, XLNet)."""
    ids = torch.zeros(1, 2, dtype=torch.int64, device=model.device)
    try:
        prepared = model.prepare_inputs_for_generation(ids, is_first_iteration=True).get("input_ids")
    except MODEL_ERRORS:
        return False
    return prepared is not None and prepared.shape[1] > ids.shape[1]


def expected_logits(
    model: PreTrainedModel, adapters: Adapters, ids: list[int], whole_prompts: bool, given: list[int]
) -> Expected:
    """The reference of the self-check: the logits that `generate` gets without an adapter, and with some of them. With `whole_prompts`, the
    tokens of the check's first chunk are a prompt, and see each other. `given`: see `generated_logits`. Raises InvalidModel."""

    def logits() -> Tensor:
        if whole_prompts:
            return prompt_and_answer_logits(model, ids, RAGGED_CHUNKS[0])
        return generated_logits(model, ids, len(ids) - 1, given)

    if adapters.names:
        with adapters.watched(model, len(ids)):
            plain_logits(model, ids)
    expected: Expected = {None: logits()}
    adapters.install(model)
    for name in adapters.to_check():
        with adapters.whole(name):
            expected[name] = logits()
    adapters.remove(model)
    return expected
