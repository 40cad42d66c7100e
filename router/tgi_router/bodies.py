"""The request bodies, as strict as serde: no coercion, unknown fields ignored, null only where a field is optional."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, isinf
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, FailFast, Field, model_validator

from tgi_router.json_text import dumps, single

_LEAST = 2.0**-126
"""The smallest float32 that is not denormal. Devices take smaller ones for 0, and their inverses for infinite."""


def to_single(value: float) -> float:
    """The nearest float32. Raises ValueError for a number that would become 0, denormal or infinite."""
    try:
        nearest = single(value)
    except OverflowError:
        nearest = inf
    if isinf(nearest) or (value and abs(nearest) < _LEAST):
        raise ValueError("number out of range, expected f32")
    return nearest


F32 = Annotated[float, AfterValidator(to_single)]
I32 = Annotated[int, Field(ge=-(2**31), le=2**31 - 1)]
U32 = Annotated[int, Field(ge=0, le=2**32 - 1)]
U64 = Annotated[int, Field(ge=0, le=2**64 - 1)]


Item = TypeVar("Item")


@dataclass(unsafe_hash=True)
class _FirstFault(FailFast):
    """Hashable, unlike its base, so that it may stand in a union."""


ListOf = Annotated[list[Item], _FirstFault()]
"""A list that is judged by its first fault: a megabyte of faults would otherwise be collected one by one."""


class Body(BaseModel):
    """Base of all bodies."""

    model_config = ConfigDict(strict=True, extra="ignore", frozen=True)


class GrammarShape(Body):
    """A grammar in TGI's form, or in OpenAI's, which has `json_schema` for `value`, or as LangChain has it: a `schema` beside
    `json_object`. What it holds is judged where it is compiled."""

    type: str
    value: Any = None
    json_schema: Any = None
    schema_of_object: Any = Field(default=None, alias="schema")

    def given(self, strict: bool) -> dict[str, Any]:
        """What the client wrote of it, with a `schema` as the `value` of a `json_object`; `strict` knows no such thing."""
        written = {name: value for name, value in self if name in self.model_fields_set}
        schema = written.pop("schema_of_object", None)
        if self.type == "json_object" and schema is not None and not strict:
            written.setdefault("value", schema)
        return written


class FurtherSampling(Body):
    """Sampling that neither TGI nor OpenAI has, on all routes alike. The names and their meaning are vLLM's."""

    min_p: F32 | None = None

    def further(self) -> dict[str, Any]:
        """These fields alone."""
        return {name: getattr(self, name) for name in FurtherSampling.model_fields}


class Parameters(FurtherSampling):
    """How to generate; the other carriers map onto these."""

    best_of: U64 | None = None
    temperature: F32 | None = None
    repetition_penalty: F32 | None = None
    frequency_penalty: F32 | None = None
    top_k: I32 | None = None
    top_p: F32 | None = None
    typical_p: F32 | None = None
    do_sample: bool = False
    max_new_tokens: U32 | None = None
    return_full_text: bool | None = None
    stop: ListOf[str] = []
    truncate: U64 | None = None
    watermark: bool = False
    details: bool = False
    decoder_input_details: bool = False
    seed: U64 | None = None
    top_n_tokens: U32 | None = None
    grammar: GrammarShape | None = None
    adapter_id: str | None = None


def _sampled() -> Parameters:
    """TGI's trap: without `parameters` the answer is sampled, with `{}` it is greedy."""
    return Parameters(do_sample=True)


class GenerateBody(Body):
    """POST /generate, /generate_stream and /tokenize."""

    inputs: str
    parameters: Parameters = Field(default_factory=_sampled)


class CompatGenerateBody(GenerateBody):
    """POST /."""

    stream: bool = False


class StreamOptions(Body):
    """Whether a last chunk tells the usage."""

    include_usage: bool = False


