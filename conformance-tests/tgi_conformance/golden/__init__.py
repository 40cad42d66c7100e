"""Golden transcripts of tiny checkpoints: what each must generate, by transformers' own definitions and the published formula.

`make.py` wrote them; nothing in them comes from a backend or from this project's engine.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from tgi_conformance.verdict import SuiteFault
from tgi_core.backend import Adapter, OutputOptions, Request, Row, Sampling, TopToken

HERE = Path(__file__).parent / "models"
TOY = "toy"
"""The checkpoint for device kind "none"; the others are real models."""
TOY_IMAGES = "toy-images"
"""The same of those that see images."""

TRANSCRIPT = "golden.json"
ADAPTERS = "adapters"
"""Subfolder of a checkpoint with its LoRA adapters, one folder each."""
IMAGES = "images"
"""Subfolder of a checkpoint that sees images, with items of `Request.media`."""


@dataclass(frozen=True, slots=True)
class Case:
    """A request and its output: `tops` per token in descending order, `prompt_logprobs` with the leading None."""

    id: str
    prompt: tuple[int, ...]
    sampling: Sampling
    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    tops: tuple[tuple[TopToken, ...], ...]
    prompt_logprobs: tuple[float | None, ...]
    masked: bool = False
    """Whether the suite's ALTERNATING masks apply."""
    adapter: str | None = None
    media: tuple[bytes, ...] = ()


Key = tuple[tuple[int, ...], Sampling, bool, str | None, tuple[bytes, ...]]


@dataclass(slots=True)
class Golden:
    """A checkpoint with its transcripts. As a yardstick it only knows its own cases, and requests that continue one."""

    name: str
    model: Path
    cases: tuple[Case, ...]
    eos: int
    """The end-of-text token in config.json; some transcript goes on past it."""
    adapters: tuple[Adapter, ...] = ()
    images: Mapping[str, bytes] = field(default_factory=dict)
    """Items of `Request.media` by name."""
    placeholder: int | None = None
    """The token that stands for one of an image's embeddings; None for a model of text alone."""
    _by_key: dict[Key, Case] = field(default_factory=dict)

    @classmethod
    @cache
    def load(cls, name: str) -> Golden:
        """Load a checkpoint from the wheel. Raises SuiteFault if it is damaged."""
        folder = HERE / name
        try:
            value = json.loads((folder / TRANSCRIPT).read_text(encoding="utf-8"))
            images = {path.stem: path.read_bytes() for path in sorted((folder / IMAGES).glob("*"))}
            cases = tuple(_case(each, images) for each in value["cases"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise SuiteFault(f"the yardstick is broken, not the backend: {folder / TRANSCRIPT}: {error}") from error
        adapters = tuple(Adapter(path.name, str(path)) for path in sorted((folder / ADAPTERS).glob("*")) if path.is_dir())
        by_key = {(case.prompt, case.sampling, case.masked, case.adapter, case.media): case for case in cases}
        return cls(name, folder, cases, value["eos"], adapters, images, value.get("placeholder"), by_key)

    @property
    def where(self) -> str:
        """How a message names this yardstick."""
        return f"in the golden transcript of {self.name}"

    def rows(self, request: Request, count: int) -> list[Row]:
        """Return the remaining results of a case, with what the request wants of them. Raises SuiteFault beyond the transcript."""
        case, done = self._case(request), len(request.tokens) - request.prompt_len
        if done + count > len(case.tokens):
            made = f"{len(case.tokens)} tokens, but the scenario runs further"
            raise SuiteFault(
                f"the yardstick is too short, which is not the fault of the backend: {case.id} {self.where} has {made}"
            )
        return [_row(request.want, case, index, index - done) for index in range(done, len(case.tokens))]

    def _case(self, request: Request) -> Case:
        prompt, made = request.tokens[: request.prompt_len], request.tokens[request.prompt_len :]
        case = self._by_key.get((prompt, request.sampling, request.masked, request.adapter, request.media))
        if case is None or case.tokens[: len(made)] != made:
            text = f"{len(request.tokens)} tokens that begin with {list(request.tokens[:4])}, sampled as asked for"
            raise SuiteFault(f"the yardstick is broken, not the backend: {self.name} has no golden transcript of {text}")
        return case


def _row(want: OutputOptions, case: Case, index: int, result: int) -> Row:
    return Row(
        0,
        (case.tokens[index],),
        (case.logprobs[index],) if want.logprobs else (),
        (case.tops[index][: want.top_n],) if want.top_n else (),
        case.prompt_logprobs if want.prompt_logprobs and result == 0 else (),
    )


def names(device_kind: str) -> tuple[str, ...]:
    """Return the names of the checkpoints for a kind of device: the real models, or the toy if there is no device."""
    real = sorted(path.name for path in HERE.iterdir() if (path / TRANSCRIPT).exists() and not (path / IMAGES).exists())
    return (TOY,) if device_kind == "none" else tuple(name for name in real if name != TOY)


def image_names(device_kind: str) -> tuple[str, ...]:
    """Return the names of the checkpoints that see images."""
    real = sorted(path.name for path in HERE.iterdir() if (path / IMAGES).exists() and path.name != TOY_IMAGES)
    return (TOY_IMAGES,) if device_kind == "none" else tuple(real)


def adapted_golden(device_kind: str) -> str:
    """Return the name of the checkpoint that has adapters."""
    return TOY if device_kind == "none" else "llama"


def default_model(device_kind: str) -> Path:
    """Return the model that the suite runs by default."""
    return HERE / ("toy-large" if device_kind == "none" else "llama")


def _case(value: dict[str, Any], images: Mapping[str, bytes]) -> Case:
    how = dict(value["sampling"])
    how["logit_bias"] = tuple((int(token), float(bias)) for token, bias in how.get("logit_bias", ()))
    return Case(
        value["id"],
        tuple(value["prompt"]),
        Sampling(**how),
        tuple(value["tokens"]),
        tuple(value["logprobs"]),
        tuple(tuple(TopToken(int(token), logprob) for token, logprob in tops) for tops in value["tops"]),
        tuple(value["prompt_logprobs"]),
        value.get("masked", False),
        value.get("adapter"),
        tuple(images[name] for name in value.get("images", ())),
    )
