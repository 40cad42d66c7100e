"""Request bodies of TGI's native routes."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from tgi_core.grammar.shapes import TYPES
from tgi_router.strict_types import F32, I32, U32, U64, Body, ListOf, schema_keywords

_SCHEMA = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}


class GrammarShape(Body):
    """A grammar that constrains the output, in TGI's or OpenAI's format. It is validated when it is compiled."""

    type: Annotated[str, schema_keywords(enum=list(TYPES))] = Field(
        description="Type of the grammar: `json` or `json_object` with a JSON Schema in `value`; `regex` with a regular expression "
        "in `value`; `ebnf` with a grammar in GBNF or Lark in `value`; `json_schema` with the schema in `json_schema`, OpenAI's "
        "field, or in `value`; "
        "`text` for no grammar.",
        examples=list(TYPES),
    )
    value: Any = Field(
        default=None,
        description="JSON Schema, as an object or as JSON text, regular expression, or grammar.",
        examples=[_SCHEMA, "[a-z]+"],
    )
    json_schema: Any = Field(
        default=None,
        description="OpenAI's format: an object with the JSON Schema in `schema` and its name in `name`.",
        examples=[{"name": "person", "schema": _SCHEMA}],
    )
    schema_of_object: Any = Field(
        default=None,
        alias="schema",
        description="LangChain's format: the JSON Schema, next to the type `json_object`.",
        examples=[_SCHEMA],
    )

    @property
    def plain(self) -> bool:
        """Whether it is nothing but the type `text`, OpenAI's way of asking for no grammar."""
        return self.type == "text" and all(value is None for name, value in self if name != "type")

    def given(self) -> dict[str, Any]:
        """Return the fields that the client set, by the names in the body."""
        names = {name: spec.alias or name for name, spec in type(self).model_fields.items()}
        return {names[name]: value for name, value in self if name in self.model_fields_set}


class FurtherSampling(Body):
    """Sampling parameters that neither TGI nor OpenAI has, for all routes that generate. Names and semantics are vLLM's."""

    min_p: Annotated[F32, schema_keywords(minimum=0, maximum=1)] | None = Field(
        default=None,
        description="Keep tokens whose probability is at least this fraction of the highest one; 0 disables it. Enables sampling.",
        examples=[0.05],
    )

    def further(self) -> dict[str, Any]:
        """Return these fields only, by name."""
        return {name: getattr(self, name) for name in FurtherSampling.model_fields}


class Parameters(FurtherSampling):
    """Generation parameters. A field that is null or omitted has no effect."""

    best_of: U64 | None = Field(
        default=None,
        description="Generate this many texts and return the one whose tokens have the highest mean log probability. Requires "
        "sampling; cannot be combined with `seed` or with streaming. At most the server's `max_best_of`.",
        examples=[1],
    )
    temperature: Annotated[F32, schema_keywords(exclusiveMinimum=0)] | None = Field(
        default=None,
        description="Divisor of the logits: values below 1 favour likely tokens, values above 1 flatten the distribution. "
        "A value other than 1 enables sampling.",
        examples=[0.5],
    )
    repetition_penalty: Annotated[F32, schema_keywords(minimum=1e-30, maximum=1e30)] | None = Field(
        default=None,
        description="Penalty on tokens of the prompt and of the text so far: above 1 they become less likely; 1 is no penalty. "
        "See [CTRL](https://arxiv.org/abs/1909.05858).",
        examples=[1.03],
    )
    frequency_penalty: Annotated[F32, schema_keywords(minimum=-2, maximum=2)] | None = Field(
        default=None,
        description="Subtracted from a token's logit per occurrence; 0 is no penalty, values below 0 favour repetition.",
        examples=[0.1],
    )
    top_k: Annotated[I32, schema_keywords(minimum=1)] | None = Field(
        default=None, description="Sample only from this many of the most probable tokens. Enables sampling.", examples=[10]
    )
    top_p: Annotated[F32, schema_keywords(exclusiveMinimum=0, exclusiveMaximum=1)] | None = Field(
        default=None,
        description="Nucleus sampling: keep the most probable tokens until their probabilities add up to this. Enables sampling.",
        examples=[0.95],
    )
    typical_p: Annotated[F32, schema_keywords(exclusiveMinimum=0, exclusiveMaximum=1)] | None = Field(
        default=None,
        description="[Typical decoding](https://arxiv.org/abs/2202.00666): keep the tokens whose information content is closest to "
        "the expected value, until their probabilities add up to this. Enables sampling.",
        examples=[0.95],
    )
    do_sample: bool = Field(
        default=False,
        description="Sample tokens at random. Otherwise decoding is greedy: it takes the most probable token at each step.",
        examples=[True],
    )
    max_new_tokens: Annotated[U32, schema_keywords(minimum=1)] | None = Field(
        default=None,
        description="Maximum number of tokens to generate. Default: as many as the server's limits allow after the prompt.",
        examples=[20],
    )
    return_full_text: bool | None = Field(
        default=None,
        description="Prepend the prompt to the generated text. Default: false; true on `/` and `/invocations`, but for encoder-decoders.",
        examples=[False],
    )
    stop: ListOf[str] = Field(
        default=[],
        description="Stop generating after any of these strings. At most the server's `max_stop_sequences`.",
        examples=[["photographer"]],
    )
    truncate: Annotated[U64, schema_keywords(minimum=1)] | None = Field(
        default=None,
        description="Truncate the prompt to this many tokens from its end. At most the server's `max_input_tokens`.",
        examples=[1024],
    )
    watermark: bool = Field(
        default=False,
        description="[Watermark](https://arxiv.org/abs/2301.10226) the text: at each position, add the server's `--watermark-delta` to "
        "the logits of the share `--watermark-gamma` of the tokens, which the previous token selects.",
        examples=[True],
    )
    details: bool = Field(
        default=False, description="Return details of the generation: tokens, seed and finish reason.", examples=[True]
    )
    decoder_input_details: bool = Field(
        default=False,
        description="Also return the tokens of the prompt with their log probabilities. Requires a server started with "
        "`--enable-prefill-logprobs`; cannot be combined with streaming.",
        examples=[False],
    )
    seed: U64 | None = Field(
        default=None,
        description="Seed of the random number generator: equal requests with equal seeds sample the same tokens.",
        examples=[42],
    )
    top_n_tokens: U32 | None = Field(
        default=None,
        description="Return this many of the most probable tokens at each position. At most the server's `--max-top-n-tokens`.",
        examples=[5],
    )
    grammar: GrammarShape | None = Field(
        default=None, description="Grammar that constrains the text.", examples=[{"type": "regex", "value": "[a-z]+"}]
    )
    adapter_id: str | None = Field(
        default=None,
        description="LoRA adapter to generate with; `/info` lists the available ones. Default: none.",
        examples=["my-adapter"],
    )


def sampled() -> Parameters:
    """Return the default `parameters`. As in TGI, omitting `parameters` enables sampling, whereas `{}` decodes greedily."""
    return Parameters(do_sample=True)


PARAMETERS = "Generation parameters. If omitted, tokens are sampled; with `{}`, decoding is greedy."


class GenerateBody(Body):
    """A prompt with its generation parameters."""

    inputs: str = Field(description="The prompt. Must not be empty.", examples=["My name is Olivier and I"])
    parameters: Parameters = Field(
        default_factory=sampled, description=PARAMETERS, examples=[{"max_new_tokens": 20, "details": True}]
    )


class CompatGenerateBody(GenerateBody):
    """A prompt with its generation parameters, for a complete or a streamed response."""

    stream: bool = Field(default=False, description="Stream the response as server-sent events.", examples=[False])
