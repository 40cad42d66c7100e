"""Validation of requests, in TGI's order and with TGI's messages, and their conversion to `GenerationRequest`s."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import takewhile
from math import ceil
from random import getrandbits
from typing import Any

from tgi_core.backend import SAMPLING, Feature, OutputOptions, Sampling, SamplingField
from tgi_core.config import Settings
from tgi_core.literals import Span
from tgi_core.scheduler.types import GenerationRequest, Limits, SchedulingParams
from tgi_core.wire.types import ShardInfo, Stopping
from tgi_router.adapter_names import AdapterNames
from tgi_router.bodies import FurtherSampling, Parameters
from tgi_router.errors import PromptTooLong, StreamRuleBroken, ValidationFailed
from tgi_router.grammars import CheckedGrammar, GrammarChecker
from tgi_router.images import MultimodalTokenizing, TokenizedPrompt, TokenizeImages, split_markdown
from tgi_router.json_text import single
from tgi_router.openai_bodies import MAX_CHOICES
from tgi_router.served_model import ServedModel
from tgi_router.tokenizing import Tokenizing

RUN = 1024
"""Maximum number of new tokens that TGI generates in one run; it accepts requests that fit one run."""

MAX_BIASES = 1024
"""Maximum number of tokens in `logit_bias`: each adds work on the device at every step."""

MAX_STOP_IDS = 128
"""Maximum number of tokens in `stop_token_ids`."""

LEAST_PENALTY, MOST_PENALTY = single(1e-30), single(1e30)
"""Range of `repetition_penalty`: scores divided by less, or multiplied by more, overflow float32."""

_NEUTRAL = Sampling()
_NATIVE = frozenset(Parameters.model_fields)
SWITCHES = tuple(spec.name for spec in SAMPLING if spec.switches_on)
"""Parameters that enable sampling if they are set."""
_FURTHER = tuple(spec for spec in SAMPLING if spec.name in FurtherSampling.model_fields)
"""Parameters without a rule in TGI: the contract's range applies."""

Rule = tuple[bool, str]
"""Whether the rule is violated, with the error message."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """A text to continue. One from a chat template already contains its special tokens."""

    text: str
    add_special_tokens: bool = True
    literals: tuple[Span, ...] = ()
    """Spans in which the texts of special tokens are plain text."""
    ids: tuple[int, ...] | None = None
    """Token ids that the client has sent; then `text` is only shown."""
    markdown: bool = False
    """Whether images in Markdown are images of the prompt, if the model sees any."""
    texts: tuple[str, ...] = ()
    """The texts around images; empty if `text` has a placeholder for each of them."""
    images: tuple[str, ...] = ()
    """URLs of images."""


@dataclass(frozen=True, slots=True)
class Extras:
    """Options of OpenAI's bodies beyond TGI's parameters.

    `logprobs`: requested by the client (True), not returned (False), or returned if the backend has them (None).
    """

    logprobs: bool | None = None
    call_schema: dict[str, Any] | None = None
    """JSON schema of a response that must be a tool call, or a tool call or an answer; takes precedence over the grammar."""
    choices: int = 1
    ranked: bool = False
    """Whether only the most likely choices are returned, as with OpenAI's `best_of`."""
    ignore_eos: bool = False
    stop_ids: tuple[int, ...] = ()
    min_new_tokens: int = 0
    prompt_logprobs: bool = False
    presence_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    prediction: str = ""
    """Text that the client expects in the response."""


NO_EXTRAS = Extras()


@dataclass(frozen=True, slots=True)
class Validated:
    """A valid request, and its grammar, if it has one."""

    request: GenerationRequest
    grammar: CheckedGrammar | None


