"""Client of a shard that implements generate.v3 without tgi-core's extensions: TGI's shards.

Such a shard takes text, has blocks reserved for prompt and output when a request starts, and runs one step at a time. The
scheduler needs no special case: this client reports a device with fixed slots, each for the longest request, without growth or
mixing.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tgi_core.backend import (
    BackendError,
    CacheGroup,
    CacheKind,
    Capabilities,
    Capacity,
    Determinism,
    Feature,
    InvalidRequest,
    Mixing,
    Progress,
    Scope,
    WarmupPlan,
)
from tgi_core.client.channel import CallFailed, ShardChannel
from tgi_core.client.grammars import Release, nothing
from tgi_core.client.result_validator import invalid
from tgi_core.client.upstream_tgi.text import UpstreamRow, decode_generation, encode_request
from tgi_core.client.upstream_tgi.warmup import warmup_request
from tgi_core.grammar import Cost, Grammar
from tgi_core.media.errors import ImageRejected
from tgi_core.media.prompts import MultimodalPrompt, PromptTokens
from tgi_core.proto.generate.v3 import generate_pb2 as pb
from tgi_core.proto.sampling import TGI_FIELDS
from tgi_core.tokenizer import Tokenizer
from tgi_core.wire.types import (
    Bookkeeping,
    Decode,
    Fault,
    Filter,
    Generation,
    Prefill,
    ShardInfo,
    ShardRequest,
    StepResult,
    Turn,
    TurnResult,
)

_FEATURES = frozenset({Feature.LOGPROBS, Feature.PROMPT_LOGPROBS, Feature.TOP_N})
_SAMPLING = frozenset(spec.field for spec in TGI_FIELDS if spec.field is not None)
_ROWS = 128
_PREFILL_TOKENS = 4096
_PADDED_TOKENS = 16_000
"""Tokens per batch for a shard that pads and does not report how many fit: TGI's default."""
_UNBOUNDED = (1 << 31) - 1
_HEALTH_TIMEOUT_S = 5.0


_CLEAR_TIMEOUT_S = 60.0
"""Seconds that the last step of a previous router may still take on the shard."""

Made = pb.PrefillResponse | pb.DecodeResponse


@dataclass(slots=True)
class _Batch:
    """The shard's id of a batch, and the rows of the batch in order."""

    id: int
    rows: list[int]


