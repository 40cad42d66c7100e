"""The model's tokenizer, read from tokenizer.json without torch or transformers."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as Fast

from tgi_core.decoder_rules import DecoderRules
from tgi_core.errors import StartupError
from tgi_core.model_files import read_optional_json
from tgi_core.model_sizes import named_vocab_size
from tgi_core.process_memory import trim_heap
from tgi_core.tokenizer_file import MAX_ID, decoding_steps, less, read_fast, strays
from tgi_core.tokenizer_trial import try_tokenizer

_log = logging.getLogger(__name__)

_LOCAL_DECODERS = frozenset({"ByteLevel", "ByteFallback", "Fuse", "Replace", "Strip", "Metaspace"})
"""Decoder steps that decode a token independently of the token before it, provided that all characters are complete. They may treat
the first token of a text differently."""


@dataclass(frozen=True, slots=True)
class Encoded:
    """Token ids and the character span that each covers."""

    ids: tuple[int, ...]
    offsets: tuple[tuple[int, int], ...]


class Tokenizer:
    """Encodes text to token ids and decodes them. Thread-safe."""

    def __init__(
        self, fast: Any, directory: Path, eos_ids: frozenset[int], special_ids: frozenset[int], start_id: int | None = None
    ) -> None:
        self._fast = fast
        self.directory = directory
        """Model directory, from which other processes load the same tokenizer."""
        self.eos_ids = eos_ids
        """End-of-sequence ids."""
        self.special_ids = special_ids
        """Ids that `decode` can skip."""
        self.start_id = start_id
        """Token that an encoder-decoder's answers begin after, since its prompts go to the encoder; None for other models."""
        self._pieces: dict[int, str | None] = {}

    @classmethod
    def load(cls, directory: Path, tried: bool = False) -> Tokenizer:
        """Read tokenizer.json and the end-of-sequence ids of a model directory, after a trial in a child process unless `tried`.

        Raises StartupError for files that are corrupt, exceed resource limits, or use token ids that the model does not have.
        """
        path = directory / "tokenizer.json"
        if not path.is_file():
            raise StartupError(f"{path}: not found; a model needs its tokenizer.json")
        vocab_size = named_vocab_size(directory)
        if not tried:
            try_tokenizer(path, vocab_size)
        fast = read_fast(path)
        if few := strays(fast, vocab_size):
            _log.warning("%s: ids of %s are beyond the model's vocabulary; treating them as plain text", path, ", ".join(few))
            fast = less(fast, few)
        special = frozenset(id for id, token in fast.get_added_tokens_decoder().items() if token.special)
        rules = DecoderRules.read(directory)
        start_id = None if rules is None else rules.start
        trim_heap()  # reading a large vocabulary leaves an eighth of its memory free between its tokens
        return cls(fast, directory.absolute(), _eos_ids(directory, fast, vocab_size), special, start_id)

    @property
    def vocab_size(self) -> int:
        """Number of token ids, including added tokens."""
        return int(self._fast.get_vocab_size(with_added_tokens=True))

    @property
    def num_added(self) -> int:
        """Number of added tokens."""
        return len(self._fast.get_added_tokens_decoder())

    @property
    def special_texts(self) -> frozenset[str]:
        """Special tokens as text."""
        return frozenset(token.content for token in self._fast.get_added_tokens_decoder().values() if token.special)

    def encode(self, text: str, add_special_tokens: bool = True, literals: Sequence[tuple[int, int]] = ()) -> Encoded:
        """Encode a text. `literals` are sorted character spans in which special tokens are plain text; if given,
        `add_special_tokens` is ignored and none are added."""
        if literals:
            return self._encode_around(text, literals)
        encoding = self._fast.encode(text, add_special_tokens=add_special_tokens)
        return Encoded(tuple(encoding.ids), tuple(encoding.offsets))

    def _encode_around(self, text: str, literals: Sequence[tuple[int, int]]) -> Encoded:
        ids: list[int] = []
        offsets: list[tuple[int, int]] = []
        start = 0
        for literal, end in [*literals, (len(text), len(text))]:
            for fast, first, last in ((self._fast, start, literal), (self._literal, literal, end)):
                encoding = fast.encode(text[first:last], add_special_tokens=False)
                ids += encoding.ids
                offsets += [(first + begin, first + after) for begin, after in encoding.offsets]
            start = end
        return Encoded(tuple(ids), tuple(offsets))

    @cached_property
    def _literal(self) -> Any:
        """The same tokenizer, but encoding special tokens as plain text; created on first use."""
        fast = Fast.from_str(self._fast.to_str())
        fast.encode_special_tokens = True
        return fast

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = False) -> str:
        """Decode token ids; an incomplete character becomes U+FFFD."""
        return str(self._fast.decode(list(ids), skip_special_tokens=skip_special_tokens))

    def piece(self, id: int) -> str | None:
        """Text that a token appends to a text that ends in a complete character; None if it depends on adjacent tokens. Cached."""
        try:
            return self._pieces[id]
        except KeyError:
            piece = self._pieces[id] = self._decoded_piece(id)
            return piece

    def _decoded_piece(self, id: int) -> str | None:
        if self._anchor is None:
            return None
        before = self.decode([self._anchor])
        piece = self.decode([self._anchor, id])[len(before) :]
        return piece if piece and "\ufffd" not in piece else None

    @cached_property
    def _anchor(self) -> int | None:
        """Token of a letter to decode other tokens after; None if the decoder's output depends on more than one token."""
        decoder = self._fast.decoder
        kinds = set() if decoder is None else set(decoding_steps(json.loads(decoder.__getstate__())))
        ids = self._fast.encode("a", add_special_tokens=False).ids
        return int(ids[-1]) if ids and kinds and kinds <= _LOCAL_DECODERS else None


def _eos_ids(directory: Path, fast: Any, vocab_size: int | None) -> frozenset[int]:
    """Read the ids from generation_config.json, else config.json, else tokenizer_config.json. Raises StartupError."""
    for name in ("generation_config.json", "config.json"):
        declared = read_optional_json(directory / name).get("eos_token_id")
        if declared is None or declared == []:
            continue
        ids = declared if isinstance(declared, list) else [declared]
        for id in ids:
            if type(id) is not int or not 0 <= id < (vocab_size or MAX_ID):
                raise StartupError(
                    f"{directory / name}: eos_token_id {str(id)[:60]!r} is not a token id of the model (0 to "
                    f"{(vocab_size or MAX_ID) - 1}); set it to the model's end-of-sequence tokens"
                )
        return frozenset(ids)
    token = read_optional_json(directory / "tokenizer_config.json").get("eos_token")
    if isinstance(token, dict):
        token = token.get("content")
    found = fast.token_to_id(token) if isinstance(token, str) else None
    return frozenset() if found is None else frozenset({int(found)})
