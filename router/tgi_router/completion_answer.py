"""Rendering of text completions: one object, or a stream of chunks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Any

from tgi_core.wire.types import GeneratedText, Generation, Token
from tgi_router.inference import Choice, Result, mean_logprob, tokens_of
from tgi_router.json_text import dumps, quote, shortest
from tgi_router.openai import FINGERPRINT, Dialect, Envelope, usage, usage_of
from tgi_router.prompt_logprobs import rendered
from tgi_router.shown_text import HIDDEN, ShownText
from tgi_router.sse import event
from tgi_router.stop_strings import StopFilter, cut


class _Logprobs:
    """Renders OpenAI's logprobs of one text, with the offset of each token in it, in characters."""

    def __init__(self, shown: ShownText) -> None:
        self._offset = 0
        self._shown = shown

    def of(self, tokens: Sequence[Token]) -> str:
        """Render the logprobs of the next tokens, as JSON."""
        return dumps(self._fields(tokens))

    def whole(self, result: Result, echo: bool) -> str:
        """Render the logprobs of a complete text, with `echo` also those of its prompt, which has no alternatives."""
        if not echo:
            return self.of(result.tokens)
        prompt, shown = result.prompt, len(result.choice.prompt.text)
        added = sum(len(token.text) for token in prompt) - shown  # the tokenizer's own, before the text, are not in it
        ends = accumulate((len(token.text) for token in prompt), initial=-added)
        offsets = [max(0, end) for end in ends][:-1]
        self._offset = shown
        made = self._fields(result.tokens)
        given: dict[str, list[Any]] = {
            "tokens": [token.text for token in prompt],
            "token_logprobs": [None if token.logprob is None else shortest(token.logprob) for token in prompt],
            "text_offset": offsets,
        }
        return dumps({name: given[name] + value if name in given else None for name, value in made.items()})

    def _fields(self, tokens: Sequence[Token]) -> dict[str, Any]:
        return {
            "tokens": [token.text for token in tokens],
            "token_logprobs": [shortest(token.logprob) for token in tokens],
            "top_logprobs": [_top(token) for token in tokens] if any(token.top for token in tokens) else None,
            "text_offset": [self._advance(token) for token in tokens],
        }

    def _advance(self, token: Token) -> int:
        here = self._offset
        self._offset += 0 if token.special and not self._shown.special else len(token.text)
        return here


def _top(token: Token) -> dict[str, float | None]:
    """Return the logprobs of the most likely tokens and of the token itself, by text; of tokens with equal texts, the most likely
    counts."""
    found = {token.text: shortest(token.logprob)}
    for candidate in token.top:
        found.setdefault(candidate.text, shortest(candidate.logprob))
    return found


class Chunks:
    """Renders the chunks of one stream. With `echo`, each text begins with its prompt."""

    def __init__(
        self,
        dialect: Dialect,
        envelope: Envelope,
        stops: Sequence[str],
        echo: bool,
        logprobs: bool,
        shown: ShownText = HIDDEN,
    ) -> None:
        self.envelope = envelope
        self._dialect = dialect
        self._echo = echo
        self._with_logprobs = logprobs
        self._shown = shown
        self._filters: dict[int, StopFilter] = defaultdict(lambda: StopFilter(stops))
        self._logprobs: dict[int, _Logprobs] = {}

    def events(self, choice: Choice, generation: Generation) -> bytes:
        """Render one event per token."""
        return b"".join([event(self._chunk(choice, token, ending)) for token, ending in tokens_of(generation)])

    def _chunk(self, choice: Choice, token: Token, ending: GeneratedText | None) -> str:
        """Render the chunk of a token. As in TGI, the last chunk of each text has the fields of a complete response, with the
        usage."""
        prompt = choice.prompt.text if self._echo and choice.index not in self._filters else ""
        filter = self._filters[choice.index]
        reason = None if ending is None else ending.finish_reason
        text = filter.push(self._shown.of(choice, token, reason)) + ("" if ending is None else filter.finish())
        rendered = _choice_json(
            choice.index, prompt + text, self._dialect.completion_chunk_reason(reason), self._logprobs_of(choice, token)
        )
        if ending is not None:
            return final_json(self.envelope, rendered, usage([choice]))
        return (
            f'{{"object":"text_completion","id":{quote(self.envelope.id)},"created":{self.envelope.created},"choices":[{rendered}],'
            f'"model":{quote(self.envelope.model)},"system_fingerprint":{quote(FINGERPRINT)}}}'
        )

    def _logprobs_of(self, choice: Choice, token: Token) -> str:
        if not self._with_logprobs:
            return "null"
        return self._logprobs.setdefault(choice.index, _Logprobs(self._shown)).of((token,))


def answer_json(
    dialect: Dialect,
    envelope: Envelope,
    results: Sequence[Result],
    stops: Sequence[str],
    echo: bool,
    logprobs: bool,
    best: int,
    shown: ShownText = HIDDEN,
) -> str:
    """Render a complete response with the `best` texts of each prompt; the usage includes all texts."""
    choices = [
        _choice_json(
            index,
            (result.choice.prompt.text if echo else "") + cut(shown.whole(result), stops),
            dialect.finish_reason(result.text.finish_reason),
            _Logprobs(shown).whole(result, echo) if logprobs else "null",
            dumps(rendered(result.prompt)) if result.choice.request.want.prompt_logprobs else "",
        )
        for index, result in _chosen(results, best)
    ]
    return final_json(envelope, ",".join(choices), usage_of(results))


def _chosen(results: Sequence[Result], best: int) -> Iterator[tuple[int, Result]]:
    """Return the results to render, with their indices: all in order, or only the most likely ones of a prompt with more than
    `best`."""
    samples = max(result.choice.sample for result in results) + 1
    if samples == best:
        yield from ((result.choice.index, result) for result in results)
        return
    for start in range(0, len(results), samples):
        ranked = sorted(results[start : start + samples], key=mean_logprob, reverse=True)
        yield from enumerate(ranked[:best], start // samples * best)


def final_json(envelope: Envelope, choices: str, tokens: dict[str, int]) -> str:
    """Render a response with its usage."""
    return (
        f'{{"object":"text_completion","id":{quote(envelope.id)},"created":{envelope.created},"model":{quote(envelope.model)},'
        f'"system_fingerprint":{quote(FINGERPRINT)},"choices":[{choices}],"usage":{dumps(tokens)}}}'
    )


def _choice_json(index: int, text: str, reason: str | None, logprobs: str, prompt_logprobs: str = "") -> str:
    ended = "null" if reason is None else quote(reason)
    prompt = f',"prompt_logprobs":{prompt_logprobs}' if prompt_logprobs else ""
    return f'{{"index":{index},"text":{quote(text)},"logprobs":{logprobs},"finish_reason":{ended}{prompt}}}'
