"""Values passed between the core and a backend.

Every type here is a frozen, slotted dataclass or an enum: no text, no tensors, no option dicts. Token ids, block ids and request
ids are plain ints. Sizes in bytes are named `*_bytes`; times are in nanoseconds.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from tgi_core.backend.callbacks import MaskRow as MaskRow
from tgi_core.backend.callbacks import MaskSource

API_VERSION = (1, 10)
"""(major, minor) version of the contract in this package. Minor versions only add."""

NULL_BLOCK = 0
"""Block id that is never granted; usable ids are 1…num_blocks."""


class Processes(Enum):
    """Number of operating-system processes that a backend uses for a group of ranks."""

    PER_RANK = "per_rank"
    ONE = "one"


class ProbeStatus(Enum):
    """Result of a probe."""

    READY = "ready"
    ABSENT = "absent"
    BROKEN = "broken"


class Feature(Enum):
    """Optional features beyond the profile `text-core` that a session may declare."""

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
    """Optional fields of `Sampling` that a session may declare, beyond greedy, temperature, top-k and top-p."""

    FREQUENCY_PENALTY = "frequency_penalty"
    LOGIT_BIAS = "logit_bias"
    MIN_P = "min_p"
    PRESENCE_PENALTY = "presence_penalty"
    REPETITION_PENALTY = "repetition_penalty"
    SEED = "seed"
    TYPICAL_P = "typical_p"
    WATERMARK = "watermark"


class Mixing(Enum):
    """Whether prompt and decode rows may run in the same step.

    With NONE, a step runs either prompts or decode rows: `prefill` accepts no live batch, and `decode` raises Unsupported for a chunk of
    a prompt next to a decode row. Rows of the batch with a take of 0 are in neither group.
    """

    NONE = "none"
    EAGER = "eager"


class Determinism(Enum):
    """CORE: follows the published sampling formula. SELF: repeatable on this device. NONE: no guarantee."""

    CORE = "core"
    SELF = "self"
    NONE = "none"


class CacheKind(Enum):
    """Kinds of cache that a model's layers use.

    WINDOW belongs to layers in which a position sees the last `window` positions, itself included. Since 1.8, the core may take a block of
    such a group back when the row's next step and later ones see none of its positions (`CacheGroup.unseen`), and grant it to any row in
    that same step. The row's table keeps the place; in a new request's table, the null block stands there.

    CROSS belongs to encoder-decoders. A prompt is the encoder's input, so the group's `block_size` is the longest prompt, and a row has one
    block for its whole life: for what its decoder keeps, too, which makes at most `max_row_tokens - block_size` tokens.
    """

    FULL = "full"
    WINDOW = "window"
    STATE = "state"
    CROSS = "cross"


class RowFaultKind(Enum):
    """Why one row of a step failed while the other rows succeeded."""

    NAN = "nan"
    MASK = "mask"
    SAMPLER = "sampler"
    MEMORY = "memory"
    TEXT = "text"


@dataclass(frozen=True, slots=True)
class Manifest:
    """Identity of a plugin. `api_built` is the contract version it was built against, `api_requires` the oldest one it works
    with."""

    name: str
    vendor: str
    version: str
    api_built: tuple[int, int]
    api_requires: tuple[int, int]
    device_kind: str
    processes: Processes = Processes.PER_RANK


@dataclass(frozen=True, slots=True)
class Probe:
    """The devices that a plugin detects on this machine. `reason` explains why it is not READY, `hint` how to fix that."""

    status: ProbeStatus
    devices: tuple[str, ...] = ()
    reason: str = ""
    hint: str = ""
    verified_on_hardware: bool = False


@dataclass(frozen=True, slots=True)
class Group:
    """The ranks that share one model. `local_rank` and `local_world` count the ranks on this machine, which share its memory and
    cores; with several replicas of the model, those of all replicas.

    `rendezvous` is `host:port`, or `file:PATH` in a directory private to the user if all ranks are on this machine; empty for a
    world of one and for a backend that runs all ranks in one process.
    """

    rank: int = 0
    world: int = 1
    rendezvous: str = ""
    local_rank: int = 0
    local_world: int = 1


@dataclass(frozen=True, slots=True)
class Adapter:
    """A LoRA adapter to load: the name used in requests and the directory of its files."""

    name: str
    directory: str


@dataclass(frozen=True, slots=True)
class OpenOptions:
    """Options for opening a session on one rank. `model` is a directory; `dtype` is a torch dtype name or "auto".

    `cache_dtype` is "auto" for a KV cache in the dtype that the model runs in, or the torch name of an 8-bit dtype, for which a
    device may use its own variant (float8_e4m3fnuz for float8_e4m3fn). `compile_cache` is a directory for compiled programs, which
    may not exist yet and which sessions of other models, versions and ranks may share; "" for none. `quantize` is "int8", "int4" or "fp8"
    to round the weights of linear layers to such codes when a checkpoint is loaded that is not quantized; "" keeps them. `speculator` is
    the directory of a checkpoint that guesses the model's next tokens, such as Medusa heads or a smaller model, or the model's own if it
    brings layers for that; "" for none.
    """

    model: str
    dtype: str = "auto"
    group: Group = Group()
    masks: MaskSource | None = None
    memory_fraction: float = 0.9
    adapters: tuple[Adapter, ...] = ()
    cache_dtype: str = "auto"
    compile_cache: str = ""
    quantize: str = ""
    speculator: str = ""


@dataclass(frozen=True, slots=True)
class Kernel:
    """Human-readable description of how one part of a model runs on this machine, and why."""

    part: str
    name: str
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a session supports; constant for its lifetime.

    `block_sizes` are the sizes that a plan may request; the first is the default if the cache is measured in blocks. Empty: warm-up
    decides, a block holds a whole row, and the plan's `block_size` is ignored. `adapters` are the names of the loaded adapters,
    empty without Feature.LORA. `cache_dtype` and `quantize` are the requested ones if the session supports them. `proposals` is the
    most tokens that a row proposes in a step (`Row.proposed`), 0 without a speculator. `whole_images` (since 1.8): tokens of an
    image see each other, so the core never lets a step end between two of them, and a session refuses such a step. `whole_prompts`
    (since 1.9): the same of the first `Request.prompt_len` tokens of a row; those that follow see what precedes them.
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
    quantize: str = ""
    proposals: int = 0
    whole_images: bool = False
    whole_prompts: bool = False


@dataclass(frozen=True, slots=True)
class WarmupPlan:
    """Limits requested by the core; None leaves a limit to the backend. `features` are the features to reserve memory for, `draft` the
    most drafts that a row will get in a step. `window_blocks` (since 1.8) is `num_blocks` for WINDOW groups beside other ones: None leaves
    it to the backend even if `num_blocks` is given, 0 asks for no WINDOW group, since no block will be taken back."""

    max_rows: int | None = None
    max_row_tokens: int | None = None
    max_step_tokens: int | None = None
    num_blocks: int | None = None
    block_size: int | None = None
    features: frozenset[Feature] = frozenset()
    draft: int = 0
    window_blocks: int | None = None


@dataclass(frozen=True, slots=True)
class CacheGroup:
    """One kind of cache: `num_blocks` blocks of `block_size` tokens with ids 1…num_blocks. `window` is for WINDOW only: such a group has
    blocks for the window of one row and the tokens of one step, or for all positions of a row."""

    kind: CacheKind
    block_size: int
    num_blocks: int
    window: int | None = None

    def unseen(self, position: int) -> int:
        """Number of a row's first blocks of which a query at `position`, or at a later one, sees nothing."""
        if self.kind is not CacheKind.WINDOW or self.window is None:
            return 0
        return max(0, position - self.window + 1) // self.block_size


