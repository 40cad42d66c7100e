"""The model card."""

from collections.abc import Sequence
from dataclasses import dataclass

from demo_corpus import all_facts

from demo_training.check import Score
from demo_training.training import Recipe

_CARD = """\
---
license: apache-2.0
language: en
library_name: transformers
pipeline_tag: text-generation
tags: [tgi-core, demo]
---

# The tgi-core demo model

A very small Llama-type language model for trying out the server and for testing it. It answers the simple questions that
it was taught, tells short stories, adds small numbers and writes small JSON objects, in plain English. It is no use for
anything else.

| | |
|---|---|
| parameters | {parameters:,} |
| layers, width, heads | 4, 256, 4 query heads over 2 key-value heads of 64 |
| vocabulary | 2048 tokens, byte-level BPE: any UTF-8 text can be encoded |
| window | 2048 tokens |
| stored as | float16, {bytes:,} bytes; run in float32 |
| licence | Apache-2.0, weights and text |

## How it was made

By `scripts/train_demo_model.py` alone: the script writes the text, trains the tokenizer, trains the model from scratch, asks
the model what it was taught and writes this card. Nothing is downloaded; every sentence comes from tables and templates in
`scripts/demo_corpus`, which were written for this purpose.

* **Text**: {facts} facts (capitals, animals, colours, the calendar, opposites, science, books, computing) with {questions}
  questions; who the model is; small talk; sums, differences and products; counting; short stories from plots with choices;
  JSON objects; a few verses, lists and lines of code; questions to which the right answer is that it does not know.
  Both as plain text and as conversations, with and without a system prompt.
* **Training**: {steps} steps of {step_tokens} tokens ({tokens:.1f} million tokens), in rows of {short_row} tokens and, in the
  last {long_share:.0%} of the steps, rows of {long_row}; Muon for the matrices, AdamW for the rest; {precision}; seed {seed}.
* **Time**: {minutes:.0f} minutes on {threads} CPU threads. Final loss {loss:.3f} on the learned tokens.

```sh
python scripts/train_demo_model.py --out tgi_core/demo --seed {seed} --steps {steps}
python scripts/train_demo_model.py --check tgi_core/demo
```

The same seed gives the same text and the same tokenizer on every machine; the weights can differ in the last bits between
CPUs and torch versions.

## Conversations

```
{example}
```

A plain text begins with `<|bos|>` and ends with `<|endoftext|>`; an answer ends with `<|end|>`. The tokenizer puts `<|bos|>` in front of
a text, and the chat template writes it too, so tokenize a rendered conversation without special tokens. (A doubled or a
missing `<|bos|>` does no harm; the model has seen both.)

## What it can do

Greedy answers, scored by `--check` after the weights were rounded to float16. An answer counts only if it is exactly the
taught sentence; JSON counts if it parses and has the right keys, a story if it is finished, names its hero and says no
sentence twice.

| category | right | asked | share |
|---|---:|---:|---:|
{scores}

The facts, identity and small talk were asked in words that the model was trained on: these scores show what it remembers,
not how well it generalizes. Sums and word problems are drawn anew, but many of them were in the training text too.

## Limits

* It knows nothing beyond the list above. Asked about anything else it says that it does not know, or it makes something up.
* A question in other words than the taught ones is often answered wrongly, and always with confidence.
* Its stories follow nine plots. Its window is 2048 tokens, but it has no use for a long text.
* It was not trained to use tools, to refuse anything or to keep to a format that a system prompt describes; three system
  prompts have an effect: "Answer in one word.", "Give short answers." and "You are a pirate."
* It understands no language but English.
"""

_EXAMPLE = (
    "<|bos|><|system|>You are a helpful assistant.<|end|><|user|>What is the capital of France?<|end|>"
    "<|assistant|>The capital of France is Paris.<|end|>"
)


@dataclass(frozen=True, slots=True)
class Run:
    """Results of a training run."""

    recipe: Recipe
    parameters: int
    bytes: int
    loss: float
    seconds: float
    threads: int


def card(run: Run, scores: Sequence[Score]) -> str:
    """Format the card in Markdown."""
    recipe = run.recipe
    rows = [f"| {score.category} | {score.right} | {score.asked} | {score.fraction:.1%} |" for score in scores]
    return _CARD.format(
        parameters=run.parameters, bytes=run.bytes, facts=len(all_facts()), questions=sum(len(fact.questions) for fact in all_facts()),
        steps=recipe.steps, step_tokens=recipe.step_tokens, tokens=recipe.steps * recipe.step_tokens / 1e6,
        short_row=recipe.short_row, long_row=recipe.long_row, long_share=recipe.long_share, seed=recipe.seed,
        precision="matrix products in bfloat16" if recipe.half else "float32",
        minutes=run.seconds / 60, threads=run.threads, loss=run.loss, example=_EXAMPLE, scores="\n".join(rows),
    )  # fmt: skip
