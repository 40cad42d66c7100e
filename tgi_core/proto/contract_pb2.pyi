from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Progress(_message.Message):
    __slots__ = ("what", "done", "total", "unit")
    WHAT_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    TOTAL_FIELD_NUMBER: _ClassVar[int]
    UNIT_FIELD_NUMBER: _ClassVar[int]
    what: str
    done: int
    total: int
    unit: str
    def __init__(self, what: _Optional[str] = ..., done: _Optional[int] = ..., total: _Optional[int] = ..., unit: _Optional[str] = ...) -> None: ...

class Api(_message.Message):
    __slots__ = ("major", "minor")
    MAJOR_FIELD_NUMBER: _ClassVar[int]
    MINOR_FIELD_NUMBER: _ClassVar[int]
    major: int
    minor: int
    def __init__(self, major: _Optional[int] = ..., minor: _Optional[int] = ...) -> None: ...

class Capabilities(_message.Message):
    __slots__ = ("features", "sampling", "block_sizes", "mixing", "determinism", "vocab_size", "max_positions", "adapters", "kernels", "cache_dtype", "quantize", "proposals", "whole_images", "whole_prompts")
    FEATURES_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    BLOCK_SIZES_FIELD_NUMBER: _ClassVar[int]
    MIXING_FIELD_NUMBER: _ClassVar[int]
    DETERMINISM_FIELD_NUMBER: _ClassVar[int]
    VOCAB_SIZE_FIELD_NUMBER: _ClassVar[int]
    MAX_POSITIONS_FIELD_NUMBER: _ClassVar[int]
    ADAPTERS_FIELD_NUMBER: _ClassVar[int]
    KERNELS_FIELD_NUMBER: _ClassVar[int]
    CACHE_DTYPE_FIELD_NUMBER: _ClassVar[int]
    QUANTIZE_FIELD_NUMBER: _ClassVar[int]
    PROPOSALS_FIELD_NUMBER: _ClassVar[int]
    WHOLE_IMAGES_FIELD_NUMBER: _ClassVar[int]
    WHOLE_PROMPTS_FIELD_NUMBER: _ClassVar[int]
    features: _containers.RepeatedScalarFieldContainer[str]
    sampling: _containers.RepeatedScalarFieldContainer[str]
    block_sizes: _containers.RepeatedScalarFieldContainer[int]
    mixing: str
    determinism: str
    vocab_size: int
    max_positions: int
    adapters: _containers.RepeatedScalarFieldContainer[str]
    kernels: _containers.RepeatedCompositeFieldContainer[Kernel]
    cache_dtype: str
    quantize: str
    proposals: int
    whole_images: bool
    whole_prompts: bool
    def __init__(self, features: _Optional[_Iterable[str]] = ..., sampling: _Optional[_Iterable[str]] = ..., block_sizes: _Optional[_Iterable[int]] = ..., mixing: _Optional[str] = ..., determinism: _Optional[str] = ..., vocab_size: _Optional[int] = ..., max_positions: _Optional[int] = ..., adapters: _Optional[_Iterable[str]] = ..., kernels: _Optional[_Iterable[_Union[Kernel, _Mapping]]] = ..., cache_dtype: _Optional[str] = ..., quantize: _Optional[str] = ..., proposals: _Optional[int] = ..., whole_images: bool = ..., whole_prompts: bool = ...) -> None: ...

