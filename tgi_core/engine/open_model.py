"""Opens a model on a device; device packages call it from `backend_open`.

Devices that support it run a decoder of the Llama family from a table, without transformers. All other models, and whatever the table
cannot describe, run through transformers' own modules.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch

from tgi_core.backend import Feature, InvalidModel, Kernel, OpenOptions, Progress, Unsupported
from tgi_core.engine.ahead.device import AheadRunner, QueuedDevice
from tgi_core.engine.ahead.ranks import AheadRankSession
from tgi_core.engine.ahead.session import AheadSession
from tgi_core.engine.attention.interface import NotRagged
from tgi_core.engine.base_session import BaseSession
from tgi_core.engine.collectives import Collectives, open_collectives
from tgi_core.engine.decoder.adapters import TableAdapter
from tgi_core.engine.decoder.partition import RankWeights
from tgi_core.engine.decoder.reference import reference_logits
from tgi_core.engine.decoder.table import DecoderTable, read_table
from tgi_core.engine.decoder.unsupported import UnsupportedFamily
from tgi_core.engine.decoder.weights import DecoderWeights
from tgi_core.engine.device import DeviceKit, TableRunner, experts_of
from tgi_core.engine.drafts import allow_drafts
from tgi_core.engine.load_heap import load_heap
from tgi_core.engine.lora.files import open_adapter
from tgi_core.engine.lora.weights import adapters_to_check
from tgi_core.engine.models.shape import ModelShape
from tgi_core.engine.paged_decoder import PagedDecoderRunner
from tgi_core.engine.quantization.stored import open_weights
from tgi_core.engine.runner import Runner, TakesImages
from tgi_core.engine.self_check import RAGGED_CHUNKS, Expected, check_runner, probe_ids
from tgi_core.engine.speculators.base import Speculator, no_proposals
from tgi_core.engine.speculators.draft_model import PagedModel
from tgi_core.engine.speculators.opening import open_own_layers, open_speculator
from tgi_core.engine.sync_session import SyncSession
from tgi_core.engine.weights.sizes import check_model
from tgi_core.engine.window_groups import separate_windows
from tgi_core.errors import StartupError
from tgi_core.model_files import read_json
from tgi_core.speculator_files import brings_layers

if TYPE_CHECKING:
    from tgi_core.engine.models.build import ModelSource

_log = logging.getLogger("tgi_core.engine")


def open_session(options: OpenOptions, kit: DeviceKit, progress: Progress) -> BaseSession:
    """Load a model and choose how it runs. Raises InvalidModel, Unsupported, PeerLost."""
    with load_heap():
        session = _opened(options, kit, progress)
    session.declare(quantize=options.quantize)
    return session


def _opened(options: OpenOptions, kit: DeviceKit, progress: Progress) -> BaseSession:
    collectives: Collectives | None = None
    try:
        if options.group.world == 1:
            runner = open_table(options, kit, progress)
        else:
            weights = _rank_weights(options, kit)
            collectives = open_collectives(options.group, kit.collectives, kit.device)
            runner = _open_rank(weights, options, kit, progress, collectives)
    except UnsupportedFamily as reason:
        _log.info("runs through transformers' modules: %s", reason)
        return open_modules(options, kit, progress, Kernel("step", "transformers' modules", str(reason)), collectives)
    except BaseException:
        if collectives is not None:
            collectives.close()
        raise
    return _session(runner, runner.shape, kit, options, kit.choices(), progress, collectives)


def _rank_weights(options: OpenOptions, kit: DeviceKit) -> DecoderWeights:
    """A model's table, if ranks can share it: found out before they connect, alike on all of them. Raises UnsupportedFamily with the
    reason, Unsupported."""
    if kit.queue() is None or options.adapters:
        raise UnsupportedFamily("several ranks share single modules")
    weights = table_weights(options, kit)
    try:
        RankWeights(weights, options.group)
    except Unsupported as reason:
        raise UnsupportedFamily(str(reason)) from reason
    return weights


def _open_rank(
    weights: DecoderWeights, options: OpenOptions, kit: DeviceKit, progress: Progress, collectives: Collectives
) -> PagedDecoderRunner:
    """This rank's step over its part of the table, checked against plain torch. Raises UnsupportedFamily on all ranks alike."""
    runner, reason = None, ""
    try:
        found = kit.table_runner(RankWeights(weights, options.group), progress)
        runner = found if isinstance(found, PagedDecoderRunner) else None
    except UnsupportedFamily as error:
        reason = str(error)
    collectives.meet()  # reading takes some ranks longer than others, and the device's own timeouts do not allow for that
    if not collectives.least(int(runner is not None)) or runner is None:
        raise UnsupportedFamily(reason or "a rank of this device has no step for tables that are divided")
    runner.join(collectives)
    runner.use_fastest_attention()
    expected = _expected(weights)
    weights.forget()
    collectives.meet()
    _check_table(runner, expected, weights.table)
    return runner


