"""Random traffic over a session."""

from __future__ import annotations

import random

from tests.engine.tiny_models import VOCAB
from tgi_core.backend import EMPTY, Capacity, Grant, OutputOptions, Request, Sampling
from tgi_core.backend.session import Session

STEPS = 1000
WANTS = (OutputOptions(), OutputOptions(top_n=2), OutputOptions(prompt_logprobs=True))
HOWS = (Sampling(), Sampling(do_sample=True, seed=5), Sampling(repetition_penalty=1.3))


class Traffic:
    """Random steps: rows join with prompts in chunks, go on, sit out, and leave."""

    def __init__(self, session: Session, capacity: Capacity, seed: int, first_id: int = 1) -> None:
        self.session, self.capacity, self.random = session, capacity, random.Random(seed)
        self.free = list(range(1, capacity.groups[0].num_blocks + 1))
        self.live: dict[int, tuple[int, int, tuple[int, ...]]] = {}
        """Positions that are computed, the prompt's length, and blocks, by request."""
        self.handle, self.next_id = EMPTY, first_id

    def step(self) -> dict[int, tuple[int, ...]]:
        """Drop what is long, then launch a step and read it: the tokens by request."""
        self._drop()
        room = self.capacity.max_step_tokens
        grants = []
        for id, (done, length, blocks) in self.live.items():
            take = self.random.randint(0, min(room, length - done)) if done < length else self.random.randint(0, min(1, room))
            grants.append(Grant(id, take))
            self.live[id] = (done + take, length, blocks)
            room -= take
        request = self._request(room)
        if request is not None:
            step = self.session.prefill((request,), self.handle, tuple(grants))
        elif self.live:
            step = self.session.decode((self.handle,), tuple(grants))
        else:
            return {}
        self.handle = step.handle
        return {row.request_id: row.tokens for row in self.session.rows(step).rows}

    def _request(self, room: int) -> Request | None:
        size, most = self.capacity.groups[0].block_size, self.capacity.max_row_tokens
        length = self.random.randint(1, most - 16)
        count = -(-most // size)
        if not room or len(self.live) == self.capacity.max_rows or len(self.free) < count or self.random.random() < 0.6:
            return None
        blocks, self.free = tuple(self.free[:count]), self.free[count:]
        take, id = self.random.randint(1, min(room, length)), self.next_id
        self.next_id += 1
        self.live[id] = (take, length, blocks)
        tokens = tuple(self.random.randrange(VOCAB) for _ in range(length))
        how, want = self.random.choice(HOWS), self.random.choice(WANTS)
        return Request(id, tokens, length, 0, (blocks,), take, how, want)

    def _drop(self) -> None:
        gone = [
            id
            for id, (done, _, _) in self.live.items()
            if done >= self.capacity.max_row_tokens - 1 or self.random.random() < 0.02
        ]
        for id in gone:
            self.free += self.live.pop(id)[2]
        if gone:
            self.handle = self.session.filter(self.handle, tuple(self.live))