class Kernel(_message.Message):
    __slots__ = ("part", "name", "reason")
    PART_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    part: str
    name: str
    reason: str
    def __init__(self, part: _Optional[str] = ..., name: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...

class WarmupPlan(_message.Message):
    __slots__ = ("max_rows", "max_row_tokens", "max_step_tokens", "num_blocks", "block_size", "features", "draft", "window_blocks")
    MAX_ROWS_FIELD_NUMBER: _ClassVar[int]
    MAX_ROW_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MAX_STEP_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    BLOCK_SIZE_FIELD_NUMBER: _ClassVar[int]
    FEATURES_FIELD_NUMBER: _ClassVar[int]
    DRAFT_FIELD_NUMBER: _ClassVar[int]
    WINDOW_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    max_rows: int
    max_row_tokens: int
    max_step_tokens: int
    num_blocks: int
    block_size: int
    features: _containers.RepeatedScalarFieldContainer[str]
    draft: int
    window_blocks: int
    def __init__(self, max_rows: _Optional[int] = ..., max_row_tokens: _Optional[int] = ..., max_step_tokens: _Optional[int] = ..., num_blocks: _Optional[int] = ..., block_size: _Optional[int] = ..., features: _Optional[_Iterable[str]] = ..., draft: _Optional[int] = ..., window_blocks: _Optional[int] = ...) -> None: ...

class Capacity(_message.Message):
    __slots__ = ("groups", "max_rows", "max_row_tokens", "max_step_tokens", "max_prefill_rows", "in_flight", "draft", "memory", "compiles", "takes")
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    MAX_ROWS_FIELD_NUMBER: _ClassVar[int]
    MAX_ROW_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MAX_STEP_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MAX_PREFILL_ROWS_FIELD_NUMBER: _ClassVar[int]
    IN_FLIGHT_FIELD_NUMBER: _ClassVar[int]
    DRAFT_FIELD_NUMBER: _ClassVar[int]
    MEMORY_FIELD_NUMBER: _ClassVar[int]
    COMPILES_FIELD_NUMBER: _ClassVar[int]
    TAKES_FIELD_NUMBER: _ClassVar[int]
    groups: _containers.RepeatedCompositeFieldContainer[CacheGroup]
    max_rows: int
    max_row_tokens: int
    max_step_tokens: int
    max_prefill_rows: int
    in_flight: int
    draft: int
    memory: _containers.RepeatedCompositeFieldContainer[Memory]
    compiles: int
    takes: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, groups: _Optional[_Iterable[_Union[CacheGroup, _Mapping]]] = ..., max_rows: _Optional[int] = ..., max_row_tokens: _Optional[int] = ..., max_step_tokens: _Optional[int] = ..., max_prefill_rows: _Optional[int] = ..., in_flight: _Optional[int] = ..., draft: _Optional[int] = ..., memory: _Optional[_Iterable[_Union[Memory, _Mapping]]] = ..., compiles: _Optional[int] = ..., takes: _Optional[_Iterable[int]] = ...) -> None: ...

class CacheGroup(_message.Message):
    __slots__ = ("kind", "block_size", "num_blocks", "window")
    KIND_FIELD_NUMBER: _ClassVar[int]
    BLOCK_SIZE_FIELD_NUMBER: _ClassVar[int]
    NUM_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    WINDOW_FIELD_NUMBER: _ClassVar[int]
    kind: str
    block_size: int
    num_blocks: int
    window: int
    def __init__(self, kind: _Optional[str] = ..., block_size: _Optional[int] = ..., num_blocks: _Optional[int] = ..., window: _Optional[int] = ...) -> None: ...

class Memory(_message.Message):
    __slots__ = ("name", "num_bytes")
    NAME_FIELD_NUMBER: _ClassVar[int]
    NUM_BYTES_FIELD_NUMBER: _ClassVar[int]
    name: str
    num_bytes: int
    def __init__(self, name: _Optional[str] = ..., num_bytes: _Optional[int] = ...) -> None: ...

class Sampling(_message.Message):
    __slots__ = ("do_sample", "temperature", "top_k", "top_p", "typical_p", "repetition_penalty", "frequency_penalty", "presence_penalty", "bias_tokens", "biases", "seed", "min_p", "watermark", "watermark_gamma")
    DO_SAMPLE_FIELD_NUMBER: _ClassVar[int]
    TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    TOP_K_FIELD_NUMBER: _ClassVar[int]
    TOP_P_FIELD_NUMBER: _ClassVar[int]
    TYPICAL_P_FIELD_NUMBER: _ClassVar[int]
    REPETITION_PENALTY_FIELD_NUMBER: _ClassVar[int]
    FREQUENCY_PENALTY_FIELD_NUMBER: _ClassVar[int]
    PRESENCE_PENALTY_FIELD_NUMBER: _ClassVar[int]
    BIAS_TOKENS_FIELD_NUMBER: _ClassVar[int]
    BIASES_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    MIN_P_FIELD_NUMBER: _ClassVar[int]
    WATERMARK_FIELD_NUMBER: _ClassVar[int]
    WATERMARK_GAMMA_FIELD_NUMBER: _ClassVar[int]
    do_sample: bool
    temperature: float
    top_k: int
    top_p: float
    typical_p: float
    repetition_penalty: float
    frequency_penalty: float
    presence_penalty: float
    bias_tokens: _containers.RepeatedScalarFieldContainer[int]
    biases: _containers.RepeatedScalarFieldContainer[float]
    seed: int
    min_p: float
    watermark: float
    watermark_gamma: float
    def __init__(self, do_sample: bool = ..., temperature: _Optional[float] = ..., top_k: _Optional[int] = ..., top_p: _Optional[float] = ..., typical_p: _Optional[float] = ..., repetition_penalty: _Optional[float] = ..., frequency_penalty: _Optional[float] = ..., presence_penalty: _Optional[float] = ..., bias_tokens: _Optional[_Iterable[int]] = ..., biases: _Optional[_Iterable[float]] = ..., seed: _Optional[int] = ..., min_p: _Optional[float] = ..., watermark: _Optional[float] = ..., watermark_gamma: _Optional[float] = ...) -> None: ...

