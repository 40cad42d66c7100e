"""Values exchanged between the scheduler and a model server ("shard"): turns, steps, generations, tokens.

They have the semantics of TGI's `generate.v3` interface, plus numbered steps, grants and row faults. Within a process they are
passed directly; between processes, the codec converts them to messages. Each step is one `Turn` to the shard and one `TurnResult`
back.

Values are never modified after creation. Those created for every token or step are not declared frozen, since that would double
the cost of creating them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from tgi_core.backend import Capabilities, Grant, Request, RowFault, Scope
from tgi_core.grammar import Grammar


class FinishReason(Enum):
    """Why a request ended; the values are TGI's."""

    LENGTH = "length"
    EOS_TOKEN = "eos_token"
    STOP_SEQUENCE = "stop_sequence"


@dataclass(frozen=True, slots=True)
class ShardInfo:
    """A shard's description of itself, once its model is open."""

    model: str
    backend: str
    device_kind: str
    dtype: str
    api: tuple[int, int]
    capabilities: Capabilities

    @property
    def is_upstream_tgi(self) -> bool:
        """Whether the shard is TGI's, without tgi-core's extensions: every running row takes part in every step."""
        return self.api == (0, 0)


@dataclass(frozen=True, slots=True)
class Stopping:
    """Stop conditions of a request: `max_new_tokens`, an end-of-sequence token, a stop token, or a stop string in its text.

    Of the first `min_new_tokens` tokens, none is an end-of-sequence or stop token, and no stop string ends the text in them.
    """

    max_new_tokens: int
    stop: tuple[str, ...] = ()
    ignore_eos: bool = False
    stop_ids: tuple[int, ...] = ()
    min_new_tokens: int = 0


def needs_masks(stopping: Stopping, grammar: Grammar | None) -> bool:
    """Return whether the tokens of a request are masked: to hold a grammar, or to keep it from ending early."""
    return grammar is not None or stopping.min_new_tokens > 0


@dataclass(frozen=True, slots=True)
class ShardRequest:
    """One request as sent to the shard: the part for its backend, and the shard's own processing of the tokens. `request.masked`:
    whether there is a grammar or a minimum of tokens (`needs_masks`). `images` are the prompt's, encoded; the shard turns them into
    `request.media`."""

    request: Request
    stopping: Stopping
    grammar: Grammar | None = None
    images: tuple[bytes, ...] = ()

    @property
    def id(self) -> int:
        """Id of the request."""
        return self.request.id


@dataclass(frozen=True, slots=True)
class Prefill:
    """Start `requests`, and decode the batch `cached` in the same step. The resulting batch is named by the step's number."""

    step: int
    requests: tuple[ShardRequest, ...]
    cached: int | None = None
    grants: tuple[Grant, ...] = ()


@dataclass(frozen=True, slots=True)
class Decode:
    """Merge `batches` and decode them. The resulting batch is named by the step's number."""

    step: int
    batches: tuple[int, ...]
    grants: tuple[Grant, ...] = ()


@dataclass(frozen=True, slots=True)
class Filter:
    """Keep only the rows `keep` of a batch, which keeps its name."""

    batch: int
    keep: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Clear:
    """Drop one batch, or all of them (None)."""

    batch: int | None


Bookkeeping = Filter | Clear
StepVerb = Prefill | Decode


@dataclass(frozen=True, slots=True)
class Turn:
    """One message to the shard: bookkeeping first, then at most one step to launch, then at most one launched step to wait for."""

    bookkeeping: tuple[Bookkeeping, ...] = ()
    launch: StepVerb | None = None
    read: int | None = None

    @property
    def empty(self) -> bool:
        """Whether the turn contains nothing to do."""
        return self.launch is None and self.read is None and not self.bookkeeping


@dataclass(frozen=True, slots=True)
class Fault:
    """An error of a verb or of reading a step, with its scope. `lost`: the shard has lost its batches."""

    scope: Scope
    kind: str
    message: str
    request_ids: tuple[int, ...] = ()
    lost: bool = False


@dataclass(frozen=True, slots=True)
class Candidate:
    """One of the most likely tokens at a position."""

    id: int
    text: str
    logprob: float
    special: bool


@dataclass(slots=True)
class Token:
    """A generated token. `text` is the text that it adds; "" while a character is incomplete."""

    id: int
    text: str
    logprob: float
    special: bool
    top: tuple[Candidate, ...] = ()


@dataclass(frozen=True, slots=True)
class PromptToken:
    """A token of the prompt; the first one has no logprob."""

    id: int
    text: str
    logprob: float | None


@dataclass(frozen=True, slots=True)
class GeneratedText:
    """The complete text: that of all generated tokens except special ones."""

    text: str
    generated_tokens: int
    finish_reason: FinishReason


@dataclass(slots=True)
class Generation:
    """The result of one step for one request. `prompt` comes once, with the first token; `finished` or `fault` comes last."""

    request_id: int
    tokens: tuple[Token, ...] = ()
    prompt: tuple[PromptToken, ...] = ()
    finished: GeneratedText | None = None
    fault: RowFault | None = None

    @property
    def steps(self) -> int:
        """Number of steps covered."""
        return 1


@dataclass(slots=True)
class StepResult:
    """The results of one step; or the fault that ended the step. `forced`: by request id, the tokens that must follow by a row's
    grammar, where there are some and the session runs drafts. `proposed`: likewise, those that the backend guesses to follow."""

    step: int
    generations: tuple[Generation, ...] = ()
    fault: Fault | None = None
    forward_ns: int = 0
    sample_ns: int = 0
    forced: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    proposed: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    unusual: Sequence[Generation] | None = field(default=None, compare=False)
    """Generations with anything other than exactly one token; None if not determined."""


@dataclass(slots=True)
class VerbCall:
    """One call of a backend hook: its duration in nanoseconds, and the class of its error; "" if it succeeded."""

    verb: str
    ns: int
    error: str = ""


@dataclass(slots=True)
class TurnResult:
    """The answer to a turn. With `refused`, the step was not launched, and nothing has changed unless the fault reports all
    batches as lost. `result` is the step that was read. `verbs` are the turn's backend calls, in order."""

    refused: Fault | None = None
    result: StepResult | None = None
    verbs: tuple[VerbCall, ...] = ()
