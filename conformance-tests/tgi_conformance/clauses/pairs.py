"""Pairs of features: any two that a session declares occur in the same four rows, and each row is compared with its run alone.

A covering array chooses which features are on: any two are on together, off together, and each on without the other. A feature's
clause runs the lines of the array in which the feature is on, on a golden checkpoint without a sliding window and, if it opens, on
one with a sliding window.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import combinations, product

from tgi_conformance.calls import Ref
from tgi_conformance.clause import Check, clause
from tgi_conformance.clauses.mask_sources import obeyed
from tgi_conformance.golden import adapted_golden
from tgi_conformance.masks import OWN
from tgi_conformance.scenario import Scene
from tgi_conformance.scenario_steps import PLAIN, Stage
from tgi_conformance.session_setup import Setup
from tgi_conformance.target import mixed_plan
from tgi_conformance.verdict import Level, Violation
from tgi_core.backend import (
    Determinism,
    Feature,
    Grant,
    InvalidModel,
    Mixing,
    Request,
    Row,
    Sampling,
    SamplingField,
    Unsupported,
)

WINDOWED = "gemma2"
"""The golden checkpoint with a sliding window."""

_CHUNK, _STEPS, _DONE = 3, 7, 3
"""Tokens of a chunk, steps after all rows have joined, and tokens that a continued request had generated."""

_PENALTIES = {
    SamplingField.REPETITION_PENALTY: ("repetition_penalty", 1.9),
    SamplingField.FREQUENCY_PENALTY: ("frequency_penalty", 0.8),
    SamplingField.PRESENCE_PENALTY: ("presence_penalty", -0.7),
}


def covering(names: Sequence[str]) -> list[frozenset[str]]:
    """Return a covering array of strength two over names that are on or off; its first line has all names on."""
    missing = {
        frozenset(pair) for a, b in combinations(names, 2) for pair in product(((a, True), (a, False)), ((b, True), (b, False)))
    }
    lines = [frozenset(names)]
    missing = {pair for pair in missing if not all(on for _, on in pair)}
    while missing:
        line = dict(min(missing, key=sorted))
        for name in names:
            if name not in line:
                gains = {on: sum(frozenset(((name, on), other)) in missing for other in line.items()) for on in (True, False)}
                line[name] = gains[True] > gains[False]
        missing -= set(map(frozenset, combinations(line.items(), 2)))
        lines.append(frozenset(name for name, on in line.items() if on))
    return lines


def declared(stage: Stage) -> list[str]:
    """Return the features that can be switched on or off here."""
    found, promised = stage.capabilities, stage.capacity
    fits = stage.capacity.groups[0].block_size + 24 <= promised.max_row_tokens
    can = {
        "adapters": bool(found.adapters),
        "chunks": stage.has(Feature.CHUNKED_PREFILL),
        "continue": True,
        "logprobs": stage.has(Feature.LOGPROBS),
        "masks": stage.has(Feature.MASKS),
        "mixing": found.mixing is not Mixing.NONE,
        "penalties": any(field in found.sampling for field in _PENALTIES),
        "prefix": stage.has(Feature.PREFIX_REUSE) and fits,
        "run-ahead": promised.in_flight > 1,
        "seeds": SamplingField.SEED in found.sampling and found.determinism is not Determinism.NONE,
    }
    return [name for name, is_declared in can.items() if is_declared]


class Traffic:
    """Four rows: an owner, two that start behind its first block where prefixes are reused, and an unrelated one."""

    def __init__(self, scene: Scene, stage: Stage, on: frozenset[str], number: int) -> None:
        self.scene, self.stage, self.on, self.number = scene, stage, on, number
        self.cached = stage.capacity.groups[0].block_size if "prefix" in on else 0
        names = stage.capabilities.adapters if "adapters" in on else ()
        self.adapters = (names[number % len(names)], names[(number + 1) % len(names)]) if names else (None, None)

    def run(self) -> None:
        """Start the rows, share some steps, let one leave, and let the others go on."""
        stage = self.stage
        owner = self._request(0, stage.varied(self._text(self.cached + 6)))
        new = [self._sharer(owner, 1), self._sharer(owner, 2), self._request(3, stage.varied(self._text(7)), self.adapters[1])]
        batch = self._finish(stage.start(owner), owner.id)
        batch = self._go(self._joined(batch, new), 3)
        batch = self._go(stage.filter(batch, [owner.id, new[0].id, new[2].id]), _STEPS - 3)
        obeyed(stage, [request for request in (owner, *new) if request.masked])
        stage.clear(None)

    def _text(self, length: int) -> tuple[int, ...]:
        """Return a text that differs for each line."""
        return tuple((5 * index + index // 3 + 3 * self.number) % 50 for index in range(length))

    def _sharer(self, owner: Request, row: int) -> Request:
        """Build a request behind the owner's first block, with its own text; continued from generated tokens if that is on."""
        prompt = (*owner.tokens[: self.cached], *self.stage.folded(self.stage.varied(self._text(4 + row)[row:])))
        if "continue" not in self.on:
            return self._request(row, prompt, shares=owner)
        whole = replace(self.stage.outline(prompt, self._how(row)), adapter=self.adapters[0])
        made = [token for made in self._alone(whole, 2 * _DONE) for token in made.tokens]
        request = self._request(row, (*prompt, *made[:_DONE]), shares=owner, prompt_len=len(prompt))
        rest = [token for made in self._alone(replace(request, masked=False), _DONE) for token in made.tokens]
        if self.stage.play.judge.exact and rest[:_DONE] != made[_DONE : 2 * _DONE]:
            raise Violation(
                "continue", f"{made[:_DONE]} was followed by {made[_DONE:]}; continued from there it makes {rest[:_DONE]}"
            )
        return request

    def _alone(self, request: Request, count: int) -> list[Row]:
        return self.scene.makes_alone(request, count, self.stage.play.judge.yardstick)

    def _request(
        self, row: int, prompt: Sequence[int], *adapter: str | None, shares: Request | None = None, **fields: int
    ) -> Request:
        cached = self.cached if shares else 0
        want = self.stage.wants if "logprobs" in self.on else PLAIN
        return self.stage.request(
            prompt,
            self._how(row),
            min(_CHUNK, len(prompt) - cached) if "chunks" in self.on else None,
            want=replace(want, prompt_logprobs=want.prompt_logprobs and not cached),
            cached=cached,
            shares=shares,
            masked="masks" in self.on and row > 0,
            adapter=adapter[0] if adapter else self.adapters[0],
            **fields,
        )

    def _how(self, row: int) -> Sampling:
        """Return sampling by row and line; no two rows are sampled alike."""
        field = self.stage.capabilities.sampling
        penalties = {name: value for key, (name, value) in _PENALTIES.items() if key in field and "penalties" in self.on}
        how = Sampling(**penalties)  # type: ignore[arg-type]
        if "seeds" not in self.on:
            return how
        return self.stage.seeded(replace(how, do_sample=True, temperature=1.5 + row / 4, seed=100 * self.number + row))

    def _joined(self, batch: Ref, new: list[Request]) -> Ref:
        """Start the new rows together with the running ones, or in a separate step, and merge.

        Where steps run ahead, the previous step is still unread.
        """
        stage = self.stage
        if "mixing" not in self.on:
            return stage.decode(batch, stage.start(*new))
        if "run-ahead" not in self.on or not self._start_together(new):
            return stage.start(*new, beside=batch)
        step = stage.go_on(batch)
        joined = stage.launch(*new, beside=step)
        stage.read(step)
        return stage.read(joined)

    def _start_together(self, new: list[Request]) -> bool:
        """Return whether the limits allow the new rows to start in one step next to a running row."""
        promised = self.stage.capacity
        return len(new) <= promised.max_prefill_rows and sum(request.take for request in new) < promised.max_step_tokens

    def _finish(self, batch: Ref, id: int) -> Ref:
        while self.stage.row(id).owed:
            batch = self._go(batch, 1)
        return batch

    def _go(self, batch: Ref, steps: int) -> Ref:
        """Run `steps` steps, as far ahead as promised where steps run ahead."""
        unread = list[Ref]()
        ahead = self.stage.capacity.in_flight - 1 if "run-ahead" in self.on else 0
        for _ in range(steps):
            batch = self.stage.go_on(batch, grants=self._grants(batch))
            unread.append(batch)
            if len(unread) > ahead:
                self.stage.read(unread.pop(0))
        for step in unread:
            self.stage.read(step)
        return batch

    def _grants(self, batch: Ref) -> list[Grant]:
        """Grant each row a chunk or a token; rows beyond max_prefill_rows get one token of their prompt."""
        rows, room = self.stage.play.oracle.batches[batch], self.stage.capacity.max_prefill_rows
        chunked = [row for row in rows if row.owed > 1][:room]
        return [self.stage.grant(row, min(_CHUNK, row.owed) if row in chunked else 1) for row in rows]


