"""Plans a model as `open_model` opens it: from its table where the device runs those, else through transformers' modules."""

from __future__ import annotations

from tgi_core.backend import Kernel, OpenOptions, Unsupported
from tgi_core.engine.base_session import BaseSession
from tgi_core.engine.decoder.loading import attention_layers
from tgi_core.engine.decoder.unsupported import UnsupportedFamily
from tgi_core.engine.decoder.weights import DecoderWeights
from tgi_core.engine.device import DeviceKit, PlansTables, TablePlan
from tgi_core.engine.models.shape import ModelShape
from tgi_core.engine.open_model import brings_own_layers, table_weights
from tgi_core.engine.planning.runners import PlannedKit, PlannedRunner
from tgi_core.engine.planning.samples import WeightSamples
from tgi_core.engine.quantization.linear import Linears
from tgi_core.engine.runner import Runner
from tgi_core.engine.sync_session import SyncSession
from tgi_core.engine.window_groups import separate_windows


def plan_session(options: OpenOptions, kit: DeviceKit, free_bytes: int | None) -> BaseSession:
    """A session without weights, for its capabilities and limits. Raises InvalidModel, Unsupported."""
    if options.group.world != 1:
        raise Unsupported("a model that is divided among several ranks cannot be planned yet; leave --num-shard out")
    own = brings_own_layers(options)
    if options.adapters or (options.speculator and not own):
        raise Unsupported("adapters and speculators cannot be planned yet; leave --lora-adapters and --draft-model out")
    runner: Runner
    try:
        runner, shape = _plan_table(options, kit, free_bytes)
        kernels = kit.choices()
    except UnsupportedFamily as reason:
        # transformers takes seconds to import: import it only for models that need it.
        from tgi_core.engine.planning.modules import plan_modules

        runner, shape = plan_modules(options, kit, free_bytes)
        kernels = (*kit.choices(), Kernel("step", "transformers' modules", str(reason)))
    speculator = None
    if own:
        from tgi_core.engine.planning.own_layers import plan_own_layers

        speculator, told = plan_own_layers(options, runner, shape, kit)
        kernels = (*kernels, told)
    separate_windows(runner, kit)
    session = SyncSession(runner, shape, None, (), kernels, speculator)
    session.declare(quantize=options.quantize)
    return session


def _plan_table(options: OpenOptions, kit: DeviceKit, free_bytes: int | None) -> tuple[PlannedRunner, ModelShape]:
    """Raises UnsupportedFamily with the reason, Unsupported."""
    if not isinstance(kit, PlansTables):
        raise Unsupported("this device plans no model before it is loaded")
    weights = table_weights(options, kit)
    table, dtype = weights.table, weights.dtype
    plan = kit.plan_table(table, dtype)
    linears = Linears(kit.linears(), kit.device)
    samples, dense, packed = WeightSamples(linears, dtype, padded=False), 0, 0
    for stored, rounding in weights.linears():
        dense += stored.num_elements * dtype.itemsize
        packed += samples.stored_bytes(stored, rounding)
    saved = dense - packed - round(plan.padding_bytes * packed / dense)
    weight_bytes = weights.bytes_beside(saved) if plan.maps_embedding else weights.num_bytes - saved
    shape = ModelShape(
        dtype, table.vocab_size, table.max_positions, table.hidden, table.widest, weight_bytes, token_bytes=plan.token_bytes
    )
    planned = PlannedKit.of(kit, free_bytes, _taken(weights, plan, weight_bytes))
    layers, kernels = [layer.shape for layer in attention_layers(table)], (*plan.kernels, *linears.kernels())
    return PlannedRunner(layers, shape, planned, plan.block_sizes, kernels, plan.features, plan.spare_blocks), shape


def _taken(weights: DecoderWeights, plan: TablePlan, weight_bytes: int) -> int:
    """Bytes of the weights but for those that stay in their files."""
    if not plan.maps_embedding or weights.embedding_bytes:
        return weight_bytes
    return weight_bytes - weights.table.vocab_size * weights.table.hidden * weights.dtype.itemsize