class Validator:
    """Validates requests against the settings, the limits and the backend's capabilities."""

    def __init__(
        self,
        settings: Settings,
        model: ServedModel,
        limits: Limits,
        info: ShardInfo,
        tokenizing: Tokenizing,
        tokenize_images: TokenizeImages,
    ) -> None:
        capabilities = info.capabilities
        self.grammars = GrammarChecker(settings, capabilities)
        self._is_upstream_tgi = info.is_upstream_tgi
        self._settings = settings
        self._names = AdapterNames(model.name, capabilities.adapters)
        self._token_span = model.token_span
        self._encodes_prompts = model.is_encoder_decoder
        self._limits = limits
        self._capabilities = capabilities
        self._tokenizing = tokenizing
        self._multimodal = MultimodalTokenizing(settings, tokenize_images)
        self.sees_images = Feature.MEDIA in capabilities.features
        """Whether the model takes images."""

    def check_best_of(self, parameters: Parameters, streaming: bool) -> None:
        """Check the rules that apply before a permit is acquired. Raises ValidationFailed."""
        best_of, largest = parameters.best_of, self._settings.max_best_of
        if streaming:
            if best_of not in (None, 1):
                raise StreamRuleBroken("`best_of` != 1 is not supported when streaming tokens")
            if parameters.decoder_input_details:
                raise StreamRuleBroken("`decoder_input_details` == true is not supported when streaming tokens")
        elif best_of is not None and best_of > 1:
            if largest == 1:
                raise ValidationFailed("`best_of` != 1 is not allowed for this endpoint")
            if best_of > largest:
                raise ValidationFailed(f"`best_of` must be > 0 and <= {largest}. Given: {best_of}")

    async def validate(self, prompt: Prompt, parameters: Parameters, extras: Extras, scheduling: SchedulingParams) -> Validated:
        """Check all other rules, and build the request. Raises ValidationFailed."""
        if self._settings.strict_tgi:  # TGI ignores unknown names
            parameters = parameters.model_copy(update=dict.fromkeys(FurtherSampling.model_fields))
        _check(self._parameter_rules(parameters))
        _check(self._extra_rules(extras))
        asked = _asked(parameters, extras)
        if parameters.watermark:
            asked |= {"watermark": self._settings.watermark_delta, "watermark_gamma": self._settings.watermark_gamma}
        _check(self._declared_rules(parameters, extras, asked))
        if prompt.markdown and self.sees_images:
            texts, urls = split_markdown(prompt.text)
            prompt = replace(prompt, text="".join(texts), texts=texts, images=urls)
        _check(self._input_rules(prompt, parameters))
        _check(self._size_rules(prompt, parameters), PromptTooLong)
        keep = parameters.truncate or self._limits.max_input_tokens
        length, tokenized = await self._tokenized(prompt, keep)
        ids = tokenized.ids
        _check(self._length_rules(length if parameters.truncate is None else len(ids), parameters), PromptTooLong)
        _check(self._image_size_rules(tokenized), PromptTooLong)
        _check(iter([(not ids, "`inputs` cannot be empty")]))  # a tokenizer may return no tokens for a text
        _check(self._token_rules(ids))
        checked = await self._grammar(parameters, extras)
        prediction = await self._prediction(extras.prediction)
        room = self._limits.room(len(ids))
        request = GenerationRequest.of(
            input_ids=ids,
            sampling=_sampling(parameters.do_sample, asked),
            stopping=self._stopping(parameters, extras, room),
            want=self._want(parameters, extras),
            adapter=self._names.find(parameters.adapter_id),
            grammar=None if checked is None else checked.grammar,
            grammar_cost=None if checked is None else checked.report.cost,
            scheduling=scheduling,
            prediction=prediction,
            images=tokenized.images,
            image_spans=tokenized.spans,
            whole_prompt=self._capabilities.whole_prompts,
        )
        return Validated(request, checked)

    async def num_tokens(self, prompt: Prompt) -> int:
        """Return the number of tokens of a prompt. Raises ValidationFailed, ModelOverloaded."""
        _check(self._image_rules(prompt))
        return (await self._tokenized(prompt, 1))[0]

    def _stopping(self, given: Parameters, extras: Extras, room: int) -> Stopping:
        most = min(given.max_new_tokens or room, room)
        _check(iter([(extras.min_new_tokens > most, f"`min_tokens` must be <= `max_new_tokens`, here {most}")]))
        return Stopping(most, tuple(given.stop), extras.ignore_eos, extras.stop_ids, extras.min_new_tokens)

    async def _tokenized(self, prompt: Prompt, keep: int) -> tuple[int, TokenizedPrompt]:
        """Return the number of the prompt's tokens, and the last `keep` of them; all if there are images."""
        if prompt.images:
            texts = prompt.texts or (prompt.text,)
            tokenized = await self._multimodal.tokenize(texts, prompt.images, prompt.add_special_tokens)
            return len(tokenized.ids), tokenized
        if prompt.ids is not None:
            return len(prompt.ids), TokenizedPrompt(prompt.ids[-keep:])
        length, ids = await self._tokenizing.ids(prompt.text, prompt.add_special_tokens, prompt.literals, keep)
        return length, TokenizedPrompt(ids)

    async def _prediction(self, text: str) -> tuple[int, ...]:
        """Return the tokens of a prediction, in which special tokens are plain text. What no response can hold is cut off, as is what
        follows a token that the model does not have."""
        longest = self._limits.max_total_tokens
        if self._token_span is not None:
            text = text[: longest * self._token_span]
        if not text:
            return ()
        try:
            _, ids = await self._tokenizing.ids(text, False, ((0, len(text)),), len(text) * 4)
        except ValidationFailed as error:
            raise ValidationFailed(f"`prediction`: {error}") from error
        return tuple(takewhile(lambda token: token < self._capabilities.vocab_size, ids[:longest]))

    async def _grammar(self, given: Parameters, extras: Extras) -> CheckedGrammar | None:
        if extras.call_schema is not None:
            return await self.grammars.check({"type": "json", "value": extras.call_schema}, strict=False)
        strict = self._settings.strict_tgi
        return None if given.grammar is None else await self.grammars.check(given.grammar.given(), strict)

    def _parameter_rules(self, given: Parameters) -> Iterator[Rule]:
        stops, top_n = self._settings.max_stop_sequences, self._settings.max_top_n_tokens
        several = (given.best_of or 1) > 1
        drawn = any(getattr(given, name) is not None for name in SWITCHES)
        yield several and not (given.do_sample or drawn), "you must use sampling when `best_of` is > 1"
        yield _at_most(given.temperature, 0), "`temperature` must be strictly positive"
        yield _at_most(given.repetition_penalty, 0), "`repetition_penalty` must be strictly positive"
        yield (
            not LEAST_PENALTY <= (given.repetition_penalty or 1) <= MOST_PENALTY,
            "`repetition_penalty` must be >= 1e-30 and <= 1e+30",
        )
        yield not -2 <= (given.frequency_penalty or 0) <= 2, "`frequency_penalty` must be >= -2.0 and <= 2.0"
        yield _outside(given.top_p), "`top_p` must be > 0.0 and < 1.0"
        yield _outside(given.typical_p), "`typical_p` must be > 0.0 and < 1.0"
        yield _at_most(given.top_k, 0), "`top_k` must be strictly positive"
        for spec in _FURTHER:
            value = getattr(given, spec.name)
            yield not (value is None or spec.range is None or spec.range.holds(value)), f"`{spec.name}` must be {spec.range}"
        yield given.max_new_tokens == 0, "`max_new_tokens` must be strictly positive"
        yield len(given.stop) > stops, f"`stop` supports up to {stops} stop sequences. Given: {len(given.stop)}"
        yield several and given.seed is not None, "`seed` must not be set when `best_of` > 1"
        yield not self._names.allows(given.adapter_id), "`adapter_id` (under /v1 `model`) cannot be the name of an adapter"
        asked = given.top_n_tokens or 0
        yield asked > top_n, f"`top_n_tokens` must be >= 0 and <= {top_n}. Given: {asked}"

    def _extra_rules(self, extras: Extras) -> Iterator[Rule]:
        vocabulary = self._capabilities.vocab_size
        yield not -2 <= extras.presence_penalty <= 2, "`presence_penalty` must be >= -2.0 and <= 2.0"
        yield len(extras.logit_bias) > MAX_BIASES, f"`logit_bias` supports up to {MAX_BIASES} tokens"
        for token, bias in extras.logit_bias:
            yield not 0 <= token < vocabulary, f"`logit_bias` names tokens by their ids, which are >= 0 and < {vocabulary}"
            yield not -100 <= bias <= 100, "`logit_bias` values must be >= -100.0 and <= 100.0"
        outside = any(not 0 <= token < vocabulary for token in extras.stop_ids)
        yield outside, f"`stop_token_ids` names tokens by their ids, which are >= 0 and < {vocabulary}"

    def _declared_rules(self, given: Parameters, extras: Extras, asked: dict[str, Any]) -> Iterator[Rule]:
        """Reject, rather than ignore, requested features that the backend does not declare."""
        sampling, features = self._capabilities.sampling, self._capabilities.features
        needed = {name for name, value in asked.items() if value != getattr(_NEUTRAL, name) or name == "seed"}
        for spec in SAMPLING:
            missing = spec.field is not None and spec.field not in sampling
            yield missing and spec.name in needed, f"`{spec.name}` is not supported by this backend"
        yield bool(given.top_n_tokens) and Feature.TOP_N not in features, "`top_n_tokens` != 0 is not allowed for this endpoint"
        yield (
            self._prompt_logprobs(given) and Feature.PROMPT_LOGPROBS not in features,
            "`decoder_input_details` is not supported by this backend",
        )
        if extras.prompt_logprobs:
            yield (
                not self._settings.enable_prefill_logprobs,
                "`prompt_logprobs` needs the server's --enable-prefill-logprobs",
            )
            yield Feature.PROMPT_LOGPROBS not in features, "`prompt_logprobs` is not supported by this backend"
            yield (
                self._encodes_prompts,
                "this model's prompts go to its encoder, so their tokens have no log probabilities; leave `prompt_logprobs`, or `echo` "
                "with `logprobs`, out",
            )
        unranked = Feature.LOGPROBS not in features
        yield bool(extras.logprobs) and unranked, "`logprobs` is not supported by this backend"
        yield ((given.best_of or 1) > 1 or extras.ranked) and unranked, "`best_of` > 1 is not supported by this backend"
        yield bool(extras.stop_ids) and self._is_upstream_tgi, "`stop_token_ids` is not supported by TGI's shards; use `stop`"
        yield extras.min_new_tokens > 0 and not self.grammars.possible, "`min_tokens` is not supported by this backend"
        constrained = given.grammar is not None or extras.call_schema is not None
        yield (
            extras.min_new_tokens > 0 and constrained,
            "`min_tokens` cannot be combined with a grammar, which says where the text ends",
        )

    def _input_rules(self, prompt: Prompt, given: Parameters) -> Iterator[Rule]:
        largest = self._limits.max_input_tokens
        yield not (prompt.text or prompt.ids or prompt.images), "`inputs` cannot be empty"
        yield bool(prompt.images) and given.truncate is not None, "`truncate` cannot be combined with images"
        yield from self._image_rules(prompt)
        yield (
            given.truncate is not None and not 0 < given.truncate <= largest,
            f"`truncate` must be strictly positive and less than {largest}. Given: {given.truncate}",
        )

    def _image_rules(self, prompt: Prompt) -> Iterator[Rule]:
        yield (
            bool(prompt.images and prompt.literals),
            "messages with images cannot contain the text of a special token, such as the model's placeholder of an image",
        )

    def _size_rules(self, prompt: Prompt, given: Parameters) -> Iterator[Rule]:
        """Reject a text that is too long for any tokenization before it is tokenized, since a megabyte takes seconds."""
        if (
            prompt.ids is None
            and self._token_span is not None
            and given.truncate is None
            and len(prompt.text) > self._limits.max_total_tokens
        ):
            least = ceil(len(prompt.text.encode()) / self._token_span)
            yield from self._total_rules(least, given, f"at least {least}")

    def _total_rules(self, length: int, given: Parameters, counted: str) -> Iterator[Rule]:
        total = self._limits.max_total_tokens
        new = max(total - length, 0) if given.max_new_tokens is None else min(given.max_new_tokens, RUN)
        sums = f"Given: {counted} `inputs` tokens and {new} `max_new_tokens`"
        yield length + min(new, RUN) > total, f"`inputs` tokens + `max_new_tokens` must be <= {total}. {sums}"
        longest = self._limits.max_new_tokens
        yield given.max_new_tokens is not None and new > longest, f"`max_new_tokens` must be <= {longest}. Given: {new}"

    def _length_rules(self, length: int, given: Parameters) -> Iterator[Rule]:
        largest = self._limits.max_input_tokens
        yield from self._total_rules(length, given, str(length))
        yield length > largest, f"`inputs` must have less than {largest} tokens. Given: {length}"

    def _image_size_rules(self, prompt: TokenizedPrompt) -> Iterator[Rule]:
        largest = self._limits.max_image_tokens
        for number, span in enumerate(prompt.spans, 1):
            length = span.end - span.start
            yield length > largest, f"image {number} must have at most {largest} tokens, which fit in a step. Given: {length}"

    def _token_rules(self, ids: tuple[int, ...]) -> Iterator[Rule]:
        """Check the token ids: a tokenizer may have tokens that only larger models of its family have."""
        last, vocabulary = max(ids), self._capabilities.vocab_size
        yield last >= vocabulary, f"`inputs` has the token {last}, which the model does not have: its ids are < {vocabulary}"

    def _prompt_logprobs(self, given: Parameters) -> bool:
        """Return whether to compute prompt details. As in TGI, they are silently omitted unless the operator has enabled them."""
        return given.decoder_input_details and self._settings.enable_prefill_logprobs

    def _want(self, given: Parameters, extras: Extras) -> OutputOptions:
        return OutputOptions(
            logprobs=(extras.logprobs is not False or extras.ranked) and Feature.LOGPROBS in self._capabilities.features,
            top_n=given.top_n_tokens or 0,
            prompt_logprobs=self._prompt_logprobs(given) or extras.prompt_logprobs,
        )


