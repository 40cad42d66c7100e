"""The model server: executes turns on one open backend, and converts its rows to text.

Synchronous and single-threaded; its owner (a thread of this process, or a child process) calls it one turn at a time.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from concurrent.futures import Future
from dataclasses import replace
from itertools import takewhile
from typing import NamedTuple

from tgi_core.backend import (
    BackendBug,
    BackendError,
    Capacity,
    Feature,
    Grant,
    Handle,
    Progress,
    Request,
    Row,
    RowFault,
    RowFaultKind,
    Step,
    WarmupPlan,
)
from tgi_core.backend.errors import InvalidRequest, Left, Scope, UnknownBatch, UnknownRequest
from tgi_core.backend.session import Session
from tgi_core.backend.types import EMPTY
from tgi_core.grammar import Cost, Grammar
from tgi_core.grammar.compiler import CompiledGrammar
from tgi_core.media.errors import ImageRejected, MediaBusy
from tgi_core.media.processing import MediaProcessing
from tgi_core.media.prompts import MultimodalPrompt, PromptTokens
from tgi_core.server.masks import GrammarMasks
from tgi_core.server.transcript import Transcript
from tgi_core.server.verb_log import VerbLog
from tgi_core.tokenizer import Tokenizer
from tgi_core.wire.types import (
    Bookkeeping,
    Clear,
    Decode,
    Fault,
    Filter,
    Generation,
    Prefill,
    ShardInfo,
    ShardRequest,
    StepResult,
    StepVerb,
    Turn,
    TurnResult,
)

_log = logging.getLogger(__name__)


class _Batch(NamedTuple):
    """A live batch: the backend's handle and the ids of its rows."""

    handle: Handle
    members: tuple[int, ...]


