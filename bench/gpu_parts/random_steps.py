"""Random steps of one model in float32: the same tokens with and without graphs, with and without running ahead, and on the CPU."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import tgi_conformance

from bench.gpu_parts.driving import compiles, switched
from bench.gpu_parts.place import Figures, Place, quiet
from tgi_core.backend import EMPTY, Capacity, Grant, Handle, OpenOptions, Request, Sampling, Step, WarmupPlan
from tgi_core.backend.registry import find
from tgi_core.backend.session import Session

STEPS, _SMALL_STEPS = 300, 30
_ROWS, _ROW_TOKENS, _STEP_TOKENS, _CHUNK = 24, 256, 512, 64
_MODELS = ("llama", "gpt2", "gemma2")
_SAMPLINGS = (
    Sampling(),
    Sampling(do_sample=True, temperature=0.8),
    Sampling(do_sample=True, top_k=20, top_p=0.9),
    Sampling(do_sample=True, repetition_penalty=1.2, frequency_penalty=0.3, typical_p=0.9),
    Sampling(repetition_penalty=1.3),
)


@dataclass(slots=True)
class _Live:
    """A request in the batch: the tokens of its prompt that have run, and how many it will still make."""

    request: Request
    run: int
    left: int
    blocks: tuple[int, ...]


@dataclass(slots=True)
class RandomSteps:
    """Random admissions of prompts in chunks, decodes and removals on one session. `made` are the tokens by request id."""

    session: Session
    capacity: Capacity
    seed: int
    made: dict[int, list[int]] = field(default_factory=dict)
    _live: dict[int, _Live] = field(default_factory=dict)
    _free: list[int] = field(default_factory=list)

    def play(self, steps: int) -> dict[int, list[int]]:
        """The tokens of every request after that many steps. What is chosen depends on the seed alone."""
        rng, unread, handle, next_id = random.Random(self.seed), deque[Step](), EMPTY, 1
        self._free = list(range(self.capacity.groups[0].num_blocks, 0, -1))
        for _ in range(steps):
            fresh = []
            while len(self._live) < _ROWS and len(fresh) < 3 and rng.random() < (0.25 if self._live else 1.0):
                fresh.append(self._admitted(rng, next_id))
                next_id += 1
            grants = self._grants(rng, {each.id for each in fresh})
            step = self._launched(handle, fresh, grants)
            unread.append(step)
            handle = self._ended(step.handle)
            while len(unread) >= self.capacity.in_flight:
                self._read(unread.popleft())
        while unread:
            self._read(unread.popleft())
        self.session.clear(None)
        return self.made

    def _admitted(self, rng: random.Random, id: int) -> Request:
        size = self.capacity.groups[0].block_size
        longest = self.capacity.max_row_tokens
        prompt, new = rng.randint(1, longest // 2), rng.randint(1, longest // 4)
        blocks = tuple(self._free.pop() for _ in range(-(-(prompt + new) // size)))
        tokens = tuple(rng.randrange(3, 60) for _ in range(prompt))
        sampling = replace(rng.choice(_SAMPLINGS), seed=id)
        take = min(prompt, _CHUNK)
        request = Request(id, tokens, prompt, 0, (blocks,), take, sampling)
        self._live[id] = _Live(request, take, new, blocks)
        self.made[id] = []
        return request

    def _grants(self, rng: random.Random, fresh: set[int]) -> tuple[Grant, ...]:
        grants = []
        for id, live in self._live.items():
            rest = live.request.prompt_len - live.run
            if id not in fresh and rest:
                take = min(rest, rng.randint(1, _CHUNK))
                grants.append(Grant(id, take))
                live.run += take
        return tuple(grants)

    def _launched(self, handle: Handle, fresh: list[Request], grants: tuple[Grant, ...]) -> Step:
        if fresh:
            return self.session.prefill(tuple(fresh), handle, grants)
        return self.session.decode((handle,), grants)

    def _ended(self, handle: Handle) -> Handle:
        """Rows whose last token is under way leave the batch."""
        for live in self._live.values():
            live.left -= live.run == live.request.prompt_len
        ended = [id for id, live in self._live.items() if not live.left]
        for id in ended:
            self._free += self._live.pop(id).blocks
        if not ended:
            return handle
        return self.session.filter(handle, tuple(self._live)) if self._live else EMPTY

    def _read(self, step: Step) -> None:
        for row in self.session.rows(step).rows:
            if row.fault:
                raise RuntimeError(f"row {row.request_id}: {row.fault.message}")
            self.made[row.request_id].extend(row.tokens)


def equal_tokens(place: Place) -> Figures:
    """By model and way of running: equal tokens, or the requests whose tokens differ from the plain way's."""
    found, steps = Figures(), _SMALL_STEPS if place.small else STEPS
    prefix = f"TGI_{place.backend.upper()}"
    ways = {
        "graphs off": {f"{prefix}_GRAPHS": "off"},
        "run-ahead off": {f"{prefix}_RUN_AHEAD": "off"},
        "torch's operators": {"TGI_OPERATORS": "torch"},
    }
    for model in _MODELS:
        if place.left < 20 and not place.small:
            break
        with compiles() as late:
            expected, kernels = _tokens(place.backend, model, steps, {}, late)
        found[f"{model}, kernels compiled after warm-up"] = ", ".join(sorted(set(late))) or "none"
        found[f"{model}, tokens"] = sum(map(len, expected.values()))
        found |= {f"{model}, {kernel}": chosen for kernel, chosen in kernels}
        for label, variables in ways.items():
            if place.left < 10 and not place.small:
                found[f"{model}, {label}"] = "not run: no time left"
                continue
            found[f"{model}, {label}"] = _compared(_tokens(place.backend, model, steps, variables)[0], expected)
        if place.backend != "cpu" and place.left > 20:
            found[f"{model}, on the CPU"] = _compared(_tokens("cpu", model, steps, {})[0], expected)
    return found


def _tokens(
    backend: str, model: str, steps: int, variables: dict[str, str], late: list[str] | None = None
) -> tuple[dict[int, list[int]], Iterator[tuple[str, str]]]:
    """Tokens by request, and the kernels that were chosen. `late` is emptied once the session is warm."""
    directory = Path(tgi_conformance.__file__).with_name("golden") / "models" / model
    with switched(**variables):
        session = Session(find(backend).open(OpenOptions(str(directory), "float32"), quiet), backend)
        plan = WarmupPlan(
            max_rows=_ROWS, max_row_tokens=_ROW_TOKENS, max_step_tokens=_STEP_TOKENS, num_blocks=1024, window_blocks=0
        )
        capacity = session.warmup(plan, quiet)
        (late if late is not None else []).clear()
        made = RandomSteps(session, capacity, seed=7).play(steps)
        kernels = [(each.part, f"{each.name} {each.reason}".strip()) for each in session.capabilities().kernels]
        session.close()
    return made, iter(kernels)


def _compared(found: dict[int, list[int]], expected: dict[int, list[int]]) -> str:
    differ = [id for id in expected if found.get(id) != expected[id]]
    return f"{len(differ)} of {len(expected)} requests differ: {differ[:8]}" if differ else f"equal, {len(expected)} requests"
