"""How an encoder-decoder's answers begin, from its files: the decoder's start token, a forced first token, tokens it never chooses."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tgi_core.errors import StartupError
from tgi_core.model_files import read_json, read_optional_json


@dataclass(frozen=True, slots=True)
class DecoderRules:
    """What transformers' `generate` reads from the same files.

    `start` is the token that the decoder's first position runs, `first` the token that every answer must begin with (None: any), and
    `never` are tokens that no answer contains.
    """

    start: int
    first: int | None = None
    never: tuple[int, ...] = ()

    @classmethod
    def read(cls, directory: Path) -> DecoderRules | None:
        """The rules of a model directory; None if its model has no encoder. Raises StartupError that names file and field."""
        config = read_optional_json(directory / "config.json")
        if config.get("is_encoder_decoder") is not True:
            return None
        file = directory / "generation_config.json"
        given = read_json(file) if file.exists() else config
        start = next((value for value in _starts(given, config) if value is not None), None)
        if start is None:
            raise StartupError(f"{directory / 'config.json'}: an encoder-decoder needs decoder_start_token_id, or bos_token_id")
        ends = given.get("eos_token_id")
        ends = set(ends if isinstance(ends, list) else [ends])
        single = [words[0] for words in given.get("bad_words_ids") or () if isinstance(words, list) and len(words) == 1]
        never = {*single, *(given.get("suppress_tokens") or ())} - ends
        first = given.get("forced_bos_token_id")
        for field, id in (
            ("decoder_start_token_id", start),
            ("forced_bos_token_id", first),
            *(("bad_words_ids", id) for id in never),
        ):
            if id is not None and (type(id) is not int or id < 0):
                raise StartupError(f"{file}: {field} is {str(id)[:40]!r}, which is not a token id")
        return cls(start, first, tuple(sorted(never)))


def _starts(given: dict[str, Any], config: dict[str, Any]) -> list[Any]:
    """Where a start token may be, best first."""
    names = ("decoder_start_token_id", "bos_token_id")
    return [given.get(names[0]), config.get(names[0]), given.get(names[1]), config.get(names[1])]