class Blocks(_message.Message):
    __slots__ = ("ids",)
    IDS_FIELD_NUMBER: _ClassVar[int]
    ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, ids: _Optional[_Iterable[int]] = ...) -> None: ...

class Grant(_message.Message):
    __slots__ = ("request_id", "take", "blocks", "drafts", "no_proposals")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    TAKE_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    DRAFTS_FIELD_NUMBER: _ClassVar[int]
    NO_PROPOSALS_FIELD_NUMBER: _ClassVar[int]
    request_id: int
    take: int
    blocks: _containers.RepeatedCompositeFieldContainer[Blocks]
    drafts: _containers.RepeatedScalarFieldContainer[int]
    no_proposals: bool
    def __init__(self, request_id: _Optional[int] = ..., take: _Optional[int] = ..., blocks: _Optional[_Iterable[_Union[Blocks, _Mapping]]] = ..., drafts: _Optional[_Iterable[int]] = ..., no_proposals: bool = ...) -> None: ...

class Fault(_message.Message):
    __slots__ = ("scope", "kind", "message", "request_ids", "lost")
    SCOPE_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    REQUEST_IDS_FIELD_NUMBER: _ClassVar[int]
    LOST_FIELD_NUMBER: _ClassVar[int]
    scope: str
    kind: str
    message: str
    request_ids: _containers.RepeatedScalarFieldContainer[int]
    lost: bool
    def __init__(self, scope: _Optional[str] = ..., kind: _Optional[str] = ..., message: _Optional[str] = ..., request_ids: _Optional[_Iterable[int]] = ..., lost: bool = ...) -> None: ...

class VerbCall(_message.Message):
    __slots__ = ("verb", "ns", "error")
    VERB_FIELD_NUMBER: _ClassVar[int]
    NS_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    verb: str
    ns: int
    error: str
    def __init__(self, verb: _Optional[str] = ..., ns: _Optional[int] = ..., error: _Optional[str] = ...) -> None: ...

