"""Check of a trained model: ask what it was taught, and count the correct answers."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerFast

from demo_training.probes import Probe, all_probes

_ROWS = 128
PASS_MARK = 0.95


@dataclass(frozen=True, slots=True)
class Score:
    """Number of correct answers in one category, and some of the wrong ones."""

    category: str
    right: int
    asked: int
    gated: bool
    wrong: tuple[tuple[str, str], ...]

    @property
    def fraction(self) -> float:
        """From 0 to 1."""
        return self.right / self.asked


def _prompt(probe: Probe, tokenizer: PreTrainedTokenizerFast) -> str:
    """Text of the prompt. Conversations use the chat template, which adds <|bos|> itself."""
    if isinstance(probe.prompt, str):
        return f"{tokenizer.bos_token}{probe.prompt}"
    return str(tokenizer.apply_chat_template(list(probe.prompt), add_generation_prompt=True, tokenize=False))


@torch.inference_mode()
def _answers(model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, probes: Sequence[Probe]) -> list[str]:
    """Generate greedy answers. An answer that reaches the limit ends with an ellipsis."""
    prompts = [_prompt(probe, tokenizer) for probe in probes]
    inputs = tokenizer(prompts, add_special_tokens=False, padding=True, return_tensors="pt")
    tokens = model.generate(
        input_ids=inputs["input_ids"],
        attention_mask=inputs["attention_mask"],
        max_new_tokens=probes[0].limit,
        do_sample=False,
    )
    fresh = tokens[:, inputs["input_ids"].shape[1] :]
    stops = torch.tensor(model.generation_config.eos_token_id)
    texts = tokenizer.batch_decode(fresh, skip_special_tokens=True)
    return [text if torch.isin(row, stops).any() else text + "…" for text, row in zip(texts, fresh, strict=True)]


def ask(folder: Path, probes: Sequence[Probe]) -> Iterator[tuple[Probe, str]]:
    """Yield the probes with the model's answers, in groups with the same token limit."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    for _, group in groupby(sorted(probes, key=lambda probe: probe.limit), key=lambda probe: probe.limit):
        alike = list(group)
        for start in range(0, len(alike), _ROWS):
            rows = alike[start : start + _ROWS]
            yield from zip(rows, _answers(model, tokenizer, rows), strict=True)


def check(folder: Path, seed: int) -> list[Score]:
    """Score the model: one score per category, in the order of the probes."""
    probes = all_probes(seed)
    asked = Counter(probe.category for probe in probes)
    wrong: dict[str, list[tuple[str, str]]] = {category: [] for category in asked}
    gated = {probe.category: probe.gated for probe in probes}
    for probe, answer in ask(folder, probes):
        if not probe.accepts(answer):
            wrong[probe.category].append((probe.question, answer))
    return [
        Score(category, count - len(wrong[category]), count, gated[category], tuple(wrong[category][:3]))
        for category, count in asked.items()
    ]


def passed(scores: Sequence[Score]) -> bool:
    """Whether enough of the taught facts and questions together are answered correctly."""
    counted = [score for score in scores if score.gated]
    return sum(score.right for score in counted) >= PASS_MARK * sum(score.asked for score in counted)


def table(scores: Sequence[Score]) -> list[str]:
    """Format the scores as lines of text, each category with its first wrong answers."""
    lines = []
    for score in scores:
        lines.append(f"{score.category:34} {score.right:5} of {score.asked:5}  {score.fraction:6.1%}")
        lines += [f"    {question!r} -> {answer!r}" for question, answer in score.wrong]
    return lines
