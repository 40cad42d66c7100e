"""The bodies of TGI's own routes."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from tgi_core.grammar.shapes import TYPES
from tgi_router.strict_types import F32, I32, U32, U64, Body, ListOf, schema_keywords

_SCHEMA = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}


class GrammarShape(Body):
    """A grammar that the answer must follow, in TGI's form or in OpenAI's. What it holds is judged where it is compiled."""

    type: Annotated[str, schema_keywords(enum=list(TYPES))] = Field(
        description="What the grammar is: `json` or `json_object` with a JSON Schema in `value`; `regex` with a regular expression "
        "in `value`; `json_schema` with a schema inside of `json_schema`, as OpenAI has it, or of `value`; "
        "`text` for no grammar at all.",
        examples=list(TYPES),
    )
    value: Any = Field(
        default=None,
        description="The JSON Schema, as an object or as JSON text, or the regular expression.",
        examples=[_SCHEMA, "[a-z]+"],
    )
    json_schema: Any = Field(
        default=None,
        description="OpenAI's form: an object with the JSON Schema in `schema` and a `name` for it.",
        examples=[{"name": "person", "schema": _SCHEMA}],
    )
    schema_of_object: Any = Field(
        default=None,
        alias="schema",
        description="LangChain's form: the JSON Schema, beside the type `json_object`.",
        examples=[_SCHEMA],
    )

    def given(self, strict: bool) -> dict[str, Any]:
        """What the client wrote of it, with a `schema` as the `value` of a `json_object`; `strict` knows no such thing."""
        written = {name: value for name, value in self if name in self.model_fields_set}
        schema = written.pop("schema_of_object", None)
        if self.type == "json_object" and schema is not None and not strict:
            written.setdefault("value", schema)
        return written


class FurtherSampling(Body):
    """Sampling parameters that neither TGI nor OpenAI has, on all generating routes. Names and meaning are vLLM's."""

    min_p: Annotated[F32, schema_keywords(minimum=0, maximum=1)] | None = Field(
        default=None,
        description="Keep the tokens whose probability is at least this times the highest one; 0 disables it. Switches sampling on.",
        examples=[0.05],
    )

    def further(self) -> dict[str, Any]:
        """These fields alone."""
        return {name: getattr(self, name) for name in FurtherSampling.model_fields}


class Parameters(FurtherSampling):
    """How to generate. A field that is null or left out changes nothing."""

    best_of: U64 | None = Field(
        default=None,
        description="Generate this many texts and answer with the one whose tokens have the highest mean log probability. Needs "
        "sampling, excludes `seed`, cannot be streamed. At most the server's `max_best_of`.",
        examples=[1],
    )
    temperature: Annotated[F32, schema_keywords(exclusiveMinimum=0)] | None = Field(
        default=None,
        description="What the logits are divided by: below 1 likely tokens become likelier, above 1 all become more equal. "
        "A value other than 1 switches sampling on.",
        examples=[0.5],
    )
    repetition_penalty: Annotated[F32, schema_keywords(minimum=1e-30, maximum=1e30)] | None = Field(
        default=None,
        description="Makes tokens that have occurred, in the prompt too, less likely if it is above 1; 1 is no penalty. "
        "See [CTRL](https://arxiv.org/abs/1909.05858).",
        examples=[1.03],
    )
    frequency_penalty: Annotated[F32, schema_keywords(minimum=-2, maximum=2)] | None = Field(
        default=None,
        description="Is taken off a token's logit for each time that it has occurred; 0 is no penalty, below 0 favours repetition.",
        examples=[0.1],
    )
    top_k: Annotated[I32, schema_keywords(minimum=1)] | None = Field(
        default=None, description="Sample among this many of the most probable tokens only. Switches sampling on.", examples=[10]
    )
    top_p: Annotated[F32, schema_keywords(exclusiveMinimum=0, exclusiveMaximum=1)] | None = Field(
        default=None,
        description="Nucleus sampling: keep the most probable tokens until their probabilities add up to this. "
        "Switches sampling on.",
        examples=[0.95],
    )
    typical_p: Annotated[F32, schema_keywords(exclusiveMinimum=0, exclusiveMaximum=1)] | None = Field(
        default=None,
        description="[Typical decoding](https://arxiv.org/abs/2202.00666): keep the tokens whose information is closest to what "
        "is expected, until their probabilities add up to this. Switches sampling on.",
        examples=[0.95],
    )
    do_sample: bool = Field(
        default=False, description="Draw tokens at random. Otherwise the most probable token is taken each time.", examples=[True]
    )
    max_new_tokens: Annotated[U32, schema_keywords(minimum=1)] | None = Field(
        default=None,
        description="The most tokens to generate. Default: as many as the server has room for after the prompt.",
        examples=[20],
    )
    return_full_text: bool | None = Field(
        default=None,
        description="Put the prompt before the generated text. Default: false, but true on `/` and `/invocations`.",
        examples=[False],
    )
    stop: ListOf[str] = Field(
        default=[],
        description="End the text after any of these strings. At most the server's `max_stop_sequences`.",
        examples=[["photographer"]],
    )
    truncate: Annotated[U64, schema_keywords(minimum=1)] | None = Field(
        default=None,
        description="Use no more than this many tokens from the end of the prompt. At most the server's `max_input_tokens`.",
        examples=[1024],
    )
    watermark: bool = Field(default=False, description="Not supported: true is refused.", examples=[False])
    details: bool = Field(
        default=False, description="Tell how the text came about: its tokens, its seed and why it ended.", examples=[True]
    )
    decoder_input_details: bool = Field(
        default=False,
        description="Tell the tokens of the prompt with their log probabilities too, if the server was started with "
        "`--enable-prefill-logprobs`. Cannot be streamed.",
        examples=[False],
    )
    seed: U64 | None = Field(
        default=None,
        description="The seed of the random numbers: the same request with the same seed draws the same.",
        examples=[42],
    )
    top_n_tokens: U32 | None = Field(
        default=None,
        description="Tell this many of the most probable tokens at each place. At most the server's `--max-top-n-tokens`.",
        examples=[5],
    )
    grammar: GrammarShape | None = Field(
        default=None, description="What the text must follow.", examples=[{"type": "regex", "value": "[a-z]+"}]
    )
    adapter_id: str | None = Field(
        default=None,
        description="The LoRA adapter to generate with; `/info` lists them. Default: none.",
        examples=["my-adapter"],
    )


def sampled() -> Parameters:
    """TGI's trap: without `parameters` the answer is sampled, with `{}` it is greedy."""
    return Parameters(do_sample=True)


PARAMETERS = "How to generate. Without it the text is sampled; with `{}` it is not."


class GenerateBody(Body):
    """A prompt, and how to go on from it."""

    inputs: str = Field(description="The prompt. It cannot be empty.", examples=["My name is Olivier and I"])
    parameters: Parameters = Field(
        default_factory=sampled, description=PARAMETERS, examples=[{"max_new_tokens": 20, "details": True}]
    )


class CompatGenerateBody(GenerateBody):
    """The same, for either kind of answer."""

    stream: bool = Field(default=False, description="Whether to answer with a stream of events.", examples=[False])
