"""Operators on the verbs, around any backend: requests, grants, filters, refusals, limits and counters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tgi_conformance.generated.moment import Life, Moment, Shape
from tgi_conformance.generated.operators import operator
from tgi_conformance.generated.witness import Witness
from tgi_core.backend import (
    EMPTY,
    BackendError,
    Capacity,
    CapacityExceeded,
    Cleared,
    Grant,
    Handle,
    InvalidRequest,
    OutOfMemory,
    Progress,
    Request,
    Sampling,
    Stats,
    Step,
    WarmupPlan,
    hookimpl,
)


class _Requests(Witness):
    """Requests change on their way to the backend."""

    @hookimpl
    def prefill(self, batch: tuple[Request, ...], cached: Handle, grants: tuple[Grant, ...]) -> Step:
        """Pass changed requests on; the records keep the original ones."""
        wanted = self.inner
        outer = _Swapped(wanted, self.changed(batch, cached))
        self.inner = outer  # type: ignore[assignment]
        try:
            return super().prefill(batch, cached, grants)
        finally:
            self.inner = wanted

    def changed(self, batch: tuple[Request, ...], cached: Handle) -> tuple[Request, ...]:
        """Change the requests one by one."""
        shape = self._arriving(batch, cached)
        made = []
        for place, request in enumerate(batch, len(self.named([cached]))):
            table = request.blocks[0] if request.blocks else ()
            moment = Moment(request, request.cached, max(1, request.take), place, 0, False, table, shape)
            wrong = self.wrong(request, batch) if request.tokens else request
            made.append(wrong if wrong != request and self.fires(moment) else request)
        return tuple(made)

    def wrong(self, request: Request, batch: Sequence[Request]) -> Request:
        """Return the wrong request."""
        return request

    def _arriving(self, batch: Sequence[Request], cached: Handle) -> Shape:
        held = [life.request for life in self.named([cached])]
        tokens = sum(request.take for request in batch) + len(held)
        past, capacity = self.trigger.past, self.capacity
        size, longest = (capacity.groups[0].block_size, capacity.max_row_tokens) if capacity else (1, 0)
        number, joined, ahead = self._steps + 1, cached != EMPTY, bool(self.unread)
        return Shape(number, (*held, *batch), tokens, False, joined, ahead, dict(past.counts), past.newest, size, longest)


class _Swapped:
    """A session whose next prefill gets other requests."""

    def __init__(self, inner: object, batch: tuple[Request, ...]) -> None:
        self._inner, self._batch = inner, batch

    def prefill(self, batch: tuple[Request, ...], cached: Handle, grants: tuple[Grant, ...]) -> Step:
        """Start the other requests."""
        step: Step = self._inner.prefill(self._batch, cached, grants)  # type: ignore[attr-defined]
        return step


@operator("request-loses", "mates parity formula", weight=2)
class RequestLoses(_Requests):
    """A request reaches the device without something that it asked for."""

    choices = ("sampling", "want", "masked", "adapter", "prompt_len", "seed")

    def wrong(self, request: Request, batch: Sequence[Request]) -> Request:
        """Return the request without it."""
        if self.choice == "sampling":
            return replace(request, sampling=Sampling())
        if self.choice == "seed":
            return replace(request, sampling=replace(request.sampling, seed=0))
        if self.choice == "want":
            return replace(request, want=replace(request.want, logprobs=False, top_n=0, prompt_logprobs=False))
        changes: dict[str, object] = {"masked": False, "adapter": None, "prompt_len": len(request.tokens)}
        return replace(request, **{self.choice: changes[self.choice]})  # type: ignore[arg-type]


@operator("request-of-mate", "mates", weight=1.5)
class RequestOfMate(_Requests):
    """A request of a batch gets a field of the batch's first request."""

    choices = ("sampling", "want", "adapter", "masked")

    def wrong(self, request: Request, batch: Sequence[Request]) -> Request:
        """Return the request with the first request's field."""
        return replace(request, **{self.choice: getattr(batch[0], self.choice)})


