"""Ways to open a shard: in this process, in a child process, or at the address of a running one."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from tgi_core.backend import API_VERSION, BackendError, Capabilities, Feature, Progress, WarmupPlan
from tgi_core.backend.probe import probe_all
from tgi_core.backend.registry import BY_NAME_ONLY, Plugin, find, installed, load, select
from tgi_core.backend.session import Session
from tgi_core.backend.wrappers import Metrics, Trace
from tgi_core.cli.fault_injection import inject_faults
from tgi_core.cli.open_options import open_options
from tgi_core.cli.ranks import open_ranks
from tgi_core.cli.ray_engine import open_on_ray
from tgi_core.cli.shard_flags import shard_flags
from tgi_core.cli.weights import fetch_adapters
from tgi_core.client.base import Opener, Plan, ReadyShard, ShardClient
from tgi_core.client.local import LocalShard
from tgi_core.client.warmup import warm_up
from tgi_core.config import MAX_DRAFTS, Settings
from tgi_core.errors import StartupError
from tgi_core.media.processing import MediaProcessing
from tgi_core.server.masks import GrammarMasks
from tgi_core.server.model_server import ModelServer
from tgi_core.server.rank_place import Place, ReplicaPlace
from tgi_core.server.verb_log import VerbLog
from tgi_core.shard_access import access_of_router
from tgi_core.tokenizer import Tokenizer
from tgi_core.wire.types import ShardInfo

_log = logging.getLogger(__name__)

_USUAL_DRAFTS = 4
"""Drafts of a draft model, which can guess as many as there may be."""
_COMPARED = 256
"""Tokens of a draft model that are compared with the model's."""
_MOST_ADDED = 20_000
"""Maximum number of added tokens for grammars. llguidance takes quadratic time while holding the GIL: 4 s for 20,000 tokens, 40 s
for the 65,536 of a speech model."""


def choose_backend(name: str | None) -> Plugin:
    """Load the named backend without probing it, or select one by probing. Raises StartupError."""
    if name is not None:
        return find(name)
    plugins = [load(entry) for entry in installed()]
    wanted = [item for item in plugins if item.device_kind not in BY_NAME_ONLY]
    return select(probe_all(wanted))


def open_model(
    directory: Path,
    tokenizer: Tokenizer,
    settings: Settings,
    show: Progress,
    place: Place | None = None,
    lost: Callable[[], None] | None = None,
    replica: ReplicaPlace | None = None,
) -> ModelServer:
    """Open a model with the configured backend on all ranks. `lost` is called from another thread when a rank is lost. Raises
    StartupError."""
    plugin = choose_backend(settings.backend)
    _check_draft_model(tokenizer, settings)
    masks = open_masks(directory, tokenizer, settings)
    adapters = fetch_adapters(settings, show)
    options = replace(open_options(directory, settings), masks=masks, adapters=adapters)
    verbs = VerbLog()
    try:
        session = Session(
            open_ranks(plugin, options, settings, show, place, lost, replica or ReplicaPlace()),
            plugin.name,
            wrappers=(Trace(), Metrics(verbs)),
            built=plugin.built,
        )
        session.check_adapters(adapters)
        session.check_cache_dtype(options.cache_dtype)
        session.check_quantize(options.quantize)
        inject_faults(session, settings)
        info = ShardInfo(directory.name, plugin.name, plugin.device_kind, settings.dtype, API_VERSION, session.capabilities())
    except BackendError as error:
        raise StartupError(f"backend {plugin.name}: {error}") from error
    media = MediaProcessing(directory) if Feature.MEDIA in info.capabilities.features else None
    return ModelServer(session, tokenizer, info, masks, verbs, media)


