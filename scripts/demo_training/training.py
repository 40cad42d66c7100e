"""The training loop."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice

import torch
from demo_corpus import Document
from tokenizers import Tokenizer
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM

_ENCODED_AT_ONCE = 500
_WARMUP = 50


@dataclass(frozen=True, slots=True)
class Recipe:
    """Settings of a training run. Each step processes `step_tokens` tokens."""

    seed: int
    steps: int
    step_tokens: int = 4096
    short_row: int = 256
    long_row: int = 2048
    long_share: float = 0.2
    matrix_rate: float = 0.02
    other_rate: float = 0.01
    half: bool = True
    """Whether to run matrix products in bfloat16."""

    def row_at(self, step: int) -> int:
        """Number of tokens per row: short at first, the model's full context in the last `long_share` of the steps."""
        return self.long_row if step >= self.steps * (1 - self.long_share) else self.short_row

    def pace_at(self, step: int) -> float:
        """Factor for both learning rates: warm-up for `_WARMUP` steps, constant for half of the run, then decay to 0."""
        left = (self.steps - step) / self.steps
        return min(1.0, (step + 1) / _WARMUP, left / 0.5)


def token_stream(documents: Iterable[Document], tokenizer: Tokenizer) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield chunks of token ids [n] and loss masks [n] (true for tokens to learn), endlessly."""
    stream = iter(documents)
    while True:
        segments = [segment for document in islice(stream, _ENCODED_AT_ONCE) for segment in document.segments]
        encodings = tokenizer.encode_batch_fast([segment.text for segment in segments], add_special_tokens=False)
        ids = [torch.tensor(encoding.ids) for encoding in encodings]
        learned = [torch.full((len(part),), segment.learned) for part, segment in zip(ids, segments, strict=True)]
        yield torch.cat(ids), torch.cat(learned)


def batches(stream: Iterator[tuple[Tensor, Tensor]], recipe: Recipe) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield (inputs, targets) per step, both [rows, tokens]. Targets that are not learned are -100."""
    ids, learned = next(stream)
    for step in range(recipe.steps):
        while len(ids) <= recipe.step_tokens:
            more_ids, more_learned = next(stream)
            ids, learned = torch.cat((ids, more_ids)), torch.cat((learned, more_learned))
        shape = (-1, recipe.row_at(step))
        following = ids[1 : recipe.step_tokens + 1].masked_fill(~learned[1 : recipe.step_tokens + 1], -100)
        yield ids[: recipe.step_tokens].view(shape), following.view(shape)
        ids, learned = ids[recipe.step_tokens :], learned[recipe.step_tokens :]


def _optimizers(model: nn.Module, recipe: Recipe) -> list[torch.optim.Optimizer]:
    """Create the optimizers: Muon for the layers' matrices, AdamW for embeddings and norms."""
    layers = [weight for name, weight in model.named_parameters() if weight.ndim == 2 and "embed" not in name]
    others = [weight for name, weight in model.named_parameters() if weight.ndim != 2 or "embed" in name]
    return [
        torch.optim.Muon(layers, lr=recipe.matrix_rate, weight_decay=0.02),
        torch.optim.AdamW(others, lr=recipe.other_rate, betas=(0.9, 0.95), weight_decay=0.0),
    ]


def train(
    config: LlamaConfig, stream: Iterator[tuple[Tensor, Tensor]], recipe: Recipe, report: Callable[[int, float], None]
) -> LlamaForCausalLM:
    """Train from scratch. Calls `report(step, loss)` after each step."""
    torch.manual_seed(recipe.seed)
    model = LlamaForCausalLM(config)
    optimizers = _optimizers(model, recipe)
    rates = [optimizer.param_groups[0]["lr"] for optimizer in optimizers]
    for step, (inputs, targets) in enumerate(batches(stream, recipe)):
        for optimizer, rate in zip(optimizers, rates, strict=True):
            optimizer.param_groups[0]["lr"] = rate * recipe.pace_at(step)
        with torch.autocast("cpu", torch.bfloat16, enabled=recipe.half):
            logits = model(input_ids=inputs, use_cache=False).logits
        loss = nn.functional.cross_entropy(logits.float().flatten(0, 1), targets.flatten())
        torch.autograd.backward(loss)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        report(step, loss.item())
    return model.eval()