@operator("prompt-token-wrong", "parity mates chunks", weight=1.5)
class PromptTokenWrong(_Requests):
    """One token of a prompt arrives as another: the first, the last, one at the edge of a chunk or a block, or in the middle."""

    choices = ("first", "last", "chunk", "block", "middle")

    def wrong(self, request: Request, batch: Sequence[Request]) -> Request:
        """Return the request with one id lowered."""
        length, size = len(request.tokens), self.capacity.groups[0].block_size if self.capacity else 1
        edge = request.cached + request.take
        places = {"first": 0, "last": length - 1, "chunk": edge, "block": size, "middle": length // 2}
        place = places[self.choice]
        if place >= length or place < request.cached:
            return request
        token = request.tokens[place] - 1 if request.tokens[place] > 0 else 1
        return replace(request, tokens=(*request.tokens[:place], token, *request.tokens[place + 1 :]))


@operator("grant-wrong", "growth cover", weight=1.5)
class GrantWrong(Witness):
    """A pause is ignored, or a row without a grant sits out."""

    choices = ("pause", "usual")

    @hookimpl
    def decode(self, batches: tuple[Handle, ...], grants: tuple[Grant, ...]) -> Step:
        """Pass changed grants on; the records keep the original ones."""
        lives = {life.request.id: life for life in self.named(batches)}
        wrong = [self._wrong(grant, lives.get(grant.request_id)) for grant in grants]
        if self.choice == "usual":
            named = {grant.request_id for grant in grants}
            idle = [life for id, life in lives.items() if id not in named and not life.owed]
            wrong += [Grant(life.request.id, 0) for life in idle if self.trigger.fires(life.latest)]
        if wrong == list(grants):
            return super().decode(batches, grants)
        step = self.inner.decode(batches, tuple(wrong))
        self._launched(step, batches, [], grants)
        return step

    def _wrong(self, grant: Grant, life: Life | None) -> Grant:
        if life is None:
            return grant
        size = self.capacity.groups[0].block_size if self.capacity else 1
        room = (len(life.blocks) + len(grant.blocks[0] if grant.blocks else ())) * size
        if self.choice == "pause" and grant.take == 0 and not life.owed and life.done < room:
            return replace(grant, take=1) if self.trigger.fires(life.latest) else grant
        return grant


@operator("filter-wrong", "drop isolation mates order", weight=2)
class FilterWrong(Witness):
    """Filter keeps the first rows, as many as are named; or one row too many or too few."""

    choices = ("count", "more", "fewer")

    @hookimpl
    def filter(self, batch: Handle, keep: tuple[int, ...]) -> Handle:
        """Keep the wrong rows."""
        lives = self.named([batch])
        ids = [life.request.id for life in lives]
        gone = [id for id in ids if id not in keep]
        wrongs = {"count": tuple(ids[: len(keep)]), "more": (*keep, *gone[:1]), "fewer": keep[:-1] if len(keep) > 1 else keep}
        wrong = wrongs[self.choice]
        if not keep or set(wrong) == set(keep) or not set(keep) <= set(ids) or not self.fires_for(lives):
            return super().filter(batch, keep)
        kept = self.inner.filter(batch, wrong)
        self.lives.pop(batch, None)
        self.lives[kept] = [life for life in lives if life.request.id in wrong]
        return kept


@operator("clear-wrong", "clear drop isolation", weight=1.5)
class ClearWrong(Witness):
    """Clear returns a count that is one too low, drops other batches as well, or drops nothing."""

    choices = ("count", "others", "nothing")

    @hookimpl
    def clear(self, batch: Handle | None) -> Cleared:
        """Clear in one of these ways."""
        lives = self.named(list(self.lives) if batch is None else [batch])
        if not lives or not self.fires_for(lives):
            return super().clear(batch)
        if self.choice == "nothing":
            self.trigger.past.note("clear")
            return Cleared(len(lives))
        cleared = super().clear(batch)
        if self.choice == "others":
            self.inner.clear(None)
        return Cleared(cleared.count - 1) if self.choice == "count" else cleared


@operator("refuses-for-nothing", "promise capacity mates parity")
class RefusesForNothing(Witness):
    """A verb that the contract allows is refused."""

    choices = (CapacityExceeded("too much"), OutOfMemory("no memory"), InvalidRequest("wrong"), ValueError("shape mismatch"))

    @hookimpl
    def decode(self, batches: tuple[Handle, ...], grants: tuple[Grant, ...]) -> Step:
        """Raise before anything changes."""
        if self.fires_for(self.named(batches)):
            raise self.choice
        return super().decode(batches, grants)


@operator("refusal-costs", "failure refusal handles", weight=2)
class RefusalCosts(Witness):
    """A refused decode or prefill drops the batches it named, or raises another error."""

    choices = ("batch", "kind", "foreign")

    @hookimpl
    def decode(self, batches: tuple[Handle, ...], grants: tuple[Grant, ...]) -> Step:
        """Do damage after a refusal."""
        try:
            return super().decode(batches, grants)
        except BackendError as error:
            self._after(error, batches)
            raise

    @hookimpl
    def prefill(self, batch: tuple[Request, ...], cached: Handle, grants: tuple[Grant, ...]) -> Step:
        """Do damage after a refusal."""
        try:
            return super().prefill(batch, cached, grants)
        except BackendError as error:
            self._after(error, (cached,))
            raise

    def _after(self, error: BackendError, handles: Sequence[Handle]) -> None:
        lives = self.named(handles)
        if not lives or not self.fires_for(lives):
            return
        if self.choice == "kind":
            raise OutOfMemory("refused") from error
        if self.choice == "foreign":
            raise KeyError("refused") from error
        for handle in handles:
            if self.lives.pop(handle, None) is not None:
                self.inner.clear(handle)


@operator("handle-survives", "handles")
class HandleSurvives(Witness):
    """A used handle still names its batch."""

    @hookimpl
    def decode(self, batches: tuple[Handle, ...], grants: tuple[Grant, ...]) -> Step:
        """Replace old handles with their successors."""
        found = tuple(self._now(handle) for handle in batches)
        if len(set(found)) < len(found):
            found = batches
        fires = len(found) == 1 and self.fires_for(self.named(found))
        step = super().decode(found, grants)
        if fires:
            self._successors[found[0]] = step.handle
        return step

    def _now(self, handle: Handle) -> Handle:
        while handle not in self.lives and handle in self._successors:
            handle = self._successors[handle]
        return handle

    @property
    def _successors(self) -> dict[Handle, Handle]:
        found: dict[Handle, Handle] = self.__dict__.setdefault("_found", {})
        return found


@operator("place-lost", "capacity drop promise leaks", weight=1.5)
class PlaceLost(Witness):
    """The place of a row that left never becomes free."""

    lost = 0

    @hookimpl
    def prefill(self, batch: tuple[Request, ...], cached: Handle, grants: tuple[Grant, ...]) -> Step:
        """Refuse rows that fit the promise but not the remaining places."""
        alive = sum(map(len, self.lives.values()))
        if self.capacity and alive + len(batch) <= self.capacity.max_rows < alive + len(batch) + self.lost:
            raise CapacityExceeded("no place")
        return super().prefill(batch, cached, grants)

    @hookimpl
    def filter(self, batch: Handle, keep: tuple[int, ...]) -> Handle:
        """Count the lost places."""
        gone = [life for life in self.named([batch]) if life.request.id not in keep]
        kept = super().filter(batch, keep)
        self.lost += sum(self.trigger.fires(life.latest) for life in gone)
        return kept

    @hookimpl
    def clear(self, batch: Handle | None) -> Cleared:
        """Count the lost places."""
        gone = self.named(list(self.lives) if batch is None else [batch])
        cleared = super().clear(batch)
        self.lost += sum(self.trigger.fires(life.latest) for life in gone)
        return cleared


@operator("limit-one-off", "capacity promise open refusal")
class LimitOneOff(Witness):
    """A promised limit is one more or one less than the limit that is enforced."""

    choices = (
        *((name, by) for name in ("max_rows", "max_row_tokens", "max_step_tokens") for by in (1, -1)),
        ("max_prefill_rows", -1),  # one more would exceed max_rows, which no step can
    )

    @hookimpl
    def warmup(self, plan: WarmupPlan, progress: Progress) -> Capacity:
        """Promise another limit; the records use the enforced one."""
        kept = super().warmup(plan, progress)
        name, by = self.choice
        self.trigger.fired += 1
        return replace(kept, **{name: max(1, getattr(kept, name) + by)})


@operator("counters-grow", "leaks", weight=1.5)
class CountersGrow(Witness):
    """Memory leaks, or a shape is compiled, whenever the mutant fires."""

    choices = ("memory", "compiles")
    grown = 0

    @hookimpl
    def decode(self, batches: tuple[Handle, ...], grants: tuple[Grant, ...]) -> Step:
        """Count rows for which the mutant fires."""
        step = super().decode(batches, grants)
        self.grown += sum(self.fires(moment) for moment in self.moments[step.id].values())
        return step

    @hookimpl
    def stats(self) -> Stats:
        """Return the counters with what has leaked."""
        found = super().stats()
        if self.choice == "compiles":
            return replace(found, compiles=found.compiles + self.grown)
        return replace(found, memory=tuple(replace(share, num_bytes=share.num_bytes + 64 * self.grown) for share in found.memory))