def _as_list(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


def _as_prompts(value: Any) -> Any:
    if value == []:
        raise ValueError("Empty array detected. Do not use an empty array for the prompt.")
    return _as_list(value)


class OpenAIBody(FurtherSampling):
    """What chat and completions have in common. OpenAI's clients may send null and bare strings where TGI's types refuse them."""

    model: str | None = None
    max_tokens: U32 | None = None
    max_completion_tokens: U32 | None = None
    temperature: F32 | None = None
    top_p: F32 | None = None
    seed: U64 | None = None
    stop: Annotated[ListOf[str], BeforeValidator(_as_list, str | list[str])] | None = None
    frequency_penalty: F32 | None = None
    presence_penalty: F32 | None = None
    logit_bias: ListOf[F32] | dict[str, Any] | None = None
    n: U32 | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None


class CompletionBody(OpenAIBody):
    """POST /v1/completions."""

    prompt: Annotated[ListOf[str], BeforeValidator(_as_prompts, str | list[str])]
    repetition_penalty: F32 | None = None
    suffix: str | None = None
    echo: bool | None = None
    logprobs: U32 | None = None
    best_of: U32 | None = None


class ImageUrl(Body):
    """Where an image is."""

    url: str


class MessageChunk(Body):
    """A part of a message's content."""

    type: Literal["text", "image_url"]
    text: str | None = None
    image_url: ImageUrl | None = None

    @model_validator(mode="after")
    def _check_part(self) -> MessageChunk:
        if (self.text if self.type == "text" else self.image_url) is None:
            raise ValueError(f"missing field `{self.type}`")
        return self


def _as_chunks(value: Any) -> Any:
    return [{"type": "text", "text": value}] if isinstance(value, str) else value


class Message(Body):
    """One turn of a conversation: a content, or the tool calls of an assistant."""

    role: str
    content: Annotated[ListOf[MessageChunk], BeforeValidator(_as_chunks, str | list[MessageChunk])] | None = None
    tool_calls: ListOf[dict[str, Any]] | None = None
    name: str | None = None
    tool_call_id: str | None = None

    @model_validator(mode="after")
    def _check_body(self) -> Message:
        if self.content is None and self.tool_calls is None:
            raise ValueError("data did not match any variant of untagged enum MessageBody")
        return self

    @property
    def text(self) -> str:
        """The content as one string, which is all that a template sees."""
        if self.content is None:
            return dumps(self.tool_calls)
        return "".join(chunk.text or "" for chunk in self.content if chunk.type == "text")

    @property
    def has_image(self) -> bool:
        """Whether a part of it is no text."""
        return any(chunk.type == "image_url" for chunk in self.content or ())


class FunctionDefinition(Body):
    """A function that the model may call."""

    name: str
    description: str | None = None
    parameters: Any = None
    arguments: Any = None

    @property
    def schema_of_arguments(self) -> Any:
        """OpenAI calls it `parameters`, TGI `arguments`."""
        return self.arguments if self.parameters is None else self.parameters


class Tool(Body):
    """A tool; only functions exist."""

    type: str
    function: FunctionDefinition


class FunctionName(Body):
    """Which function."""

    name: str


class NamedToolChoice(Body):
    """The one function to call."""

    type: Literal["function"] = "function"
    function: FunctionName


class ChatBody(OpenAIBody):
    """POST /v1/chat/completions."""

    messages: ListOf[Message]
    logprobs: bool | None = None
    top_logprobs: U32 | None = None
    tools: ListOf[Tool] | None = None
    tool_choice: str | NamedToolChoice | None = None
    parallel_tool_calls: bool | None = None
    tool_prompt: str | None = None
    response_format: GrammarShape | None = None


class VertexBody(Body):
    """POST /vertex: native requests and conversations. `parameters` are for native instances that bring none."""

    instances: ListOf[dict[str, Any]]
    parameters: dict[str, Any] | None = None


Byte = Annotated[int, Field(ge=0, le=255)]


class InferInput(Body):
    """A prompt, as bytes or as text."""

    name: str
    shape: ListOf[int] = []
    datatype: str = "BYTES"
    data: ListOf[Byte] | ListOf[str]


class InferOutput(Body):
    """The name under which a text is to be answered."""

    name: str


class InferBody(Body):
    """POST /v2/models/{model}/infer."""

    id: str | None = None
    parameters: Parameters = Field(default_factory=_sampled)
    inputs: ListOf[InferInput]
    outputs: ListOf[InferOutput]