class StepResult(_message.Message):
    __slots__ = ("step", "fault", "forward_ns", "sample_ns", "request_ids", "token_counts", "ids", "texts", "logprobs", "special", "candidates", "prompts", "finished", "faults", "forced", "proposed_counts", "proposed")
    STEP_FIELD_NUMBER: _ClassVar[int]
    FAULT_FIELD_NUMBER: _ClassVar[int]
    FORWARD_NS_FIELD_NUMBER: _ClassVar[int]
    SAMPLE_NS_FIELD_NUMBER: _ClassVar[int]
    REQUEST_IDS_FIELD_NUMBER: _ClassVar[int]
    TOKEN_COUNTS_FIELD_NUMBER: _ClassVar[int]
    IDS_FIELD_NUMBER: _ClassVar[int]
    TEXTS_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    SPECIAL_FIELD_NUMBER: _ClassVar[int]
    CANDIDATES_FIELD_NUMBER: _ClassVar[int]
    PROMPTS_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    FAULTS_FIELD_NUMBER: _ClassVar[int]
    FORCED_FIELD_NUMBER: _ClassVar[int]
    PROPOSED_COUNTS_FIELD_NUMBER: _ClassVar[int]
    PROPOSED_FIELD_NUMBER: _ClassVar[int]
    step: int
    fault: Fault
    forward_ns: int
    sample_ns: int
    request_ids: _containers.RepeatedScalarFieldContainer[int]
    token_counts: _containers.RepeatedScalarFieldContainer[int]
    ids: _containers.RepeatedScalarFieldContainer[int]
    texts: _containers.RepeatedScalarFieldContainer[str]
    logprobs: _containers.RepeatedScalarFieldContainer[float]
    special: _containers.RepeatedScalarFieldContainer[int]
    candidates: _containers.RepeatedCompositeFieldContainer[Candidates]
    prompts: _containers.RepeatedCompositeFieldContainer[Prompt]
    finished: _containers.RepeatedCompositeFieldContainer[Finished]
    faults: _containers.RepeatedCompositeFieldContainer[RowFault]
    forced: _containers.RepeatedCompositeFieldContainer[Forced]
    proposed_counts: _containers.RepeatedScalarFieldContainer[int]
    proposed: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, step: _Optional[int] = ..., fault: _Optional[_Union[Fault, _Mapping]] = ..., forward_ns: _Optional[int] = ..., sample_ns: _Optional[int] = ..., request_ids: _Optional[_Iterable[int]] = ..., token_counts: _Optional[_Iterable[int]] = ..., ids: _Optional[_Iterable[int]] = ..., texts: _Optional[_Iterable[str]] = ..., logprobs: _Optional[_Iterable[float]] = ..., special: _Optional[_Iterable[int]] = ..., candidates: _Optional[_Iterable[_Union[Candidates, _Mapping]]] = ..., prompts: _Optional[_Iterable[_Union[Prompt, _Mapping]]] = ..., finished: _Optional[_Iterable[_Union[Finished, _Mapping]]] = ..., faults: _Optional[_Iterable[_Union[RowFault, _Mapping]]] = ..., forced: _Optional[_Iterable[_Union[Forced, _Mapping]]] = ..., proposed_counts: _Optional[_Iterable[int]] = ..., proposed: _Optional[_Iterable[int]] = ...) -> None: ...

class Forced(_message.Message):
    __slots__ = ("request_id", "ids")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    IDS_FIELD_NUMBER: _ClassVar[int]
    request_id: int
    ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, request_id: _Optional[int] = ..., ids: _Optional[_Iterable[int]] = ...) -> None: ...

class Candidates(_message.Message):
    __slots__ = ("token", "ids", "texts", "logprobs", "special")
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    IDS_FIELD_NUMBER: _ClassVar[int]
    TEXTS_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    SPECIAL_FIELD_NUMBER: _ClassVar[int]
    token: int
    ids: _containers.RepeatedScalarFieldContainer[int]
    texts: _containers.RepeatedScalarFieldContainer[str]
    logprobs: _containers.RepeatedScalarFieldContainer[float]
    special: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, token: _Optional[int] = ..., ids: _Optional[_Iterable[int]] = ..., texts: _Optional[_Iterable[str]] = ..., logprobs: _Optional[_Iterable[float]] = ..., special: _Optional[_Iterable[int]] = ...) -> None: ...

class Prompt(_message.Message):
    __slots__ = ("generation", "ids", "texts", "logprobs", "without")
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    IDS_FIELD_NUMBER: _ClassVar[int]
    TEXTS_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    WITHOUT_FIELD_NUMBER: _ClassVar[int]
    generation: int
    ids: _containers.RepeatedScalarFieldContainer[int]
    texts: _containers.RepeatedScalarFieldContainer[str]
    logprobs: _containers.RepeatedScalarFieldContainer[float]
    without: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, generation: _Optional[int] = ..., ids: _Optional[_Iterable[int]] = ..., texts: _Optional[_Iterable[str]] = ..., logprobs: _Optional[_Iterable[float]] = ..., without: _Optional[_Iterable[int]] = ...) -> None: ...

class Finished(_message.Message):
    __slots__ = ("generation", "text", "generated_tokens", "reason")
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    GENERATED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    generation: int
    text: str
    generated_tokens: int
    reason: str
    def __init__(self, generation: _Optional[int] = ..., text: _Optional[str] = ..., generated_tokens: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...

class RowFault(_message.Message):
    __slots__ = ("generation", "kind", "message")
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    generation: int
    kind: str
    message: str
    def __init__(self, generation: _Optional[int] = ..., kind: _Optional[str] = ..., message: _Optional[str] = ...) -> None: ...
