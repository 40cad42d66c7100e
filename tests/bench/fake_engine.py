"""An engine that counts: `python -m tests.bench.fake_engine` speaks the protocol. FAKE says what is wrong with it."""

from __future__ import annotations

import os
import threading

from bench.peers.engines.protocol import About, Plan, serve


class Counting:
    """Row r's tokens are r, r, …"""

    def __init__(self, plan: Plan) -> None:
        if os.environ.get("FAKE") == "cannot open":
            raise RuntimeError("this processor is too old")
        if os.environ.get("FAKE") == "hangs":
            threading.Event().wait()
        print("libraries talk")
        self.rows: list[list[int]] = []

    def about(self) -> About:
        """Nothing special."""
        return About("1.0", "integers", "none", {"fault": os.environ.get("FAKE", "none")})

    def start(self, prompts: list[list[int]], new: int) -> int:
        """One each."""
        self.rows = [[number] for number, _ in enumerate(prompts)]
        return len(self.rows)

    def go_on(self, steps: int) -> int:
        """So many more, the last row one less if it is lazy."""
        for number, row in enumerate(self.rows):
            lazy = os.environ.get("FAKE") == "lazy" and number == len(self.rows) - 1
            row += [number] * (steps - lazy)
        return sum(len(row) for row in self.rows)

    def end(self) -> list[list[int]]:
        """All of them."""
        return self.rows


if __name__ == "__main__":
    serve(Counting)