def effective_limits(settings: Settings, promised: Limits) -> Limits:
    """Return the backend's limits, capped by those that the operator set."""
    total = min(promised.max_total_tokens, settings.max_total_tokens or promised.max_total_tokens)
    longest = min(promised.max_input_tokens, settings.max_input_tokens or promised.max_input_tokens, total - 1)
    return Limits(longest, total, promised.max_new_tokens, promised.max_image_tokens)


def check_choices(asked: int) -> int:
    """Return the number of choices, checked before anything is counted or reserved for them. Raises ValidationFailed."""
    if not 1 <= asked <= MAX_CHOICES:
        raise ValidationFailed(f"`n` must be > 0 and <= {MAX_CHOICES}. Given: {asked}")
    return asked


def _check(rules: Iterator[Rule], failure: type[ValidationFailed] = ValidationFailed) -> None:
    for broken, text in rules:
        if broken:
            raise failure(text)


def _at_most(value: float | None, bound: float) -> bool:
    return value is not None and value <= bound


def _outside(share: float | None) -> bool:
    return share is not None and not 0 < share < 1


def _asked(given: Parameters, extras: Extras) -> dict[str, Any]:
    """Return the sampling fields that the client set, except the watermark's, whose numbers are the operator's."""
    specs = [spec for spec in SAMPLING if spec.field is not SamplingField.WATERMARK]
    values = {spec.name: getattr(given if spec.name in _NATIVE else extras, spec.name) for spec in specs}
    return {name: value for name, value in values.items() if value is not None}


def _sampling(do_sample: bool, asked: dict[str, Any]) -> Sampling:
    """Return the sampling parameters. A temperature of 1 alone does not enable sampling: TGI's shard cannot tell it from the
    default."""
    switched = any(asked.get(name, getattr(_NEUTRAL, name)) != getattr(_NEUTRAL, name) for name in SWITCHES)
    return Sampling(**{"seed": getrandbits(64), **asked, "do_sample": do_sample or switched})
