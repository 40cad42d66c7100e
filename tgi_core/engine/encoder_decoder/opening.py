"""Opens an encoder-decoder, and checks on the model itself that rows get the same logits together as alone."""

from __future__ import annotations

import logging
from dataclasses import replace

import torch
from torch import Tensor
from transformers import PretrainedConfig, PreTrainedModel

from tgi_core.backend import InvalidModel, Kernel, OpenOptions, Progress, Request, Unsupported
from tgi_core.backend.batch_tracker import RowInput, RowState
from tgi_core.decoder_rules import DecoderRules
from tgi_core.engine.attention.interface import NotRagged
from tgi_core.engine.comparison import MODEL_ERRORS, relative_difference
from tgi_core.engine.device import DeviceKit
from tgi_core.engine.encoder_decoder.limits import PositionLimits
from tgi_core.engine.encoder_decoder.model import EncoderDecoderModel
from tgi_core.engine.encoder_decoder.runner import EncoderDecoderRunner
from tgi_core.engine.encoder_decoder.session import EncoderDecoderSession
from tgi_core.engine.models.build import ModelSource, shape_of
from tgi_core.engine.quantization.stored import open_weights
from tgi_core.engine.speculators.base import no_proposals
from tgi_core.errors import StartupError

_log = logging.getLogger("tgi_core.engine")

_PROMPTS, _ANSWERS = ([3, 1, 4, 2, 5, 1], [2, 5, 3]), ([4, 2, 6], [6, 1, 3])
"""Prompts and answers of the two rows of the self-check; the second row starts a step later."""


def open_encoder_decoder(
    source: ModelSource, options: OpenOptions, kit: DeviceKit, progress: Progress, kernels: tuple[Kernel, ...]
) -> EncoderDecoderSession:
    """A session over a checked model. Raises InvalidModel, Unsupported."""
    check_options(source, options, kit)
    rules = decoder_rules(source)
    model = source.build(progress)
    runner = checked_runner(model, source, kit, rules)
    told = no_proposals(options, "drafts need a prompt that the decoder has read")
    return EncoderDecoderSession(runner, runner.shape, options.masks, rules, kernels=(*kernels, *told))


def check_options(source: ModelSource, options: OpenOptions, kit: DeviceKit) -> None:
    """Raises Unsupported for what encoder-decoders cannot do here."""
    kind = f"model type {source.config.model_type!r} is an encoder-decoder, which"
    if options.group.world != 1:
        raise Unsupported(f"{kind} runs on one rank; leave --num-shard out")
    if options.adapters:
        raise Unsupported(f"{kind} takes no adapters; leave --lora-adapters out")
    if options.quantize or open_weights(source.directory).format is not None:
        raise Unsupported(
            f"{kind} runs with plain weights only; leave --quantize out, or take the checkpoint that is not quantized"
        )
    if kit.kv_cache_dtype is not None:
        raise Unsupported(f"{kind} keeps its cache in the model's dtype; leave --kv-cache-dtype out")
    if getattr(source.config, "expert_capacity", None):
        raise Unsupported(
            f"{kind} drops tokens that exceed its expert_capacity, so that a row would depend on the rows beside it"
        )


def decoder_rules(source: ModelSource) -> DecoderRules:
    """The rules of a model that has a decoder. Raises InvalidModel."""
    try:
        rules = DecoderRules.read(source.directory)
    except StartupError as error:
        raise InvalidModel(str(error)) from error
    size = vocab_size(source.config)
    if rules is None or not all(id < size for id in (rules.start, rules.first or 0, *rules.never)):
        raise InvalidModel(f"{source.directory}: its start or forced tokens are beyond its vocabulary of {size}")
    return rules


def vocab_size(config: PretrainedConfig) -> int:
    """Of the decoder."""
    return int(config.get_text_config(decoder=True).vocab_size)


def checked_runner(model: PreTrainedModel, source: ModelSource, kit: DeviceKit, rules: DecoderRules) -> EncoderDecoderRunner:
    """Raises InvalidModel if rows that run together get other logits than each alone."""
    try:
        with torch.inference_mode():
            expected = [_alone(model, rules, prompt, answer) for prompt, answer in zip(_PROMPTS, _ANSWERS, strict=True)]
        runner = new_runner(model, source, kit, rules)
        _check(runner, expected)
    except MODEL_ERRORS as error:
        reason = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
        raise InvalidModel(f"model type {model.config.model_type!r} cannot be run for many rows: {reason}") from error
    _log.info("%s: an encoder-decoder, whose rows run together", model.config.model_type)
    return runner


def new_runner(model: PreTrainedModel, source: ModelSource, kit: DeviceKit, rules: DecoderRules) -> EncoderDecoderRunner:
    """A runner that has not been checked."""
    limits = PositionLimits.of(model)
    shape = replace(shape_of(model, source.dtype), vocab_size=vocab_size(model.config), max_positions=limits.positions)
    return EncoderDecoderRunner(EncoderDecoderModel(model), shape, limits, kit, rules)


def _alone(model: PreTrainedModel, rules: DecoderRules, prompt: list[int], answer: list[int]) -> Tensor:
    """Logits [steps, vocabulary] as transformers computes them, for each of the answer's tokens and the next one."""
    ids = torch.tensor([prompt], device=model.device)
    given = torch.tensor([[rules.start, *answer]], device=model.device)
    logits: Tensor = model(input_ids=ids, attention_mask=torch.ones_like(ids), decoder_input_ids=given, use_cache=False).logits
    return logits[0]


def _check(runner: EncoderDecoderRunner, expected: list[Tensor]) -> None:
    """Raises NotRagged."""
    runner.use_probe_cache()
    rows = [_row(id, prompt) for id, prompt in enumerate(_PROMPTS, 1)]
    found: list[list[Tensor]] = [[], []]
    for step in range(len(_ANSWERS[0]) + 2):
        going = [(row, step - late) for late, row in enumerate(rows) if 0 <= step - late <= len(_ANSWERS[late])]
        logits = runner.run([_input(row, count) for row, count in going]).last
        for (row, count), made in zip(going, logits, strict=True):
            index = row.request.id - 1
            found[index].append(made.clone())
            row.tokens += _ANSWERS[index][count : count + 1]
    runner.release()
    limit = 1e-3 if runner.shape.dtype is torch.float32 else 0.1
    for made, wanted in zip(found, expected, strict=True):
        difference = relative_difference(torch.stack(made), wanted)
        if not difference <= limit:
            raise NotRagged(f"logits differ from the reference by {difference:.2g} of their norm")


def _row(id: int, prompt: list[int]) -> RowState:
    # in the last lanes, so that rows move to the first
    return RowState(Request(id, tuple(prompt), len(prompt), 0, ((4 - id,),), len(prompt)), list(prompt), 0, ([4 - id],))


def _input(row: RowState, count: int) -> RowInput:
    """A row's step after `count` tokens of its answer."""
    prompt_len = row.request.prompt_len
    return RowInput(row, 0, prompt_len, True) if count == 0 else RowInput(row, prompt_len + count - 1, 1, True)