def _check_draft_model(tokenizer: Tokenizer, settings: Settings) -> None:
    """Check that a draft model has the model's tokenizer, as far as some of its tokens tell. Raises StartupError."""
    if settings.draft_model is None or not (Path(settings.draft_model) / "tokenizer.json").is_file():
        return
    other = Tokenizer.load(Path(settings.draft_model))
    size = min(tokenizer.vocab_size, other.vocab_size)
    ids = range(0, size, max(1, size // _COMPARED))
    differing = [id for id in ids if tokenizer.decode([id]) != other.decode([id])]
    if len(differing) > len(ids) // 10:  # a family's models may differ in a few special tokens
        id = differing[0]
        raise StartupError(
            f"--draft-model {settings.draft_model}: has another tokenizer: token {id} is {other.decode([id])[:40]!r}, and "
            f"{tokenizer.decode([id])[:40]!r} for the model"
        )


def open_masks(directory: Path, tokenizer: Tokenizer, settings: Settings) -> GrammarMasks | None:
    """Open the mask source for grammars; None if grammars are disabled or the tokenizer does not support them."""
    if settings.disable_grammar_support:
        return None
    if tokenizer.num_added > _MOST_ADDED:
        _log.warning("%s: grammars are not supported with %d added tokens", directory / "tokenizer.json", tokenizer.num_added)
        return None
    return GrammarMasks.for_model(directory, tokenizer.eos_ids, settings.max_grammar_bytes)


class InProcess:
    """Opens the model in this process."""

    def __init__(self, directory: Path, settings: Settings, replica: ReplicaPlace | None = None) -> None:
        self._directory, self._settings, self._replica = directory, settings, replica

    async def open(self, plan: Plan, progress: Progress) -> ReadyShard:
        """Read the model in a thread and warm it up. Raises StartupError."""
        server = await asyncio.to_thread(self._read, progress)
        return await _warm(LocalShard(server), server.info, plan, progress)

    def _read(self, progress: Progress) -> ModelServer:
        return open_model(self._directory, Tokenizer.load(self._directory), self._settings, progress, replica=self._replica)


class InChild:
    """Opens the model in a child process with the same settings."""

    def __init__(self, directory: Path, settings: Settings, replica: ReplicaPlace | None = None) -> None:
        self._directory, self._settings = directory, settings
        self._flags = [] if replica is None else ["--replica", str(replica)]

    async def open(self, plan: Plan, progress: Progress) -> ReadyShard:
        """Start the child and wait until it is warmed up. Raises StartupError."""
        from tgi_core.client.child import open_child_shard  # imports gRPC, which in-process shards do not need

        opened = await open_child_shard(self._directory, [*shard_flags(self._settings), *self._flags], plan, progress)
        self._settings = replace(self._settings, backend=opened.info.backend)  # a restart must not select another backend
        return opened


class AtAddress:
    """Connects to a running shard of this server or of TGI."""

    def __init__(self, address: str, directory: Path, settings: Settings) -> None:
        self._address, self._directory, self._settings = address, directory, settings

    async def open(self, plan: Plan, progress: Progress) -> ReadyShard:
        """Wait until the shard has loaded its model, and warm it up if necessary. Raises StartupError."""
        from tgi_core.client.connecting import connect
        from tgi_core.server.grpc_address import check_socket

        check_socket(self._address)
        access = access_of_router(self._settings, os.environ, self._address)
        tokenizer = await asyncio.to_thread(Tokenizer.load, self._directory)
        connected = await connect(self._address, self._directory, tokenizer, progress, access)
        return await _warm(connected.shard, connected.info, plan, progress)


def choose_openers(directory: Path, settings: Settings, addresses: Sequence[str]) -> list[Opener]:
    """Choose an opener for each replica that there may be. Raises StartupError."""
    if addresses:
        return [AtAddress(address, directory, settings) for address in addresses]
    if settings.engine == "ray":
        return open_on_ray(directory, settings)
    kind, count = InProcess if settings.in_process else InChild, settings.most_replicas
    return [kind(directory, settings, ReplicaPlace(number, count) if count > 1 else None) for number in range(count)]


def warmup_plan(settings: Settings) -> Plan:
    """Function that makes the warmup plan from the settings. It raises StartupError if the cache is smaller than one block."""

    def plan(capabilities: Capabilities) -> WarmupPlan:
        tokens, block_size = settings.kv_cache_tokens, _tokens_of_a_block(settings, capabilities)
        if tokens is not None and tokens < block_size:
            raise StartupError(f"--kv-cache-tokens {tokens}: less than one block of {block_size} tokens")
        return WarmupPlan(
            max_rows=settings.max_batch_size,
            max_row_tokens=settings.max_total_tokens,
            max_step_tokens=settings.max_batch_prefill_tokens,
            num_blocks=None if tokens is None else tokens // block_size,
            block_size=None if tokens is None else next(iter(capabilities.block_sizes), None),  # num_blocks counts these blocks
            draft=_drafts(settings, capabilities),
        )

    return plan


def _drafts(settings: Settings, capabilities: Capabilities) -> int:
    """Drafts per row and step; 0, with a warning, if the backend runs none. Raises StartupError for more than a speculator guesses."""
    asked, proposals = settings.speculate, capabilities.proposals
    if asked and Feature.SPECULATION not in capabilities.features:
        _log.warning("--speculate %d is ignored: %s", asked, _told("this backend runs no drafts", "drafts", capabilities))
        return 0
    refused = any(kernel.part == "proposals" for kernel in capabilities.kernels)
    if (settings.draft_model is not None or refused) and not proposals:
        why, own = _told("this backend runs none", "proposals", capabilities), "multi-token prediction"
        _log.warning("speculator %s is ignored: %s", settings.draft_model or own, why)
    if asked is None:
        return proposals if proposals < MAX_DRAFTS else _USUAL_DRAFTS
    if proposals and asked > proposals:
        raise StartupError(f"--speculate {asked}: the speculator guesses at most {proposals} tokens")
    return asked


def _told(what: str, part: str, capabilities: Capabilities) -> str:
    """What the backend does not do, and its reasons."""
    return ": ".join([what, *(kernel.reason for kernel in capabilities.kernels if kernel.part == part)])


def _tokens_of_a_block(settings: Settings, capabilities: Capabilities) -> int:
    """Tokens per block of the backend's first size. If a block holds an entire row, --max-total-tokens limits it."""
    longest = settings.max_total_tokens
    first = next(iter(capabilities.block_sizes), capabilities.max_positions)
    return first if longest is None or first < capabilities.max_positions else min(first, longest)


async def _warm(shard: ShardClient, info: ShardInfo, plan: Plan, progress: Progress) -> ReadyShard:
    try:
        return await warm_up(shard, info, plan, progress)
    except StartupError:
        await shard.close()
        raise
