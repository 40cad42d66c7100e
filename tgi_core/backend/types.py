"""The values that cross the hardware seam.

Every type here is a frozen, slotted dataclass or an enum: no text, no tensors, no dicts of options. Token ids, block ids and
request ids are plain ints. Sizes in bytes say so in their name; times are in nanoseconds.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from tgi_core.backend.callbacks import MaskRow as MaskRow
from tgi_core.backend.callbacks import MaskSource

API_VERSION = (1, 2)
"""(major, minor) of the contract in this package. A minor only adds."""

NULL_BLOCK = 0
"""Block id that is never granted; real blocks are 1…num_blocks."""


class Processes(Enum):
    """How many operating-system processes a backend wants for a group of ranks."""

    PER_RANK = "per_rank"
    ONE = "one"


class ProbeStatus(Enum):
    """What a probe found."""

    READY = "ready"
    ABSENT = "absent"
    BROKEN = "broken"


class Feature(Enum):
    """Things beyond the profile `text-core` that a session may declare."""

    BATCH_INVARIANT = "batch_invariant"
    CHUNKED_PREFILL = "chunked_prefill"
    LOGPROBS = "logprobs"
    LORA = "lora"
    MASKS = "masks"
    MEDIA = "media"
    PREFIX_REUSE = "prefix_reuse"
    PROMPT_LOGPROBS = "prompt_logprobs"
    SPECULATION = "speculation"
    TENSOR_PARALLEL = "tensor_parallel"
    TOP_N = "top_n"


class SamplingField(Enum):
    """Fields of `Sampling` that a session may honour beyond greedy, temperature, top-k and top-p."""

    FREQUENCY_PENALTY = "frequency_penalty"
    LOGIT_BIAS = "logit_bias"
    MIN_P = "min_p"
    PRESENCE_PENALTY = "presence_penalty"
    REPETITION_PENALTY = "repetition_penalty"
    SEED = "seed"
    TYPICAL_P = "typical_p"


class Mixing(Enum):
    """Whether one step may hold prefill and decode rows: not at all, run eagerly, or from a captured graph."""

    NONE = "none"
    EAGER = "eager"
    GRAPH = "graph"


class Determinism(Enum):
    """CORE: the published sampling formula. SELF: repeatable on this device. NONE: no promise."""

    CORE = "core"
    SELF = "self"
    NONE = "none"


class CacheKind(Enum):
    """Kinds of cache that a model's layers keep."""

    FULL = "full"
    WINDOW = "window"
    STATE = "state"
    CROSS = "cross"


class RowFaultKind(Enum):
    """Why one row of a step failed while its mates went on."""

    NAN = "nan"
    MASK = "mask"
    SAMPLER = "sampler"
    MEMORY = "memory"
    TEXT = "text"


@dataclass(frozen=True, slots=True)
class Manifest:
    """Who a plugin is. `api_built` is the contract it was written against, `api_requires` the oldest it can live with."""

    name: str
    vendor: str
    version: str
    api_built: tuple[int, int]
    api_requires: tuple[int, int]
    device_kind: str
    processes: Processes = Processes.PER_RANK


@dataclass(frozen=True, slots=True)
class Probe:
    """What a plugin sees on this machine. `reason` says why it is not READY, `hint` what to do about it."""

    status: ProbeStatus
    devices: tuple[str, ...] = ()
    reason: str = ""
    hint: str = ""
    verified_on_hardware: bool = False


@dataclass(frozen=True, slots=True)
class Group:
    """The ranks that share one model. `local_rank` of `local_world` are those on this machine, which share its memory and cores.

    `rendezvous` is `host:port`, or `file:PATH` in a folder of one user where all ranks are on this machine; empty for a world of one,
    and for a backend that keeps all ranks in one process.
    """

    rank: int = 0
    world: int = 1
    rendezvous: str = ""
    local_rank: int = 0
    local_world: int = 1


@dataclass(frozen=True, slots=True)
class Adapter:
    """A LoRA adapter to load: the name that requests give, and the directory of its files."""

    name: str
    directory: str


@dataclass(frozen=True, slots=True)
class OpenOptions:
    """What a rank opens. `model` is a directory; `dtype` is a torch dtype name or "auto"; limits of None are the backend's choice.

    `cache_dtype` is "auto" for a KV cache in the dtype that the model runs in, or the torch dtype name of a type of 8 bits, which a
    device may keep in its own variant of it (float8_e4m3fnuz for float8_e4m3fn).
    """

    model: str
    dtype: str = "auto"
    group: Group = Group()
    masks: MaskSource | None = None
    memory_fraction: float = 0.9
    adapters: tuple[Adapter, ...] = ()
    cache_dtype: str = "auto"


@dataclass(frozen=True, slots=True)
class Kernel:
    """How one part of a model's work is done on this machine, and why so: in words, for people."""

    part: str
    name: str
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What this session can do; constant for its life.

    `block_sizes` are those that a plan may ask for; the first is asked for where a cache is counted in blocks. `adapters` are the names of
    those loaded: none without Feature.LORA. `cache_dtype` is what was asked for, where it is honoured.
    """

    features: frozenset[Feature]
    sampling: frozenset[SamplingField]
    block_sizes: tuple[int, ...]
    mixing: Mixing
    determinism: Determinism
    vocab_size: int
    max_positions: int
    adapters: tuple[str, ...] = ()
    kernels: tuple[Kernel, ...] = ()
    cache_dtype: str = "auto"


@dataclass(frozen=True, slots=True)
class WarmupPlan:
    """The limits the core wishes for; None leaves one to the backend. `features` are those to reserve memory for."""

    max_rows: int | None = None
    max_row_tokens: int | None = None
    max_step_tokens: int | None = None
    num_blocks: int | None = None
    block_size: int | None = None
    features: frozenset[Feature] = frozenset()


@dataclass(frozen=True, slots=True)
class CacheGroup:
    """One kind of cache: `num_blocks` blocks of `block_size` tokens, ids 1…num_blocks; `window` for WINDOW only."""

    kind: CacheKind
    block_size: int
    num_blocks: int
    window: int | None = None


@dataclass(frozen=True, slots=True)
class Memory:
    """A named share of the device's memory."""

    name: str
    num_bytes: int


