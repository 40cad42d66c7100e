"""The text of one request: converts rows to generations as they arrive."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tgi_core.backend import Row
from tgi_core.server.detokenize import Detokenizer
from tgi_core.server.stopping import StoppingCriteria
from tgi_core.tokenizer import Tokenizer
from tgi_core.wire.types import Candidate, FinishReason, GeneratedText, Generation, PromptToken, ShardRequest, Token


class Transcript:
    """Converts rows to generations. A continued request starts with the text it had."""

    def __init__(self, tokenizer: Tokenizer, item: ShardRequest) -> None:
        self._tokenizer = tokenizer
        request = item.request
        # an encoder-decoder's answer does not continue its prompt
        prompt = request.tokens[: request.prompt_len] if tokenizer.start_id is None else (tokenizer.start_id,)
        self._prompt = prompt
        self._context = prompt[-1:]
        self._detokenizer = Detokenizer(tokenizer, prompt)
        # the end of a grammar is final, even with ignore_eos
        stopping = item.stopping if item.grammar is None else replace(item.stopping, ignore_eos=False, min_new_tokens=0)
        self._stopping = StoppingCriteria(stopping, tokenizer.eos_ids)
        self._stop_ids = frozenset(stopping.stop_ids)
        self._generated: list[int] = []
        self._prompt_logprobs: list[float | None] = []
        for token in request.tokens[request.prompt_len :]:
            self._stopping.push(token, self._detokenizer.push(token))
            self._generated.append(token)

    @property
    def generated(self) -> Sequence[int]:
        """Ids of the tokens generated so far."""
        return self._generated

    def push(self, row: Row) -> Generation | None:
        """Convert a row to a generation; None if it has no token yet. One with `finished` or `fault` is the last."""
        self._prompt_logprobs.extend(row.prompt_logprobs)
        if not row.tokens:
            return None if row.fault is None else Generation(row.request_id, fault=row.fault)
        prompt = self._prompt_tokens()
        tokens: list[Token] = []
        for index, id in enumerate(row.tokens):
            token, finished = self._step(row, index, id)
            tokens.append(token)
            if finished is not None:
                return Generation(row.request_id, tuple(tokens), prompt, finished)
        return Generation(row.request_id, tuple(tokens), prompt, fault=row.fault)

    def _step(self, row: Row, index: int, id: int) -> tuple[Token, GeneratedText | None]:
        self._generated.append(id)
        text = self._detokenizer.push(id)
        reason, keep = self._stopping.push(id, text)
        finished = None
        if reason is not None:
            rest = self._detokenizer.flush() if keep == len(text) else ""
            if reason is FinishReason.STOP_SEQUENCE and id in self._stop_ids:
                self._generated.pop()  # a stop token is no part of the text
            finished = GeneratedText(self._whole_text(len(text) - keep), self._stopping.generated, reason)
            text = text[:keep] + rest
        top = tuple(self._candidate(item.id, item.logprob) for item in row.top[index]) if row.top else ()
        logprob = row.logprobs[index] if row.logprobs else float("nan")
        return Token(id, text, logprob, id in self._tokenizer.special_ids, top), finished

    def _whole_text(self, cut: int) -> str:
        """Decode all generated tokens, except special ones, without the last `cut` characters. Decoding starts with one prompt
        token, which preserves a leading space."""
        before = self._tokenizer.decode(self._context, skip_special_tokens=True)
        text = self._tokenizer.decode([*self._context, *self._generated], skip_special_tokens=True)[len(before) :]
        return text[: len(text) - cut]

    def _candidate(self, id: int, logprob: float) -> Candidate:
        return Candidate(id, self._tokenizer.decode([id]), logprob, id in self._tokenizer.special_ids)

    def _prompt_tokens(self) -> tuple[PromptToken, ...]:
        if not self._prompt_logprobs:
            return ()
        logprobs, self._prompt_logprobs = self._prompt_logprobs, []
        return tuple(
            PromptToken(id, self._tokenizer.decode([id]), logprob) for id, logprob in zip(self._prompt, logprobs, strict=False)
        )