class UpstreamShard:
    """A `ShardClient` of a TGI shard. Bound to one event loop."""

    def __init__(self, channel: ShardChannel, info: pb.InfoResponse, tokenizer: Tokenizer, vocab_size: int) -> None:
        self._channel = channel
        self._info = info
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._place_tokens = 0
        self._places: list[int] = []
        self._rows: dict[int, UpstreamRow] = {}
        self._batches: dict[int, _Batch] = {}

    async def info(self) -> ShardInfo:
        """Return the shard's description, completed with the features common to all TGI shards."""
        capabilities = Capabilities(
            features=_FEATURES,
            sampling=_SAMPLING,
            block_sizes=(max(1, self._info.block_size),),
            mixing=Mixing.NONE,
            determinism=Determinism.SELF,
            vocab_size=self._vocab_size,
            max_positions=_UNBOUNDED,
        )
        return ShardInfo("", "generate.v3", self._info.device_type, self._info.dtype, (0, 0), capabilities)

    async def warmup(self, plan: WarmupPlan, progress: Progress) -> Capacity:
        """Clear the shard and warm it up as TGI's router does. Raises BackendError."""
        prefill = plan.max_step_tokens or _PREFILL_TOKENS
        try:
            await self._channel.call("ClearCache", pb.ClearCacheRequest(), _CLEAR_TIMEOUT_S)
            progress("warming up", 0, 1, "step")
            response = await self._channel.call("Warmup", warmup_request(prefill, plan.max_row_tokens))
        except CallFailed as error:
            raise error.translated() from error
        progress("warming up", 1, 1, "step")
        return self._capacity(response, plan, prefill)

    async def prepare(self, grammar: Grammar, cost: Cost) -> Release:
        """Do nothing: the shard has no masks."""
        return nothing

    async def tokenize_images(self, prompt: MultimodalPrompt) -> PromptTokens:
        """Raise ImageRejected: the shard announces no images."""
        raise ImageRejected("TGI's shards take no images from this router")

    async def exchange(self, turn: Turn) -> TurnResult:
        """Execute the verbs of a turn, one call each. Raises DeviceLost if the shard is lost."""
        try:
            for verb in turn.bookkeeping:
                await self._track(verb)
            if turn.launch is None:
                return TurnResult()
            return await (self._prefill(turn.launch) if isinstance(turn.launch, Prefill) else self._decode(turn.launch))
        except CallFailed as error:
            raise error.translated() from error
        except ValueError as error:
            raise invalid(str(error)) from error

    async def healthy(self) -> bool:
        """Return whether the shard reports that it is healthy."""
        try:
            await self._channel.call("Health", pb.HealthRequest(), _HEALTH_TIMEOUT_S)
        except (CallFailed, BackendError):
            return False
        return True

    async def ended(self) -> str:
        """Wait until the connection breaks."""
        await self._channel.broken()
        return f"the connection to the shard at {self._channel.address} broke"

    async def abandon(self) -> None:
        """Close the channel; the shard keeps running."""
        await self._channel.close()

    async def close(self) -> None:
        """Disconnect from the shard. Idempotent."""
        await self._channel.close()

    def _capacity(self, response: pb.WarmupResponse, plan: WarmupPlan, prefill: int) -> Capacity:
        longest = plan.max_row_tokens or response.max_total_tokens or _PREFILL_TOKENS
        total = response.max_supported_total_tokens or max(_PADDED_TOKENS, longest)
        size = self._block_size
        # block 0 is reserved for health checks, as in TGI's router
        usable = total // size - (0 if self._info.requires_padding else 1)
        per_place = min(-(-(longest + self._info.speculate) // size), usable)
        rows = min(plan.max_rows or _ROWS, usable // max(1, per_place))
        longest = min(longest, per_place * size - self._info.speculate)
        if longest < 2 or rows < 1:
            raise InvalidRequest(f"the shard has room for {total} tokens; too few for one request")
        self._place_tokens = per_place * size
        self._places = list(range(rows))
        return Capacity(
            # twice the slots, since the scheduler keeps a spare one per row for growth
            groups=(CacheGroup(CacheKind.FULL, longest, 2 * rows),),
            max_rows=rows,
            max_row_tokens=longest,
            max_step_tokens=prefill,
            max_prefill_rows=rows,
            draft=self._info.speculate,
        )

    @property
    def _block_size(self) -> int:
        return max(1, self._info.block_size)

    async def _track(self, verb: Bookkeeping) -> None:
        if isinstance(verb, Filter):
            await self._filter(verb.batch, set(verb.keep))
            return
        for batch in [verb.batch] if verb.batch is not None else list(self._batches):
            await self._filter(batch, set())

    async def _filter(self, name: int, keep: set[int]) -> None:
        """Drop a batch, which the shard may have dropped already when its last row ended."""
        batch = self._batches.get(name)
        if batch is None:
            return
        self._leave(id for id in batch.rows if id not in keep)
        batch.rows = [id for id in batch.rows if id in keep]
        if batch.rows:
            request = pb.FilterBatchRequest(batch_id=batch.id, request_ids=batch.rows)
            response = await self._channel.call("FilterBatch", request)
            if response.HasField("batch"):
                _check_batch(response.batch, set(batch.rows), set(batch.rows))
        else:
            del self._batches[name]
            await self._channel.call("ClearCache", pb.ClearCacheRequest(id=batch.id))

    async def _prefill(self, verb: Prefill) -> TurnResult:
        requests = []
        for item in verb.requests:
            try:
                requests.append(self._seat(item))
            except InvalidRequest as error:
                self._leave(item.id for item in verb.requests)
                return TurnResult(Fault(error.scope, "InvalidRequest", str(error), (item.id,)))
        tokens = sum(len(item.request.tokens) for item in verb.requests)
        most = max(len(request.blocks) for request in requests)
        batch = pb.Batch(id=verb.step, requests=requests, size=len(requests), max_tokens=tokens, max_blocks=most)
        return await self._step("Prefill", pb.PrefillRequest(batch=batch), verb.step, {}, [item.id for item in verb.requests])

    async def _decode(self, verb: Decode) -> TurnResult:
        joined = {name: self._batches[name] for name in verb.batches if name in self._batches}
        rows = [id for batch in joined.values() for id in batch.rows]
        batches = [pb.CachedBatch(id=batch.id, request_ids=batch.rows, size=len(batch.rows)) for batch in joined.values()]
        return await self._step("Decode", pb.DecodeRequest(batches=batches), verb.step, joined, rows)

    async def _step(self, method: str, request: object, step: int, joined: dict[int, _Batch], rows: list[int]) -> TurnResult:
        """Fail the requests of a failed step, as TGI does."""
        try:
            response = await self._channel.call(method, request)
        except CallFailed as error:
            if error.gone:
                raise
            for id in {batch.id for batch in joined.values()} or {step}:
                await self._channel.call("ClearCache", pb.ClearCacheRequest(id=id))
            self._forget(joined, rows)
            return TurnResult(Fault(Scope.REQUEST, "ForeignShardFailed", str(error), tuple(rows)))
        made = self._made(response, rows)
        going_on = {item.request_id for item in made if item.finished is None}
        if going_on and not response.HasField("batch"):
            raise ValueError(f"no batch, though request {min(going_on)} goes on")
        self._forget(joined, [] if response.HasField("batch") else rows)
        if response.HasField("batch"):
            _check_batch(response.batch, going_on, set(rows))
            self._batches[step] = _Batch(self._new_id(response.batch.id), rows)
        return TurnResult(result=StepResult(step, made, forward_ns=response.forward_ns, sample_ns=response.decode_ns))

    def _made(self, response: Made, rows: list[int]) -> tuple[Generation, ...]:
        """Return one generation for each row, in the order of the batch. Raises ValueError."""
        found = {item.request_id: item for item in response.generations}
        for id in found.keys() - set(rows):
            raise ValueError(f"a row of request {id}, which is not in the step")
        for id in set(rows) - found.keys():
            raise ValueError(f"it lacks the row of request {id}")
        if len(response.generations) != len(rows):
            raise ValueError("rows that come twice")
        most = 1 + self._info.speculate
        for item in response.generations:
            if len(item.tokens.ids) > most:
                raise ValueError(f"{len(item.tokens.ids)} tokens for request {item.request_id} in one step")
        return tuple(decode_generation(found[id], self._rows[id], self._vocab_size) for id in rows)

    def _new_id(self, id: int) -> int:
        """Return the shard's id of a new batch. Raises ValueError if another batch has the same id."""
        if any(batch.id == id for batch in self._batches.values()):
            raise ValueError(f"a batch {id} beside the one of that name")
        return id

    def _seat(self, item: ShardRequest) -> pb.Request:
        """Assign a slot to a request. Raises InvalidRequest."""
        request = item.request
        made = request.tokens[request.prompt_len :]
        place = self._places.pop()
        left = item.stopping.max_new_tokens - len(made)
        self._rows[request.id] = UpstreamRow(place, left, self._tokenizer.decode(made, skip_special_tokens=True), len(made))
        blocks, slots = range(0), range(0)
        if not self._info.requires_padding:
            tokens = request.prompt_len + item.stopping.max_new_tokens + self._info.speculate - 1
            first = 1 + place * (self._place_tokens // self._block_size)
            blocks = range(first, first + -(-tokens // self._block_size))
            slots = range(first * self._block_size, first * self._block_size + tokens)
        return encode_request(item, self._tokenizer, blocks, slots)

    def _forget(self, joined: dict[int, _Batch], rows: Iterable[int]) -> None:
        """Forget finished batches with their rows."""
        for name in joined:
            del self._batches[name]
        self._leave(rows)

    def _leave(self, rows: Iterable[int]) -> None:
        for id in rows:
            if id in self._rows:
                self._places.append(self._rows.pop(id).place)


def _check_batch(batch: pb.CachedBatch, least: set[int], most: set[int]) -> None:
    """Check the rows of a batch. A TGI shard lists the continuing rows, with or without those that have just finished. Raises
    ValueError for any others."""
    named = set(batch.request_ids)
    if named and not least <= named <= most:
        raise ValueError(f"a batch of the requests {sorted(named)} in place of {sorted(most)}")