@dataclass(frozen=True, slots=True)
class Memory:
    """A named share of the device's memory."""

    name: str
    num_bytes: int


@dataclass(frozen=True, slots=True)
class Capacity:
    """Limits promised by the backend: no work within them runs out of memory.

    `max_rows` live rows, `max_row_tokens` positions per row, `max_step_tokens` tokens computed per step, `max_prefill_rows` rows
    per step that may take more than one token of their prompts, `in_flight` steps that may be unread (1: synchronous), `draft` drafts
    per row and step, at most the plan's.

    `takes` are the sizes that the device pads a prompt's part of a step to: ascending, each from 1 to `max_step_tokens`; empty if
    it does not pad. They are advice, not a limit: every take stays legal, and one above the largest size is padded part by part.
    """

    groups: tuple[CacheGroup, ...]
    max_rows: int
    max_row_tokens: int
    max_step_tokens: int
    max_prefill_rows: int
    in_flight: int = 1
    draft: int = 0
    memory: tuple[Memory, ...] = ()
    compiles: int = 0
    takes: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Sampling:
    """Sampling parameters of a row, applied in this order: watermark, repetition, frequency and presence penalty, logit bias, mask,
    temperature, top-k, top-p, min-p, typical-p, draw. `tgi_core.backend.sampling` has the formula, `SAMPLING` an entry per field.

    `do_sample=False` takes the argmax after penalties and mask. `top_k=0`, `top_p=1`, `min_p=0` and `typical_p=1` turn a filter
    off. `logit_bias` holds pairs of a token id and the value added to its logit. `watermark` is added to the logits of the
    greenlist, which holds `watermark_gamma` of the vocabulary (delta and gamma of the paper; see `tgi_core.backend.watermark`).
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
    watermark: float = 0.0
    watermark_gamma: float = 0.0


@dataclass(frozen=True, slots=True)
class OutputOptions:
    """What a row returns besides its tokens: their logprobs, the `top_n` likeliest tokens, logprobs of the prompt."""

    logprobs: bool = True
    top_n: int = 0
    prompt_logprobs: bool = False


Want = OutputOptions
"""Deprecated alias of `OutputOptions`, its name before contract version 1.2."""


@dataclass(frozen=True, slots=True)
class Request:
    """One request, sent once; ids are never reused.

    `tokens` are the prompt and, for a continued request, the tokens generated so far; the first `prompt_len` are the client's
    prompt. The first `cached` tokens are already in `blocks` (one tuple of block ids per cache group; see `CacheKind.WINDOW` for
    null blocks). The step that starts the request runs the next `take` tokens; the row samples a token if
    `cached + take == len(tokens)`.

    `media` has an item per image, in the order of the prompt: a safetensors file with what the model's processor makes of the image, by the
    names of the arguments of the model's `forward`. Its metadata `tokens` is the number of the image's placeholder tokens in the prompt.
    Items that are damaged or do not match the prompt are an InvalidRequest of `prefill` that names the request.
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
    """Resources of a live row for one step: it runs `take` tokens, and `blocks` (per cache group) are appended to its block table.

    Without a grant, a row takes 1 token once its prompt is complete, else 0. With 0, it skips the step.

    `drafts` are guesses at the tokens after the newest one of a row whose prompt is complete, with a take of 1 + len(drafts). The row
    samples a token at each position as if it had come there without drafts: with that position's uniform number, and with penalties and
    the mask of the tokens before it. It keeps these tokens up to the first one that is not the draft, so it makes 1 to 1 + len(drafts) of
    them. Until that step is read, the row takes 0.

    `propose=False` (since 1.7): `Row.proposed` of the row is not needed in this step; the row proposes nothing, and its speculator need
    not run.
    """

    request_id: int
    take: int
    blocks: tuple[tuple[int, ...], ...] = ()
    drafts: tuple[int, ...] = ()
    propose: bool = True


