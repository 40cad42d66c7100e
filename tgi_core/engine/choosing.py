"""Choosing how a model runs, and proving the choice on the model itself before anything is served."""

from __future__ import annotations

import inspect
import logging

import torch
from torch import Tensor
from transformers import PreTrainedModel

from tgi_core.backend import InvalidModel, Progress, Request, Unsupported
from tgi_core.backend.ledger import LiveRow, Work
from tgi_core.engine.attention.interface import NotRagged
from tgi_core.engine.attention.sharing import forget_shares
from tgi_core.engine.collectives import Collectives
from tgi_core.engine.device import AttentionProvider, DeviceKit
from tgi_core.engine.memory import Agree
from tgi_core.engine.models.attention_layers import probe_forward, use_ragged_attention
from tgi_core.engine.models.build import ModelSource
from tgi_core.engine.models.merging import observed_inputs
from tgi_core.engine.models.preparing import replace_linears
from tgi_core.engine.models.shape import ModelShape
from tgi_core.engine.own_cache import OwnCacheRunner
from tgi_core.engine.ragged import RaggedRunner
from tgi_core.engine.runner import Runner

_log = logging.getLogger("tgi_core.engine")

_MODEL_ERRORS = (NotRagged, RuntimeError, AttributeError, TypeError, ValueError, IndexError, KeyError, NotImplementedError)
"""What a model's own code raises when it is called in a way that it wasn't written for."""

RAGGED_CHUNKS = (3, 2, 1)
"""The steps in which a few tokens are run to prove a runner: a first chunk, one that continues it, a decode step."""

OWN_CACHE_CHUNKS = (4, 1, 1)


def choose_runner(
    source: ModelSource, kit: DeviceKit, progress: Progress, collectives: Collectives | None = None
) -> tuple[Runner, ModelShape]:
    """The ragged engine where it proves right, else the model's own cache; alike on all ranks. Raises InvalidModel, Unsupported."""
    agree = int if collectives is None else collectives.least
    model = source.build(progress)
    shape = ModelShape.of(model, source.dtype)
    expected = plain_logits(model, probe_ids(shape.vocab_size))
    while True:
        try:
            return _ragged(model, expected, shape, source, kit, progress, agree), shape
        except _MODEL_ERRORS as reason:
            if forget_shares(model):
                _log.info("%s: every rank computes all heads: %s", model.config.model_type, reason)
                continue
            _log.warning("%s runs with its own cache, one row at a time: %s", model.config.model_type, reason)
            break
    model.set_attn_implementation(source.attention(model))
    own = OwnCacheRunner(model, shape, kit, agree)
    try:
        prove(own, expected, OWN_CACHE_CHUNKS)
    except _MODEL_ERRORS as reason:
        raise InvalidModel(f"model type {model.config.model_type!r} cannot be run for many rows: {_one_line(reason)}") from reason
    return own, shape


def _ragged(
    model: PreTrainedModel,
    expected: Tensor,
    shape: ModelShape,
    source: ModelSource,
    kit: DeviceKit,
    progress: Progress,
    agree: Agree,
) -> RaggedRunner:
    """Ragged with the model's own modules, proven; then with the device's, if that proves as well."""
    provider = choose_attention(kit)
    call, layers = use_ragged_attention(model)
    runner = RaggedRunner(call, layers, shape, kit, provider, agree)
    prove(runner, expected, RAGGED_CHUNKS)
    with observed_inputs(model) as seen:
        probe_forward(model, call)
    replace_linears(model, seen, kit.linear)
    try:
        prove(runner, expected, RAGGED_CHUNKS)
    except _MODEL_ERRORS as reason:
        _log.warning("%s keeps its own modules: %s", model.config.model_type, reason)
        call, layers = use_ragged_attention(source.build(progress))
        return RaggedRunner(call, layers, shape, kit, provider, agree)
    return runner


def choose_attention(kit: DeviceKit) -> AttentionProvider:
    """The first provider that can run here; the reason of every rejection is logged. Raises Unsupported."""
    for provider in kit.attention():
        reason = provider.probe()
        if not reason:
            _log.info("attention: %s", provider.name)
            return provider
        _log.info("attention: not %s: %s", provider.name, reason)
    raise Unsupported("no attention provider can run on this device")


def probe_ids(vocab_size: int) -> list[int]:
    """A few fixed tokens."""
    return [(7 * i + 1) % vocab_size for i in range(sum(RAGGED_CHUNKS))]


def plain_logits(model: PreTrainedModel, ids: list[int]) -> Tensor:
    """Logits [tokens, vocabulary] as transformers computes them, with the arguments of `generate`. Raises InvalidModel."""
    # With a cache, since in transformers 4 layers that share keys and values (Gemma 3n) do so through it, or not at all.
    arguments = {"input_ids": torch.tensor([ids], device=model.device), "use_cache": True}
    arguments["position_ids"] = torch.arange(len(ids), device=model.device).unsqueeze(0)
    takes = inspect.signature(model.forward).parameters
    try:
        with torch.inference_mode():
            logits: Tensor = model(**{name: value for name, value in arguments.items() if name in takes}).logits[0]
    except _MODEL_ERRORS as error:
        raise InvalidModel(f"model type {model.config.model_type!r} cannot be run: {_one_line(error)}") from error
    return logits


def prove(runner: RaggedRunner | OwnCacheRunner, expected: Tensor, chunks: tuple[int, ...]) -> None:
    """Run the probe tokens in chunks, beside another row and at last alone. Raises NotRagged when their logits differ."""
    ids = probe_ids(expected.shape[-1])
    row, mate = _probe_row(1, ids), _probe_row(2, ids[::-1])
    runner.use_probe_cache()
    start, found = 0, []
    for take in chunks:
        mates = [Work(mate, start, take, yields=True)] if start + take < len(ids) else []
        found.append(runner.run([*mates, Work(row, start, take, yields=True)]).last[-1])
        start += take
    runner.release()
    difference = relative_difference(torch.stack(found), expected[torch.tensor(chunks).cumsum(0) - 1])
    limit = 1e-3 if runner.shape.dtype is torch.float32 else 0.1
    if not runner.agree(int(difference <= limit)):
        raise NotRagged(f"logits differ from transformers' by {difference:.2g} of their size")


def _probe_row(id: int, tokens: list[int]) -> LiveRow:
    return LiveRow(Request(id, tuple(tokens), len(tokens), 0, ((id,),), 1), tokens, 0, ([id],))


def relative_difference(found: Tensor, expected: Tensor) -> float:
    """The norm of the difference over the norm of what is expected; positions that both rule out don't count."""
    finite = expected > torch.finfo(expected.dtype).min / 2
    found, expected = found.float()[finite], expected.float()[finite]
    return float((found - expected).norm() / expected.norm().clamp_min(1e-30))


def _one_line(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
