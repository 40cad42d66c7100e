"""Fields of vLLM's and SGLang's request bodies that the routes under /v1 honour."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from tgi_router.bodies import FurtherSampling
from tgi_router.strict_types import F32, I32, U32, Body, ListOf, schema_keywords

ARGUMENTS = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}

GRAMMAR = 'root ::= "yes" | "no"'


class StructuredOutputs(Body):
    """vLLM's constraint of a response: one of its fields."""

    json_value: Any = Field(
        default=None, alias="json", description="JSON Schema, as an object or as JSON text.", examples=[ARGUMENTS]
    )
    json_object: bool | None = Field(default=None, description="Any JSON object.", examples=[True])
    regex: str | None = Field(default=None, description="Regular expression.", examples=["[a-z]+"])
    choice: ListOf[str] | None = Field(default=None, description="Texts.", examples=[["yes", "no"]])
    grammar: str | None = Field(default=None, description="Grammar in GBNF or Lark.", examples=[GRAMMAR])
    structural_tag: Any = Field(default=None, description="Not supported.", examples=[None])


class VllmFields(FurtherSampling):
    """Fields that OpenAI does not have, under vLLM's names and with its semantics."""

    top_k: Annotated[I32, schema_keywords(minimum=-1)] | None = Field(
        default=None,
        description="Sample only from this many of the most probable tokens; 0 and -1 disable it. vLLM's.",
        examples=[10],
    )
    repetition_penalty: Annotated[F32, schema_keywords(minimum=1e-30, maximum=1e30)] | None = Field(
        default=None,
        description="Penalty on tokens of the prompt and of the text so far: above 1 they become less likely; 1 is no penalty.",
        examples=[1.03],
    )
    ignore_eos: bool | None = Field(
        default=None, description="Generate past the end-of-sequence token, up to `max_tokens`. vLLM's.", examples=[False]
    )
    stop_token_ids: ListOf[U32] | None = Field(
        default=None,
        description="Stop at any of these tokens, which is not part of the text. At most 128. vLLM's.",
        examples=[[2]],
    )
    min_tokens: U32 | None = Field(
        default=None,
        description="Minimum number of tokens to generate: nothing else than `max_tokens` ends the text before. Cannot be combined "
        "with a grammar or with tools that must or may be called. vLLM's.",
        examples=[0],
    )
    skip_special_tokens: bool | None = Field(
        default=None,
        description="With false, the text has the special tokens that were generated, but for the one that ends it. vLLM's.",
        examples=[True],
    )
    prompt_logprobs: I32 | None = Field(
        default=None,
        description="With 0, return the log probabilities of the prompt's tokens. More, the most probable tokens at each position, is "
        "not supported. Needs the server's `--enable-prefill-logprobs`, and cannot be streamed. vLLM's.",
        examples=[None, 0],
    )
    truncate_prompt_tokens: Annotated[I32, schema_keywords(minimum=-1)] | None = Field(
        default=None,
        description="Truncate the prompt to this many tokens from its end; -1 for as many as the server allows. vLLM's.",
        examples=[1024],
    )
    guided_json: Any = Field(
        default=None, description="JSON Schema of the response, as an object or as JSON text. vLLM's.", examples=[ARGUMENTS]
    )
    guided_regex: str | None = Field(
        default=None, description="Regular expression that the response matches. vLLM's.", examples=["[a-z]+"]
    )
    guided_grammar: str | None = Field(
        default=None, description="Grammar in GBNF or Lark that the response matches. vLLM's.", examples=[GRAMMAR]
    )
    guided_choice: ListOf[str] | None = Field(
        default=None, description="Texts one of which is the response. vLLM's.", examples=[["yes", "no"]]
    )
    regex: str | None = Field(
        default=None, description="Regular expression that the response matches. SGLang's.", examples=["[a-z]+"]
    )
    ebnf: str | None = Field(
        default=None, description="Grammar in GBNF or Lark that the response matches. SGLang's.", examples=[GRAMMAR]
    )
    structured_outputs: StructuredOutputs | None = Field(
        default=None, description="Constraint of the response, in vLLM's newer form.", examples=[{"regex": "[a-z]+"}]
    )