@dataclass(frozen=True, slots=True)
class Handle:
    """Identifies a live batch. Single use: a verb invalidates the handle that it takes and returns a new one."""

    id: int


EMPTY = Handle(0)
"""The handle of an empty batch."""


@dataclass(frozen=True, slots=True)
class Step:
    """A launched step. `handle` may be passed to the next verb immediately, before the rows are read."""

    id: int
    handle: Handle


@dataclass(frozen=True, slots=True)
class TopToken:
    """A likely token and its logprob."""

    id: int
    logprob: float


@dataclass(frozen=True, slots=True)
class RowFault:
    """Failure of a single row. The row stays in its batch until a filter removes it, but steps launched until then skip it."""

    kind: RowFaultKind
    message: str


@dataclass(frozen=True, slots=True)
class Row:
    """Result of a step for one request that ran in it.

    `tokens` is empty while the prompt is incomplete. `logprobs` and `top` have one entry per token. `prompt_logprobs` cover the
    part of the prompt that this step ran: a step over positions s…e-1 returns those of tokens s+1…e (within the prompt), preceded
    by None for token 0 if s is 0. `drafted` is the number of drafts that the row ran. What is wrong at a position after the first token
    that is not its draft, such as logits that are not finite, is no fault; a fault at an earlier one comes with the tokens before it.

    `proposed` are the session's own guesses at what follows the last of `tokens`, at most `Capacity.draft` of them; empty with a fault.
    They are advice: the core may grant them as drafts, all, some or none, or other drafts.
    """

    request_id: int
    tokens: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()
    top: tuple[tuple[TopToken, ...], ...] = ()
    prompt_logprobs: tuple[float | None, ...] = ()
    fault: RowFault | None = None
    drafted: int = 0
    proposed: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Rows:
    """All rows of one step, in batch order."""

    step: int
    rows: tuple[Row, ...]
    forward_ns: int = 0
    sample_ns: int = 0


@dataclass(frozen=True, slots=True)
class Cleared:
    """Number of rows that a clear removed."""

    count: int


@dataclass(frozen=True, slots=True)
class Stats:
    """Counters since the session opened.

    `compiles` counts compiled programs: by the vendor's own counter where there is one, since a backend's own count misses the
    compiles that it did not ask for. `steps` counts the steps that have run; a backend decides whether failed ones are among them.
    """

    steps: int = 0
    compiles: int = 0
    memory: tuple[Memory, ...] = ()


@dataclass(frozen=True, slots=True)
class Encoded:
    """What steps need of an image is computed, since 1.10; a session may forget it."""


@dataclass(frozen=True, slots=True)
class Closed:
    """The session is closed and its memory is released."""
