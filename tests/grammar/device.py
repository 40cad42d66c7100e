"""The shard of `tests.scheduler.device` with a source of masks, and what it makes of constrained requests."""

from __future__ import annotations

from typing import Any

from tests.scheduler.device import Device, quiet
from tgi_core.backend import Capacity, OutputOptions, Sampling, WarmupPlan
from tgi_core.backend.reference import ReferenceSession
from tgi_core.backend.session import Session
from tgi_core.grammar import Grammar
from tgi_core.grammar.compiler import CompiledGrammar, GrammarCompiler
from tgi_core.scheduler import GenerationRequest, Scheduler
from tgi_core.server.masks import GrammarMasks
from tgi_core.server.model_server import ModelServer
from tgi_core.tokenizer import Tokenizer
from tgi_core.wire.types import FinishReason, ShardInfo, Stopping


def compiled(compiler: GrammarCompiler, grammar: Grammar) -> CompiledGrammar:
    """A grammar as a request gets it that nobody has prepared."""
    kept = compiler.take(grammar)
    compiler.give_back(kept)
    return kept.made.result()


def device(tokenizer: Tokenizer, compiler: GrammarCompiler, plan: WarmupPlan | None = None, **options: Any) -> Device:
    """A device of its own that shares the compiler."""
    masks = GrammarMasks(compiler)
    session = ReferenceSession(tokenizer.vocab_size, 1024, masks=masks, **options)
    wrapped = Session(session, "reference")
    info = ShardInfo("toy", "reference", "none", "none", (1, 0), wrapped.capabilities())
    server = ModelServer(wrapped, tokenizer, info, masks)
    capacity: Capacity = server.warmup(plan or WarmupPlan(max_row_tokens=512), quiet)
    return Device(Scheduler(info.capabilities, capacity), server, session)


def request(
    grammar: Grammar | None, prompt: tuple[int, ...] = (20, 30), seed: int | None = None, max_new_tokens: int = 120
) -> GenerationRequest:
    """Greedy without a seed, sampled with one. Without a grammar it runs to its length."""
    sampling = Sampling() if seed is None else Sampling(do_sample=True, temperature=1.3, seed=seed)
    stopping = Stopping(max_new_tokens, ignore_eos=grammar is None)
    return GenerationRequest.of(prompt, sampling, stopping, OutputOptions(), grammar=grammar)


def answer(one: Device, key: int) -> str | None:
    """The text of a request that ended at the end of sequence; None for one that was cut off by its length."""
    event = one.ended[key]
    assert event.error is None, event.error
    assert event.generation is not None and event.generation.finished is not None
    finished = event.generation.finished
    return finished.text if finished.finish_reason is FinishReason.EOS_TOKEN else None