class ModelServer:
    """One shard: batches and steps by the scheduler's numbers, and one transcript per live request. The session's wrapper
    `Metrics` notes its calls in `verbs`, and each turn's answer carries them."""

    def __init__(
        self,
        session: Session,
        tokenizer: Tokenizer,
        info: ShardInfo,
        masks: GrammarMasks | None = None,
        verbs: VerbLog | None = None,
        media: MediaProcessing | None = None,
    ) -> None:
        self.info = info
        self._session = session
        self._vocab_size = info.capabilities.vocab_size
        self._tokenizer = tokenizer
        self._masks = masks
        self._verbs = verbs or VerbLog()
        self._media = media
        if media is not None:
            media.encode_ahead(self._encode)
        if masks is not None:
            masks.attach(info.capabilities.vocab_size)
        self.batches: dict[int, _Batch] = {}
        """By the scheduler's names. The scheduler's record is in another process, and has no handles."""
        self.steps: dict[int, Step] = {}
        self.transcripts: dict[int, Transcript] = {}
        self._draft = 0
        """Maximum number of drafts of a row."""

    @property
    def session(self) -> Session:
        """The session that the steps run in."""
        return self._session

    @property
    def masks(self) -> GrammarMasks | None:
        """The source of its masks; None if requests with a grammar are refused."""
        return self._masks

    def warmup(self, plan: WarmupPlan, progress: Progress) -> Capacity:
        """Warm up the backend."""
        capacity = self._session.warmup(plan, progress)
        self._draft = capacity.draft if Feature.SPECULATION in self.info.capabilities.features else 0
        return capacity

    def close(self) -> None:
        """Close the backend."""
        if self._media is not None:
            self._media.close()
        self._session.close()
        if self._masks is not None:
            self._masks.close()

    def prepare(self, grammar: Grammar, cost: Cost) -> Future[CompiledGrammar]:
        """Start compiling a grammar, and keep it until `release`. Non-blocking; may be called from any thread. Raises
        GrammarsBusy, InvalidRequest; the future raises InvalidGrammar."""
        if self._masks is None:
            raise InvalidRequest("this shard has no grammars")
        return self._masks.prepare(grammar, cost)

    def release(self, grammar: Grammar) -> None:
        """Undo one `prepare`; may be called from any thread."""
        if self._masks is not None:
            self._masks.release(grammar)

    def tokenize_images(self, prompt: MultimodalPrompt) -> Future[PromptTokens]:
        """Start tokenizing a prompt with images, and encoding these, so that no step has to. Non-blocking; may be called from any thread.
        Raises InvalidRequest; the future raises ImageRejected, MediaBusy, BackendError."""
        if self._media is None:
            raise InvalidRequest("this shard takes no images")
        return self._media.tokenize(prompt)

    def _encode(self, item: bytes) -> None:
        try:
            self._session.encode(item)
        except InvalidRequest as error:
            raise ImageRejected(str(error)) from error

    def exchange(self, turn: Turn) -> TurnResult:
        """Execute a turn: bookkeeping, launch, read. Never raises `BackendError`: faults are in the result."""
        refused, disowned = None, False
        verb: Bookkeeping | StepVerb | None = None
        try:
            for verb in turn.bookkeeping:
                self._keep_books(verb)
            if turn.launch is not None:
                verb = turn.launch
                self._launch(verb)
        except BackendError as error:
            refused, disowned = self._fault(error), isinstance(error, UnknownBatch | UnknownRequest) and self._knows(verb)
        result = self._read(turn.read) if turn.read is not None and turn.read in self.steps else None
        if refused is not None and disowned and (result is None or result.fault is None):
            self._drop_everything()
            refused = replace(refused, request_ids=(), lost=True)
        return TurnResult(refused, result, self._verbs.take())

    def _knows(self, verb: Bookkeeping | StepVerb | None) -> bool:
        """Return whether the server knows all batches of a verb. If so, a batch unknown to the backend is one that it has lost."""
        match verb:
            case Prefill(cached=batch) | Filter(batch=batch) | Clear(batch=batch):
                return batch is None or batch in self.batches
            case Decode(batches=batches):
                return all(batch in self.batches for batch in batches)
        return False

    def _keep_books(self, verb: Bookkeeping) -> None:
        if isinstance(verb, Clear):
            self._session.clear(None if verb.batch is None else self._handle(verb.batch))
            for batch in [verb.batch] if verb.batch is not None else list(self.batches):
                self._forget(batch, ())
            return
        handle = self._session.filter(self._handle(verb.batch), verb.keep)
        self._forget(verb.batch, verb.keep)
        if handle != EMPTY:
            self.batches[verb.batch] = _Batch(handle, verb.keep)

    def _launch(self, verb: StepVerb) -> None:
        if isinstance(verb, Prefill):
            for item in verb.requests:
                self._check_tokens(item.request)
            transcripts = {item.id: self._transcript(item) for item in verb.requests}
            merged: tuple[int, ...] = () if verb.cached is None else (verb.cached,)
            cached = EMPTY if verb.cached is None else self._handle(verb.cached)
            step = self._prefill(verb, cached)
            self.transcripts.update(transcripts)
        else:
            transcripts, merged = {}, verb.batches
            step = self._session.decode(tuple(map(self._handle, verb.batches)), self._allowed(verb.grants))
        members = tuple(id for batch in merged for id in self.batches.pop(batch).members) + tuple(transcripts)
        self.steps[verb.step], self.batches[verb.step] = step, _Batch(step.handle, members)

    def _transcript(self, item: ShardRequest) -> Transcript:
        """Start a transcript. Raises InvalidRequest if the prompt cannot be decoded, which fails only that request."""
        try:
            return Transcript(self._tokenizer, item)
        except Exception as error:
            _log.exception("request %d: its text failed", item.id)
            text = f"request {item.id}: {type(error).__name__} in its text"
            raise InvalidRequest(text, request_ids=(item.id,)) from error

    def _prefill(self, verb: Prefill, cached: Handle) -> Step:
        """Start grammars before the verb: a backend may request masks before the verb returns."""
        requests = tuple(self._with_media(item) for item in verb.requests)
        try:
            for item in verb.requests:
                self._begin_grammar(item)
            return self._session.prefill(requests, cached, self._allowed(verb.grants))
        except BackendError:
            self._end_grammars(item.id for item in verb.requests)
            raise

    def _with_media(self, item: ShardRequest) -> Request:
        """Return the backend's request, with the features of its images: they are kept since its prompt was tokenized, unless that was on
        another shard. Raises InvalidRequest, which fails only that request."""
        if not item.images:
            return item.request
        try:
            if self._media is None:
                raise ImageRejected("this shard takes no images")
            return replace(item.request, media=self._media.features(item.images))
        except (ImageRejected, MediaBusy) as error:
            why = f"request {item.id}: {error or 'too many images wait'}"
            raise InvalidRequest(why, request_ids=(item.id,)) from error

    def _allowed(self, grants: tuple[Grant, ...]) -> tuple[Grant, ...]:
        """Cut drafts at the first one that its row's grammar forbids: it would not be accepted."""
        if self._masks is None or not any(grant.drafts for grant in grants):
            return grants
        allowed = [self._masks.allowed(grant.request_id, grant.drafts) if grant.drafts else 0 for grant in grants]
        return tuple(
            grant if count == len(grant.drafts) else replace(grant, take=1 + count, drafts=grant.drafts[:count])
            for grant, count in zip(grants, allowed, strict=True)
        )

    def _begin_grammar(self, item: ShardRequest) -> None:
        """Start a grammar, or a minimum of tokens. Raises InvalidRequest if it cannot start, which fails only that request."""
        if self._masks is None:
            return
        made, stopping = item.request.tokens[item.request.prompt_len :], item.stopping
        try:
            if item.grammar is not None:
                self._masks.begin(item.id, item.grammar, made)
            elif stopping.min_new_tokens:
                self._masks.begin_minimum(item.id, stopping.min_new_tokens - len(made), stopping.stop_ids)
        except Exception as error:
            _log.exception("request %d: its grammar failed", item.id)
            text = f"request {item.id}: {type(error).__name__} in its grammar"
            raise InvalidRequest(text, request_ids=(item.id,)) from error

    def _end_grammars(self, request_ids: Iterable[int]) -> None:
        if self._masks is not None:
            self._masks.end(request_ids)

    def _check_tokens(self, request: Request) -> None:
        """Check token ids before decoding. The router has checked them, but a shard does not trust its router."""
        if not all(0 <= token < self.info.capabilities.vocab_size for token in request.tokens):
            raise InvalidRequest(f"request {request.id}: a token id is outside the vocabulary", request_ids=(request.id,))

    def _read(self, number: int) -> StepResult:
        step = self.steps.pop(number)
        try:
            rows = self._session.rows(step)
        except BackendError as error:
            self._drop_everything()
            return StepResult(number, fault=self._fault(_of_step(error)))
        generations = [made for row in rows.rows if (made := self._generation(row)) is not None]
        forced = self._forced(generations) if self._draft and self._masks is not None else {}
        proposed = {row.request_id: hints for row in rows.rows if row.proposed and (hints := self._proposed(row))}
        return StepResult(number, tuple(generations), None, rows.forward_ns, rows.sample_ns, forced, proposed)

    def _proposed(self, row: Row) -> tuple[int, ...]:
        """Return a row's guesses, up to the first that no row may run as a draft; none for a row that has ended."""
        valid = takewhile(lambda token: 0 <= token < self._vocab_size, row.proposed[: self._draft])
        return tuple(valid) if row.request_id in self.transcripts else ()

    def _forced(self, generations: list[Generation]) -> dict[int, tuple[int, ...]]:
        """Return the tokens that must follow by the grammars of rows that go on: as many as a row may have drafts, and one that a step
        in flight may make."""
        going = ((made.request_id, self.transcripts.get(made.request_id)) for made in generations if made.tokens)
        found = (
            (id, self._masks.forced(id, transcript.generated, self._draft + 1))
            for id, transcript in going
            if transcript and self._masks
        )
        return {id: tokens for id, tokens in found if tokens}

    def _generation(self, row: Row) -> Generation | None:
        """Convert a row to its result; None for a late row of a dropped request. A decoding failure fails only that row."""
        transcript = self.transcripts.get(row.request_id)
        if transcript is None:
            return None
        try:
            for id in row.tokens:
                if not 0 <= id < self._vocab_size:
                    raise ValueError(f"the backend made tokens {row.tokens}, outside the vocabulary")
            made = transcript.push(row if row.fault is None else self._explained(row))
        except Exception as error:  # noqa: BLE001  one row's text is its own
            _log.exception("request %d: its text failed", row.request_id)
            made = Generation(row.request_id, fault=RowFault(RowFaultKind.TEXT, f"{type(error).__name__} in its text"))
        if made is not None and (made.finished or made.fault):
            del self.transcripts[row.request_id]
            self._end_grammars((row.request_id,))
        return made

    def _explained(self, row: Row) -> Row:
        """Return the result of a failed row, with the reason if its mask allowed no token."""
        reason = self._masks.failure(row.request_id) if self._masks is not None else None
        return replace(row, fault=RowFault(RowFaultKind.MASK, reason)) if reason is not None else row

    def _drop_everything(self) -> None:
        """Handle an error from `rows`, which ends the step's batch and all batches derived from it. The scheduler keeps a single
        chain of batches, so everything is lost. Clearing the session also discards the unread steps."""
        self.steps.clear()
        self.batches.clear()
        self._end_grammars(list(self.transcripts))
        self.transcripts.clear()
        try:
            self._session.clear(None)
        except BackendError as error:
            _log.warning("clearing after a failed step failed: %s", error)

    def _forget(self, batch: int, keep: tuple[int, ...]) -> None:
        """Forget a batch and the transcripts of the rows that it does not keep."""
        gone = set(self.batches.pop(batch).members).difference(keep)
        for id in gone:
            self.transcripts.pop(id, None)
        self._end_grammars(gone)

    def _handle(self, batch: int) -> Handle:
        if batch not in self.batches:
            raise UnknownBatch(f"the shard has no batch {batch}")
        return self.batches[batch].handle

    def _fault(self, error: BackendError) -> Fault:
        lost = error.leaves is not Left.UNCHANGED
        if error.scope is Scope.SESSION:
            _log.error("backend %s: %s: %s", self._session.name, type(error).__name__, error)
        return Fault(error.scope, type(error).__name__, str(error), error.request_ids, lost)


def _of_step(error: BackendError) -> BackendError:
    """Classify an error of `rows`. A session that does not know a step that it launched is unusable."""
    if not isinstance(error, InvalidRequest) or error.request_ids:
        return error
    lost = BackendBug(f"the backend does not know a step that it has launched: {error}")
    lost.__cause__ = error
    return lost