def open_modules(
    options: OpenOptions, kit: DeviceKit, progress: Progress, step: Kernel, collectives: Collectives | None = None
) -> BaseSession:
    """A session over transformers' modules, or this rank's part of them; `step` says why. `collectives`, if ranks have connected already.
    Raises InvalidModel, Unsupported, PeerLost."""
    # transformers takes seconds to import: import it only for models that need it.
    from tgi_core.engine.encoder_decoder.opening import open_encoder_decoder
    from tgi_core.engine.models.build import is_encoder_decoder
    from tgi_core.engine.parallel.loading import check_partition, load_partition
    from tgi_core.engine.rank_session import RankSession
    from tgi_core.engine.runner_selection import select_runner

    group, kernels, source = options.group, (*kit.choices(), step), model_source(options, kit, encoders=True)
    if is_encoder_decoder(source.config):
        return open_encoder_decoder(source, options, kit, progress, kernels)
    if options.adapters and group.world != 1:
        raise Unsupported(f"--lora-adapters: adapters cannot be split over {group.world} ranks; leave one of the two out")
    adapters = tuple(map(open_adapter, options.adapters))
    if group.world == 1:
        runner, shape = select_runner(source, kit, progress, adapters)
        return _session(runner, shape, kit, options, kernels, progress)
    check_partition(source.config, source.dtype, group.rank, group.world, open_weights(source.directory).most_elements)
    collectives = collectives or open_collectives(group, kit.collectives, kit.device)
    load = partial(load_partition, collectives=collectives)
    runner, shape = select_runner(replace(source, load=load), kit, progress, collectives=collectives)
    drafts, images = allow_drafts(runner, exact=True), _no_images(runner, "several ranks share the model")
    kernels = (*kernels, drafts, *images, *no_proposals(options, "several ranks share the model"))
    separate_windows(runner, kit)
    return RankSession(runner, shape, options.masks, collectives, kernels)


def model_source(options: OpenOptions, kit: DeviceKit, encoders: bool = False) -> ModelSource:
    """The model as transformers' modules; with `encoders`, also an encoder-decoder. Raises InvalidModel, Unsupported."""
    from tgi_core.engine.models.build import ModelSource, read_config, stored_dtype

    config = read_config(Path(options.model), encoders)
    dtype = kit.choose_dtype(options.dtype, stored_dtype(config))
    return ModelSource(Path(options.model), config, dtype, device=kit.device, quantize=options.quantize)


def _session(
    runner: Runner,
    shape: ModelShape,
    kit: DeviceKit,
    options: OpenOptions,
    kernels: tuple[Kernel, ...],
    progress: Progress,
    collectives: Collectives | None = None,
) -> BaseSession:
    """One step ahead if the device is asynchronous and the runner's steps can be enqueued; else one step at a time."""
    queue, masks, adapters = kit.queue(), options.masks, tuple(each.name for each in options.adapters)
    if queue is None:
        speculator, told = _speculator(runner, shape, kit, options, progress)
        separate_windows(runner, kit)
        return SyncSession(runner, shape, masks, adapters, (*kernels, *told), speculator)
    why = "the steps of this device run on its queue"
    kernels = (*kernels, allow_drafts(runner, exact=False), *no_proposals(options, why), *_no_images(runner, why))
    # checked on the class: an instance without a cache may raise
    if not hasattr(type(runner), "forward") or not getattr(type(runner), "enqueued", True):
        kernels = (*kernels, Kernel("run ahead", "lock step", "this model's steps cannot be enqueued"))
        return SyncSession(runner, shape, masks, adapters, kernels)
    ahead = "one step" if queue.in_flight > 1 else "lock step"
    kernels = (*kernels, Kernel("run ahead", ahead))
    if collectives is not None:
        return AheadRankSession(cast(AheadRunner, runner), QueuedDevice(kit, queue, shape), masks, collectives, kernels)
    return AheadSession(cast(AheadRunner, runner), QueuedDevice(kit, queue, shape), masks, adapters, kernels)


def _no_images(runner: Runner, reason: str) -> tuple[Kernel, ...]:
    """Declare that a runner takes no images. Returns what to report."""
    if not isinstance(runner, TakesImages) or Feature.MEDIA not in runner.features:
        return ()
    runner.refuse_images()
    return (Kernel("images", "refused", reason),)


