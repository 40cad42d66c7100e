"""Requests of a trace on the demo model, with a cache that is too small for them: does the emulated static device make the tokens
of the ragged CPU engine?

    python -m tests.engine.static.trace_run [--trace FILE.csv] [--requests 300]
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

from tgi_backend_cpu import plugin
from tgi_backend_static_cpu.kit import COARSE, StaticCpuKit

from bench.scheduling import trace
from tests.engine.tiny_models import silent
from tests.grammar.schemas import json_grammar, regex_grammar
from tests.scheduler.device import Device, Script, filters, play, request
from tgi_core.backend import Capacity, OpenOptions, WarmupPlan
from tgi_core.backend.session import Session
from tgi_core.benchmark.trace import Arrival, read_trace
from tgi_core.engine.static.buckets import BucketRules
from tgi_core.engine.static.session import open_static
from tgi_core.grammar.compiler import GrammarCompiler
from tgi_core.model_files import DEMO
from tgi_core.scheduler import Scheduler
from tgi_core.server.masks import GrammarMasks
from tgi_core.server.model_server import ModelServer
from tgi_core.tokenizer import Tokenizer
from tgi_core.wire.types import Prefill, ShardInfo, Stopping

PLAN = WarmupPlan(max_rows=8, max_row_tokens=256, max_step_tokens=64, num_blocks=48)
GRAMMARS = (
    regex_grammar("\\d{4}-\\d{2}-\\d{2}"),
    json_grammar({"type": "array", "items": {"type": "boolean"}, "minItems": 2, "maxItems": 5}),
    json_grammar({"enum": [1, 2, "größer", None]}),
)
SHORTER = 8
"""How much shorter than the trace's lengths these are: the model is small, and the device emulated."""


def script(arrivals: list[Arrival], vocab_size: int) -> Script:
    """Every third prompt begins as many others do, every fifth row draws, every sixth has a grammar, every seventh client leaves early."""
    items: Script = []
    for index, item in enumerate(arrivals):
        length, new = min(180, 1 + item.prompt // SHORTER), min(64, 1 + item.answer // SHORTER)
        common = tuple((7 * place) % vocab_size for place in range(length // 2)) if index % 3 == 0 else ()
        prompt = (*common, *((5 * index + 11 * place) % vocab_size for place in range(length - len(common))))
        wanted = request(prompt, new, seed=index if index % 5 == 0 else None)
        if index % 6 == 0:
            wanted = replace(wanted, grammar=GRAMMARS[index // 6 % 3], stopping=Stopping(40))
        items.append((index % 4, wanted, 2 + index % 9 if index % 7 == 6 else None))
    return items


class Run:
    """What one device made of a script, and what happened meanwhile."""

    def __init__(self, backend: object, masks: GrammarMasks, tokenizer: Tokenizer, script: Script) -> None:
        opened = Session(backend, "a backend")
        info = ShardInfo("demo", "a backend", "cpu", "float32", (1, 2), opened.capabilities())
        server = ModelServer(opened, tokenizer, info, masks)
        self.capacity: Capacity = server.warmup(PLAN, silent)
        one = Device(Scheduler(info.capabilities, self.capacity), server, opened)  # type: ignore[arg-type]
        _, self.left = play(one, script)
        self.tokens, self.errors = one.tokens, [event.error for event in one.ended.values() if event.error is not None]
        self.compiles = opened.stats().compiles
        self.seen = Counter[str](filters=sum(len(filters(turn)) for turn in one.turns), left=len(self.left))
        for turn in one.turns:
            if isinstance(turn.launch, Prefill):
                new = [each.request for each in turn.launch.requests]
                self.seen["joins"] += turn.launch.cached is not None
                self.seen["chunks"] += sum(each.take + each.cached < len(each.tokens) for each in new)
                self.seen["prefix hits"] += sum(each.cached > 0 for each in new)
                self.seen["preempted"] += sum(len(each.tokens) > each.prompt_len for each in new)
        opened.close()

    def differing(self, other: Run) -> list[int]:
        """Requests with other tokens; of those whose clients left, the ones that both made are compared."""
        both = {key: (self.tokens.get(key, []), other.tokens.get(key, [])) for key in self.tokens.keys() | other.tokens.keys()}
        return [
            key
            for key, (mine, theirs) in both.items()
            if mine[: len(theirs)] != theirs[: len(mine)] or (key not in self.left | other.left and mine != theirs)
        ]


def compared(
    script: Script, tokenizer: Tokenizer, compiler: GrammarCompiler, model: Path = DEMO, rules: BucketRules = COARSE
) -> tuple[Run, Run]:
    """The script on the ragged engine, and on the static device with these rules."""
    options = [OpenOptions(str(model), dtype="float32", masks=GrammarMasks(compiler)) for _ in range(2)]
    kit = StaticCpuKit(rules)
    ragged, static = plugin.backend_open(options[0], silent), open_static(options[1], kit, silent)
    return Run(ragged, options[0].masks, tokenizer, script), Run(static, options[1].masks, tokenizer, script)


def main() -> None:
    """Compare, and print what happened; the exit status is 1 if a token differs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trace", type=Path)
    parser.add_argument("--requests", type=int, default=300)
    arguments = parser.parse_args()
    count, tokenizer = arguments.requests, Tokenizer.load(DEMO)
    arrivals = trace.make(count, 0) if arguments.trace is None else read_trace(arguments.trace, count)
    compiler = GrammarCompiler.for_model(DEMO, tokenizer.eos_ids)
    if compiler is None:
        sys.exit("the demo model's tokenizer has no grammars")
    ragged, static = compared(script(arrivals, tokenizer.vocab_size), tokenizer, compiler)
    compiler.close()
    wrong = static.differing(ragged)
    print(f"{count} requests, {sum(map(len, static.tokens.values()))} tokens: {dict(static.seen)}; {len(wrong)} differ")
    print(f"{static.capacity.compiles} programs compiled in warm-up, {static.compiles - static.capacity.compiles} after it")
    sys.exit(bool(wrong or static.errors or ragged.errors))


if __name__ == "__main__":
    main()