@dataclass(frozen=True, slots=True)
class Capacity:
    """What the backend promises: nothing within these limits runs out of memory.

    `max_rows` live rows, `max_row_tokens` positions per row, `max_step_tokens` tokens computed in one step,
    `max_prefill_rows` rows of a step that may take more than one token, `max_step_blocks` blocks that one step may touch
    (0: no limit of its own), `shapes` the warmed (rows, tokens) buckets (empty: any shape), `in_flight` steps that may be unread
    (1 is lock step), `draft` tokens speculated per row.
    """

    groups: tuple[CacheGroup, ...]
    max_rows: int
    max_row_tokens: int
    max_step_tokens: int
    max_prefill_rows: int
    max_step_blocks: int = 0
    shapes: tuple[tuple[int, int], ...] = ()
    in_flight: int = 1
    draft: int = 0
    memory: tuple[Memory, ...] = ()
    compiles: int = 0


@dataclass(frozen=True, slots=True)
class Sampling:
    """How a row's next token is chosen, in this order: repetition, frequency and presence penalty, logit bias, mask, temperature,
    top-k, top-p, min-p, typical-p, choice (`tgi_core.backend.sampling` is the formula, `SAMPLING` has a row per field).

    `do_sample=False` is argmax after penalties and mask. `top_k=0`, `top_p=1`, `min_p=0`, `typical_p=1` are off.
    `logit_bias` pairs token ids with what is added to their logits.
    """

    do_sample: bool = False
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    typical_p: float = 1.0
    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    seed: int = 0
    min_p: float = 0.0


@dataclass(frozen=True, slots=True)
class OutputOptions:
    """What a row returns besides its token: its logprob, the `top_n` likeliest tokens, logprobs of the prompt."""

    logprobs: bool = True
    top_n: int = 0
    prompt_logprobs: bool = False


Want = OutputOptions
"""The name of `OutputOptions` in contract versions before 1.2; deprecated."""


@dataclass(frozen=True, slots=True)
class Request:
    """One request, sent once; an id is never reused.

    `tokens` are the prompt and, for a continued request, the tokens made so far; `prompt_len` of them are the client's prompt.
    The first `cached` tokens already lie in `blocks` (one tuple of block ids per cache group). `take` tokens after those run in
    the step that brings the request; the row yields a token when `cached + take == len(tokens)`.
    """

    id: int
    tokens: tuple[int, ...]
    prompt_len: int
    cached: int
    blocks: tuple[tuple[int, ...], ...]
    take: int
    sampling: Sampling = Sampling()
    want: OutputOptions = OutputOptions()
    masked: bool = False
    adapter: str | None = None
    media: tuple[bytes, ...] = ()


@dataclass(frozen=True, slots=True)
class Grant:
    """What a live row gets for one step: `blocks` (per cache group) are appended to its table, it runs `take` tokens.

    A row without a grant takes 1 (1 + drafts) once its prompt is complete, else 0. 0 sits the step out.
    """

    request_id: int
    take: int
    blocks: tuple[tuple[int, ...], ...] = ()


@dataclass(frozen=True, slots=True)
class Handle:
    """Names a live batch. Single use: the verb that takes it kills it, and returns its successor."""

    id: int


EMPTY = Handle(0)
"""The handle of no batch at all."""


@dataclass(frozen=True, slots=True)
class Step:
    """A launched step. `handle` may go into the next verb at once, before the rows are read."""

    id: int
    handle: Handle


@dataclass(frozen=True, slots=True)
class TopToken:
    """A likely token and its logprob."""

    id: int
    logprob: float


@dataclass(frozen=True, slots=True)
class RowFault:
    """Ends one row, and no other. The row stays in its batch until a filter takes it out; steps launched before that leave it out."""

    kind: RowFaultKind
    message: str


@dataclass(frozen=True, slots=True)
class Row:
    """What a step made for one request that ran in it.

    `tokens` is empty while the prompt is incomplete. `logprobs` and `top` have one entry per token. `prompt_logprobs` belong to the
    part of the prompt run in this step: a step over positions s…e-1 yields those of tokens s+1…e (within the prompt), and a
    leading None for token 0 when s is 0.
    """

    request_id: int
    tokens: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()
    top: tuple[tuple[TopToken, ...], ...] = ()
    prompt_logprobs: tuple[float | None, ...] = ()
    fault: RowFault | None = None


@dataclass(frozen=True, slots=True)
class Rows:
    """All rows of one step, in the order of the batch."""

    step: int
    rows: tuple[Row, ...]
    forward_ns: int = 0
    sample_ns: int = 0


@dataclass(frozen=True, slots=True)
class Cleared:
    """How many rows a clear removed."""

    count: int


@dataclass(frozen=True, slots=True)
class Stats:
    """Counters of a session since it opened."""

    steps: int = 0
    compiles: int = 0
    memory: tuple[Memory, ...] = ()


@dataclass(frozen=True, slots=True)
class Closed:
    """The session is over and its memory is back."""