def _speculator(
    runner: Runner, shape: ModelShape, kit: DeviceKit, options: OpenOptions, progress: Progress
) -> tuple[Speculator | None, tuple[Kernel, ...]]:
    """The speculator of a model, if one is requested and the model runs drafts; and what to report about both. Raises InvalidModel,
    Unsupported."""
    if not options.speculator:
        return None, (allow_drafts(runner, exact=True),)

    def open_runner(directory: Path) -> Runner:
        return _draft_runner(OpenOptions(str(directory), options.dtype), kit, progress)

    if brings_own_layers(options):
        speculator, told = open_own_layers(lambda: model_source(options, kit), runner, shape, kit, progress)
    else:
        speculator, told = open_speculator(Path(options.speculator), runner, shape, kit, open_runner)
    drafts = allow_drafts(runner, exact=True)  # only now does the runner keep hidden states, if it has to
    if Feature.SPECULATION not in runner.features:
        if isinstance(runner, PagedModel):
            runner.beside = None
        return None, (drafts, *no_proposals(options, told.reason if speculator is None else "there are no drafts"))
    return speculator, (drafts, told)


def brings_own_layers(options: OpenOptions) -> bool:
    """Whether the requested speculator is the model itself, which brings layers for multi-token prediction."""
    own = bool(options.speculator) and Path(options.speculator) == Path(options.model)
    return own and brings_layers(Path(options.model))


def _draft_runner(options: OpenOptions, kit: DeviceKit, progress: Progress) -> Runner:
    """A runner of a draft model. Raises InvalidModel, Unsupported."""
    check_model(Path(options.model))
    try:
        return open_table(options, kit, progress)
    except UnsupportedFamily as reason:
        from tgi_core.engine.runner_selection import select_runner

        _log.info("the draft model runs through transformers' modules: %s", reason)
        return select_runner(model_source(options, kit), kit, progress)[0]


NewRunner = Callable[[DecoderWeights, Progress], TableRunner]


def open_table(options: OpenOptions, kit: DeviceKit, progress: Progress) -> TableRunner:
    """The device's own step over the model's table, checked against plain torch. Raises UnsupportedFamily with the reason, Unsupported."""
    runner, check = load_table(options, kit, progress, kit.table_runner)
    if isinstance(runner, PagedDecoderRunner):
        runner.use_fastest_attention()
    check()
    return runner


def load_table(
    options: OpenOptions, kit: DeviceKit, progress: Progress, make: NewRunner
) -> tuple[TableRunner, Callable[[], None]]:
    """A step over the model's table, and what checks it against plain torch: both raise UnsupportedFamily with the reason. Raises
    Unsupported."""
    weights = table_weights(options, kit)
    table = weights.table
    expected = _expected(weights)  # first: it takes memory for a time
    runner = make(weights, progress)
    weights.forget()
    return runner, partial(_check_table, runner, expected, table)


def _check_table(runner: TableRunner, expected: Expected, table: DecoderTable) -> None:
    try:
        check_runner(runner, expected, RAGGED_CHUNKS)
    except NotRagged as error:
        raise UnsupportedFamily(f"its step from the table fails the self-check: {error}") from error
    _log.info("%s runs from its table", table.model_type)


def table_weights(options: OpenOptions, kit: DeviceKit) -> DecoderWeights:
    """A model's table and its weights, of which only headers are read. Raises UnsupportedFamily with the reason, Unsupported."""
    if reason := kit.table_refusal():
        raise UnsupportedFamily(reason)
    directory = Path(options.model)
    try:
        config = read_json(directory / "config.json")
    except StartupError as error:
        raise UnsupportedFamily(str(error)) from error
    table = read_table(config, experts_of(kit) is not None)
    dtype = kit.choose_dtype(options.dtype, _stored_dtype(config))
    adapters = tuple(TableAdapter(open_adapter(each), table) for each in options.adapters)
    try:
        return DecoderWeights(table, open_weights(directory, options.quantize), dtype, adapters)
    except InvalidModel as error:
        raise UnsupportedFamily(str(error)) from error


def _expected(weights: DecoderWeights) -> Expected:
    """The reference of the table's self-check: logits without an adapter, and with some of them."""
    ids, by_name = probe_ids(weights.table.vocab_size), {adapter.name: adapter for adapter in weights.adapters}
    checked = adapters_to_check({name: adapter.targets for name, adapter in by_name.items()})
    return {None: reference_logits(weights, ids)} | {name: reference_logits(weights, ids, by_name[name]) for name in checked}


def _stored_dtype(config: dict[str, Any]) -> torch.dtype:
    """The dtype that the config names; float32 when it names none."""
    named = config.get("dtype") or config.get("torch_dtype")
    found = getattr(torch, named, None) if isinstance(named, str) else None
    return found if isinstance(found, torch.dtype) else torch.float32
