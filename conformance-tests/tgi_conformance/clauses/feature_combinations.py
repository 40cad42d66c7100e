"""Combinations of features: each feature works with every other, and next to rows that do not use it.

Every row is compared with what it makes alone, and with the published formula where that is declared.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tgi_conformance.baseline import Alone, all_wants
from tgi_conformance.calls import Decode, Ref
from tgi_conformance.clause import clause
from tgi_conformance.clauses.chunked_prefill import finish
from tgi_conformance.clauses.formula_oracle import Ask, check_formula, has_formula
from tgi_conformance.clauses.lora import adapted_transcripts
from tgi_conformance.clauses.mates import ways
from tgi_conformance.features import missing
from tgi_conformance.fields import DECLARED, used, using
from tgi_conformance.masks import OWN
from tgi_conformance.scenario import Scene
from tgi_conformance.scenario_steps import PLAIN, Stage
from tgi_conformance.session_setup import Setup
from tgi_conformance.target import MIXED_ROW_TOKENS, WIDE_ROWS, mixed_plan
from tgi_conformance.verdict import Level, NotReached
from tgi_core.backend import Feature, Grant, OutputOptions, Request, Row, Sampling, UnknownBatch, WarmupPlan

_LENGTHS = (5, 16, 1, 33, 64, 7, 17, 128, 3, 63, 32, 9)
"""Prompt lengths in tokens: inside a block, and at the edges of blocks of every usual size."""
_LONG = (128, 63, 96, 64, 33)
"""Lengths of prompts that hold many of the tokens of which a repetition penalty may change the logits."""


_BIAS = ((3, 6.0), (5, 4.0), (7, 5.0))
_TOGETHER = (
    Sampling(logit_bias=_BIAS),
    Sampling(True, 2.0, 5, 0.8, seed=2**63 + 3),
    Sampling(True, 0.6, seed=2**33),
    Sampling(True, 1.5, 4, typical_p=0.7, seed=11),
    Sampling(True, 0.8, top_p=0.8, repetition_penalty=1.8, seed=12),
    Sampling(True, 1.3, 4, frequency_penalty=1.1, seed=13),
    Sampling(True, 2.0, top_p=0.7, presence_penalty=0.9, logit_bias=_BIAS, seed=14),
    Sampling(True, 1.2, typical_p=0.7, repetition_penalty=1.5, frequency_penalty=-1.0, seed=15),
    Sampling(repetition_penalty=0.6, logit_bias=_BIAS, frequency_penalty=1.0, presence_penalty=-2.0),
    Sampling(True, 1.6, top_p=0.9, typical_p=0.5, presence_penalty=-1.5, seed=2**40),
)
_COMBINED = set[str]().union(*map(used, _TOGETHER))
_FURTHER = tuple(
    using(spec, spec.tried[-1], temperature=1.6, top_p=0.9, seed=17) for spec in DECLARED if spec.name not in _COMBINED
)
"""Sampling fields that no combination above uses, together with another filter."""


@dataclass(frozen=True, slots=True)
class Spec:
    """Describes a row: `chunk` in tokens; `made` is how many tokens of its prompt count as generated."""

    sampling: Sampling = Sampling()
    want: OutputOptions = PLAIN
    masked: bool = False
    adapter: str | None = None
    chunk: int = 0
    made: int = 0
    shares: bool = False


@dataclass(slots=True)
class Company:
    """A stage with rows of every kind that its session declares."""

    stage: Stage
    adapters: tuple[str, ...]
    scene: Scene
    ask: Ask | None
    """Returns what rows make alone; None where the formula cannot be checked."""
    requests: list[Request] = field(default_factory=list)
    """Every request made so far."""
    _count: int = field(default=0)

    @property
    def full(self) -> OutputOptions:
        """Everything a row can return."""
        return all_wants(self.stage.capabilities.features)

    def features(self) -> dict[str, list[Spec]]:
        """Map each feature to specs that use it and no other."""
        stage, full = self.stage, self.full
        found = {"sampling": [*map(Spec, ways(stage)[1:]), *(Spec(how) for how in self._together())]}
        found["wants"] = [Spec(want=want) for want in {full, replace(full, top_n=0), replace(full, logprobs=False)} - {PLAIN}]
        if stage.play.masks is not None:
            found["masks"] = [Spec(masked=True)]
        if self.adapters:
            found["lora"] = [Spec(adapter=name) for name in self.adapters[:2]]
        if stage.has(Feature.CHUNKED_PREFILL):
            found["chunks"] = [Spec(chunk=3), Spec(chunk=16)]
        if stage.has(Feature.PREFIX_REUSE):
            found["prefix"] = [Spec(shares=True)]
        found["continue"] = [Spec(made=4)]
        return found

    def _together(self) -> Iterator[Sampling]:
        """Yield combinations of sampling fields, as far as they are declared."""
        declared = {item.value for item in self.stage.capabilities.sampling}
        for how in _TOGETHER + _FURTHER:
            if declared.issuperset(used(how) | ({"seed"} if how.do_sample else set())):
                yield self.stage.seeded(how)

    def crossed(self, feature: str) -> list[Spec]:
        """Combine a feature with each other one, alternating with rows that do not use it. Raises NotReached.

        A feature with more than two variants meets the others in bundles, once per variant.
        """
        found = self.features()
        mine = found.pop(feature, [])
        if not mine:
            raise NotReached(f"no row of this session can use {feature}")
        others = [spec for specs in found.values() for spec in specs]
        specs = [_merged(mine[index % len(mine)], other) for index, other in enumerate(others)]
        if len(mine) > 2:
            specs += [_merged(one, bundle) for one in mine for bundle in self._bundles(found)]
        else:
            specs += [_merged(one, other) for one in mine[1:] for other in others]
        return [spec for pair in zip(specs, self._between(others), strict=False) for spec in pair]

    def _bundles(self, found: dict[str, list[Spec]]) -> list[Spec]:
        """Bundle features, so that each variant of another feature meets all of them in a few rows."""
        plain = [Spec()]
        pairs = (("masks", "continue"), ("lora", "chunks"), ("prefix", "continue"))
        bundles = [_merged(found.get(one, plain)[0], found.get(other, plain)[-1]) for one, other in pairs]
        return [_merged(bundle, Spec(want=self.full)) for bundle in bundles if bundle != Spec()]

    @staticmethod
    def _between(others: Sequence[Spec]) -> Iterator[Spec]:
        """Yield batch mates that each use something else."""
        while True:
            yield from (Spec(), *others[::3])

    def everyone(self) -> list[Spec]:
        """Return one spec of each kind, and some that combine two."""
        kinds = [spec for specs in self.features().values() for spec in specs]
        pairs = [_merged(one, other) for one, other in zip(kinds, kinds[len(kinds) // 2 :], strict=False)]
        return [Spec(want=self.full), *kinds, *pairs]

    # rows

    def repeat(self) -> None:
        """Make the requests that follow repeat those made from the start, under the same masks."""
        self._count = 0
        self.stage.repeat_masks()

    def request(self, spec: Spec, length: int = 0, number: int = 0) -> Request:
        """Build a request from its spec; lengths and texts vary from one number to the next."""
        stage, self._count = self.stage, number or self._count + 1
        room = min(stage.capacity.max_row_tokens - 12, stage.capacity.max_step_tokens)
        lengths, least = (_LENGTHS, 2 if spec.made or spec.chunk else 1) if spec.sampling.repetition_penalty == 1 else (_LONG, 2)
        length = length or max(least, min(room, lengths[self._count % len(lengths)]))
        prompt = self._text(11, 7 * self._count, length, spread=lengths is _LONG or self._count % 2 == 0)
        take = min(max(spec.chunk, length // (2 if spec.chunk > 8 else 5)), length - 1) if spec.chunk else None
        made = min(spec.made, length - 1)
        fields: dict[str, Any] = {"masked": spec.masked, "adapter": spec.adapter, "prompt_len": length - made}
        self.requests.append(stage.request(prompt, spec.sampling, take, want=spec.want, **fields))
        return self.requests[-1]

    def _text(self, step: int, first: int, length: int, spread: bool = False) -> tuple[int, ...]:
        """Return a prompt; if `spread`, it has token ids from the whole vocabulary, and begins with one of the last."""
        prompt = self.stage.varied((step * index + first) % 50 for index in range(length))
        if not spread:
            return prompt
        size = self.stage.capabilities.vocab_size
        first_id = size - 1 - self._count % 3 if size > 3 else 0
        return (first_id, *((37 * index + 11 * self._count - token) % size for index, token in enumerate(prompt[1:], 1)))

    def sharer(self, spec: Spec, owner: Request, cached: int, tail: int) -> Request:
        """Build a request behind an owner's blocks; it takes the rest at once or in chunks."""
        stage, made = self.stage, min(spec.made, tail - 1)
        want, take = replace(spec.want, prompt_logprobs=False), min(spec.chunk, max(1, tail - 1)) if spec.chunk else None
        fields: dict[str, Any] = {"masked": spec.masked, "adapter": spec.adapter, "prompt_len": cached + tail - made}
        text = stage.varied((5 * self._count + index) % 50 for index in range(tail))
        tokens = (*owner.tokens[:cached], *stage.folded(text))
        self.requests.append(stage.request(tokens, spec.sampling, take, want=want, cached=cached, shares=owner, **fields))
        return self.requests[-1]

    def start(self, specs: Sequence[Spec]) -> list[Ref]:
        """Start rows in as few steps as the limits allow, and run their prompts to the end."""
        batches = self.started([self.request(spec) for spec in specs if not spec.shares])
        return batches + self._behind([spec for spec in specs if spec.shares])

    def started(self, requests: Sequence[Request]) -> list[Ref]:
        """Start requests in as few steps as the limits allow, and run their prompts to the end."""
        stage, waiting, batches = self.stage, [*requests], list[Ref]()
        while waiting:
            group, left = [waiting.pop(0)], stage.capacity.max_step_tokens
            left -= group[0].take
            while waiting and waiting[0].take <= left and len(group) < stage.capacity.max_prefill_rows:
                left -= waiting[0].take
                group.append(waiting.pop(0))
            batches.append(self.finished(stage.start(*group), {request.id: request.take for request in group}))
        return batches

    def finished(self, batch: Ref, chunks: dict[int, int]) -> Ref:
        """Run the rest of all prompts, each in its own chunks; rows whose prompts are complete decode along."""
        stage = self.stage
        while any(row.owed for row in stage.play.oracle.batches[batch]):
            rows, grants = stage.play.oracle.batches[batch], list[Grant]()
            left = stage.capacity.max_step_tokens - len(rows)
            for row in rows:
                take = min(row.owed, chunks[row.request.id], left + 1) if row.owed else 1
                left -= take - 1
                grants.append(stage.grant(row, take))
            batch = stage.decode(batch, grants=grants)
        return batch

    def _behind(self, specs: Sequence[Spec]) -> list[Ref]:
        """Start rows behind prefixes, each behind an owner with the same adapter. Raises NotReached."""
        stage, batches = self.stage, list[Ref]()
        size = stage.capacity.groups[0].block_size
        most = min(3, (min(stage.capacity.max_row_tokens, stage.capacity.max_step_tokens) - 16) // size)
        if specs and most < 1:
            raise NotReached(
                f"a prefix of whole {size}-token blocks does not fit a row of {stage.capacity.max_row_tokens} tokens"
            )
        for index, spec in enumerate(specs):
            self._count += 1
            owner = stage.request(self._text(3, index, most * size + 1, spread=self._count % 2 == 0), adapter=spec.adapter)
            held = stage.start(owner)
            tail = (1, 4, size if size <= 16 else 2)[self._count % 3]
            sharer = self.sharer(spec, owner, size * (most - index % most), tail)
            batch = finish(stage, stage.start(sharer), sharer.id, 2)
            stage.keep_blocks(owner.id)
            stage.filter(held, ())
            batches.append(batch)
        return batches

    def groups(self, specs: Sequence[Spec]) -> Iterator[Sequence[Spec]]:
        """Yield as many specs at a time as fit. A prefix takes blocks in addition to those of its row. Places are left for an owner, and
        for the last two rows of the group before, whose blocks are not free until their steps are read."""
        promised = self.stage.capacity
        size = promised.groups[0].block_size
        blocks = promised.groups[0].num_blocks // -(-min(promised.max_row_tokens, MIXED_ROW_TOKENS) // size) - 3
        room = max(1, min(promised.max_rows - 1, promised.max_step_tokens, WIDE_ROWS - 1))
        group, held = list[Spec](), 0
        for spec in specs:
            needs = 2 if spec.shares else 1
            if group and (len(group) == room or held + needs > blocks):
                yield group
                group, held = [], 0
            group.append(spec)
            held += needs
        if group:
            yield group

    def run(self, specs: Sequence[Spec], steps: int = 2) -> None:
        """Start rows, merge them, decode, and remove them in turn, the last two while a row of another batch stays."""
        stage = self.stage
        for group in self.groups(specs):
            batch = stage.decode(*self.start(group)[::-1], steps=steps)
            rows = [row.request.id for row in stage.play.oracle.rows]
            if len(rows) > 2:
                rows = rows[::2]
                batch = self._decoded(stage.filter(batch, rows), steps)
            beside = stage.start(stage.request(stage.prompts[0][:3]))
            stage.clear(self._decoded(stage.filter(batch, [*rows[:1], *rows[1:][-1:]]), steps))
            stage.filter(self._decoded(beside, 2), ())
        self.check_formula()

    def _decoded(self, batch: Ref, steps: int) -> Ref:
        """Decode a batch, and name it again by the handle that the last step has used up."""
        used = self.stage.decode(batch, steps=steps - 1) if steps > 1 else batch
        batch = self.stage.decode(used)
        self.stage.refuse(UnknownBatch, Decode((used,)))
        return batch

    def check_formula(self) -> None:
        """Compare the requests made so far with the formula, once for the same results."""
        ask, alone = self.ask, self.stage.play.judge.yardstick
        if ask is not None and isinstance(alone, Alone):
            found = {(alone.key(request), *self._results(request)): request for request in self.requests}
            new = [request for key, request in found.items() if key not in alone.formula_checked]
            self.scene.aside(lambda: check_formula(self.stage, ask, new))  # now, because a device may allow only one session
            alone.formula_checked.update(found)
        self.requests.clear()

    def _results(self, request: Request) -> Iterator[object]:
        for row in self.stage.play.results.get(request.id, ()):
            yield row.tokens, row.logprobs, row.top, row.prompt_logprobs


def _merged(one: Spec, other: Spec) -> Spec:
    """Combine two specs; `one` decides the sampling unless it is plain."""
    return Spec(
        one.sampling if one.sampling != Sampling() else other.sampling,
        one.want if one.want != PLAIN else other.want,
        one.masked or other.masked,
        one.adapter or other.adapter,
        one.chunk or other.chunk,
        one.made or other.made,
        one.shares or other.shares,
    )


def company(scene: Scene, masks: str = OWN, plan: WarmupPlan | None = None, adapted: bool = True) -> Company:
    """Open a session with everything the backend declares: masks and, if `adapted`, adapters on the golden checkpoint that has them."""
    masked = masks if Feature.MASKS in scene.declared[0].features else None
    plan = plan or mixed_plan(scene.declared[0].block_sizes)
    setup, names = Setup(plan, masked), tuple[str, ...]()
    golden = adapted_transcripts(scene) if adapted and not missing(scene, ("lora",)) else None
    known = scene.adapted.adapters if golden is not None and scene.adapted is not None else ()
    if golden is not None and {item.name for item in golden.adapters} <= {*known}:
        setup, names = replace(setup, golden=golden.name, adapters=True, alone=True), tuple(item.name for item in golden.adapters)
    stage = Stage(scene.play(setup, shared=True), scene.seed)

    def ask(request: Request, count: int) -> list[Row]:
        return stage.play.judge.yardstick.rows(request, count)[:count]

    return Company(stage, names, scene, ask if has_formula(stage) else None)


for _feature, _id, _needs in (
    ("sampling", "formula.crossed", ("formula",)),
    ("wants", "mates.crossed", ("logprobs",)),
    ("masks", "masks.crossed", ("masks",)),
    ("lora", "lora.crossed", ("lora",)),
    ("chunks", "chunks.crossed", ("chunked_prefill",)),
    ("prefix", "prefix.crossed", ("prefix_reuse",)),
    ("continue", "continue.crossed", ()),
):

    def _check(scene: Scene, feature: str = _feature) -> None:
        """Next to rows that do not use it."""
        here = company(scene, adapted=feature not in ("sampling", "wants"))
        here.run(here.crossed(feature))

    clause(_id, f"A row's {_feature} works with every other feature and affects no other row.", Level.L2, needs=_needs, rows=4)(
        _check
    )
