"""A generator whose answers are written down, and which tells what became of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from queue import SimpleQueue

from tgi_core.backend import Capabilities, Determinism, Feature, Mixing, SamplingField
from tgi_core.client.grammars import Release, nothing
from tgi_core.grammar import Cost, Grammar
from tgi_core.media.prompts import MultimodalPrompt, PromptTokens
from tgi_core.scheduler.events import ReplicaState
from tgi_core.scheduler.stream import GenerationStream
from tgi_core.scheduler.types import GenerationRequest, Limits, SchedulerError
from tgi_core.wire.types import (
    Candidate,
    FinishReason,
    GeneratedText,
    Generation,
    PromptToken,
    ShardInfo,
    Token,
)

EVERYTHING = Capabilities(
    features=frozenset({Feature.LOGPROBS, Feature.MASKS, Feature.PROMPT_LOGPROBS, Feature.TOP_N}),
    sampling=frozenset(SamplingField),
    block_sizes=(16,),
    mixing=Mixing.EAGER,
    determinism=Determinism.CORE,
    vocab_size=2048,
    max_positions=2048,
)

NOTHING = Capabilities(frozenset(), frozenset(), (16,), Mixing.NONE, Determinism.NONE, 2048, 2048)

HOLD = None
"""In a script: the stream stays open, and nothing more comes."""

END = "end"
"""In a script: the stream ends, complete or not."""

Script = Callable[[GenerationRequest], Iterable[Generation | SchedulerError | str | None]]


@dataclass(frozen=True, slots=True)
class Load:
    """A load to report."""

    queued: int = 0
    running: int = 0
    blocks_free: int = 8
    blocks_total: int = 8
    query_tokens: int = 0
    hit_tokens: int = 0
    replicas: tuple[ReplicaState, ...] = ()


def says(*texts: str, reason: FinishReason = FinishReason.EOS_TOKEN, logprob: float = -0.5) -> list[Generation]:
    """One token per text; the end-of-sequence token is special and adds nothing to the answer."""
    tokens = [Token(10 + place, text, logprob, special=False) for place, text in enumerate(texts)]
    if reason is FinishReason.EOS_TOKEN:
        tokens.append(Token(0, "<|endoftext|>", logprob, special=True))
    ending = GeneratedText("".join(texts), len(tokens), reason)
    return [Generation(1, (token,), finished=ending if token is tokens[-1] else None) for token in tokens]


def detailed() -> list[Generation]:
    """One step with prompt logprobs, top tokens and a logprob that is not a number."""
    prompt = (PromptToken(5, "Hi", None), PromptToken(6, " you", -1.5351562))
    top = (Candidate(10, "a", -0.1, special=False), Candidate(11, "b", float("-inf"), special=False))
    first = Token(10, 'a\n"é', -0.1, special=False, top=top)
    last = Token(11, "b", float("nan"), special=False)
    return [
        Generation(1, (first,), prompt=prompt),
        Generation(1, (last,), finished=GeneratedText('a\n"éb', 2, FinishReason.LENGTH)),
    ]


class ScriptedGenerator:
    """Keeps the `Generator` protocol. A script says what a request gets; all of it is there at once."""

    def __init__(self, script: Script, capabilities: Capabilities = EVERYTHING, limits: Limits = Limits(60, 64)) -> None:
        self.script = script
        self.info = ShardInfo("scripted", "scripted", "none", "float32", (1, 0), capabilities)
        self.limits = limits
        self.is_healthy = self.is_sound = self.is_speculating = True
        self.load = Load()
        self.seen: list[MultimodalPrompt] = []
        """Prompts with images."""
        self.submitted: SimpleQueue[GenerationRequest] = SimpleQueue()
        self.cancelled: SimpleQueue[GenerationRequest] = SimpleQueue()

    async def prepare(self, grammar: Grammar, cost: Cost) -> Release:
        """Nothing is needed."""
        return nothing

    async def tokenize_images(self, prompt: MultimodalPrompt) -> PromptTokens:
        """Three tokens per image, between one token per text."""
        self.seen.append(prompt)
        ids, spans = [10], []
        for _ in prompt.images:
            spans.append((len(ids), len(ids) + 3))
            ids += [99, 99, 99, 10]
        return PromptTokens(tuple(ids), tuple(spans))

    def submit(self, request: GenerationRequest) -> GenerationStream:
        """Play the script."""
        now = asyncio.get_running_loop().time()
        stream = GenerationStream(now, lambda: self.cancelled.put(request), buffer=1 << 40)  # all of the script is there at once
        for item in self.script(request):
            if isinstance(item, SchedulerError) and not stream.started_at:
                raise item
            stream.started_at = now
            if isinstance(item, Generation):
                stream.push(item)
            elif isinstance(item, SchedulerError):
                stream.fail(item)
            elif item is END:
                stream.cancel()
        self.submitted.put(request)
        return stream

    async def healthy(self) -> bool:
        """What the test says."""
        return self.is_healthy

    @property
    def sound(self) -> bool:
        """What the test says."""
        return self.is_sound

    @property
    def prefix_caching(self) -> bool:
        """No cache, no lookups."""
        return False

    @property
    def speculates(self) -> bool:
        """What the test says."""
        return self.is_speculating

    def snapshot(self) -> Load:
        """What the test says."""
        return self.load