def _stages(scene: Scene) -> Iterator[Stage]:
    """Yield stages with adapters where declared: without a sliding window, then with one on devices that run real models."""
    adapts = scene.adapted is not None and Feature.LORA in scene.adapted.features
    plan, golden = mixed_plan(scene.declared[0].block_sizes), adapted_golden(scene.target.device_kind)
    setup = Setup(plan, OWN, golden, adapters=adapts, alone=True)
    yield Stage(scene.play(setup, shared=True), scene.seed)
    if scene.target.device_kind != "none":
        try:
            yield _windowed(scene, setup)
        except (InvalidModel, Unsupported):
            scene.situations[f"golden {WINDOWED} refused"] += 1


def _windowed(scene: Scene, setup: Setup) -> Stage:
    """Open the checkpoint with a sliding window, without adapters if the backend runs them on other models only.

    Raises InvalidModel, Unsupported.
    """
    setup = replace(setup, golden=WINDOWED)
    try:
        return Stage(scene.play(setup, shared=True), scene.seed)
    except Unsupported:
        if not setup.adapters:
            raise
    return Stage(scene.play(replace(setup, adapters=False), shared=True), scene.seed)


def _together(name: str) -> Check:
    def check(scene: Scene) -> None:
        for stage in _stages(scene):
            for number, on in enumerate(covering(declared(stage))):
                if name in on:
                    Traffic(scene, stage, on, number).run()
                    scene.situations[f"{name} together with others"] += 1

    return check


_CLAUSES = {
    "adapters": ("A row runs under its own adapter", ("lora",)),
    "chunks": ("A prompt in chunks makes the same tokens", ("chunked_prefill",)),
    "continue": ("A continued request makes the same tokens", ()),
    "logprobs": ("Logprobs are those of the row alone", ("logprobs",)),
    "masks": ("A row obeys its own mask, and its mask source receives its own tokens,", ("masks",)),
    "mixing": ("Rows that join a batch change no token", ("mixing",)),
    "penalties": ("Penalties count the right tokens", ("repetition_penalty",)),
    "prefix": ("A request behind a prefix makes the same tokens", ("prefix_reuse",)),
    "run-ahead": ("Steps launched ahead make the same tokens", ("run_ahead",)),
    "seeds": ("A draw depends on seed and position only", ("seeds",)),
}

for _name, (_sentence, _needs) in _CLAUSES.items():
    clause(f"pairs.{_name}", f"{_sentence} together with every other declared feature.", Level.L2, needs=_needs, rows=4)(
        _together(_name)
    )
