"""The tokenizer in a GGUF file's metadata, as tokenizer.json and tokenizer_config.json.

Source of the expressions: https://github.com/ggml-org/llama.cpp, src/llama-vocab.cpp.
"""

from __future__ import annotations

from typing import Any

from tgi_core.errors import StartupError
from tgi_core.gguf.header import GgufFile

_NORMAL, _UNKNOWN, _CONTROL, _USER, _UNUSED, _BYTE = 1, 2, 3, 4, 5, 6
"""`tokenizer.ggml.token_type`."""

_SPACE = "\u2581"

_WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_CASED = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|"
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|"
    r"\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)

_SPLITS = {
    "llama-bpe": _WORDS % "{1,3}",
    "llama3": _WORDS % "{1,3}",
    "llama-v3": _WORDS % "{1,3}",
    "smaug-bpe": _WORDS % "{1,3}",
    "qwen2": _WORDS % "",
    "deepseek-r1-qwen": _WORDS % "",
    "tekken": _CASED,
}
"""Expressions that split texts, by `tokenizer.ggml.pre`."""
_GPT2 = ("gpt-2", "gpt2", "phi-2", "default")
_DIGITS = ("smollm", "starcoder", "refact", "command-r", "codeshell")
"""Of the others these split as GPT-2 does; the second kind after each digit too."""
_NFC = ("qwen2", "deepseek-r1-qwen")
_WHOLE_WORDS = ("llama-bpe", "llama3", "llama-v3", "smaug-bpe", "tekken")
"""Whose words that are in the vocabulary are not merged from parts."""


def tokenizer_of(file: GgufFile) -> tuple[dict[str, Any], dict[str, Any]]:
    """tokenizer.json and tokenizer_config.json. Raises StartupError for a kind of tokenizer that is not supported."""
    model = file.get("tokenizer.ggml.model", str)
    tokens = _list(file, "tokenizer.ggml.tokens", str)
    types = (
        _list(file, "tokenizer.ggml.token_type", int) if "tokenizer.ggml.token_type" in file.metadata else [_NORMAL] * len(tokens)
    )
    if len(types) != len(tokens) or len(set(tokens)) != len(tokens):
        raise StartupError(
            f"{file.path}: damaged: {len(tokens)} tokens, {len(set(tokens))} of them different, with {len(types)} types"
        )
    vocabulary = {token: id for id, token in enumerate(tokens)}
    if model == "gpt2":
        described = _byte_level(file, vocabulary)
    elif model == "llama":
        described = _sentence_piece(file, vocabulary, tokens, types)
    else:
        raise StartupError(f"{file.path}: tokenizer.ggml.model is {model[:40]!r}; supported are gpt2 and llama")
    described["added_tokens"] = [
        _added(id, tokens[id], kind) for id, kind in enumerate(types) if kind in (_UNKNOWN, _CONTROL, _USER)
    ]
    config = _special(file, tokens)
    adds_bos = file.metadata.get("tokenizer.ggml.add_bos_token", model == "llama") is True
    adds_eos = file.metadata.get("tokenizer.ggml.add_eos_token", False) is True
    described["post_processor"] = _template(config, vocabulary, adds_bos, adds_eos, described.get("post_processor"))
    return {"version": "1.0", "truncation": None, "padding": None, **described}, config | {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "add_bos_token": adds_bos,
        "add_eos_token": adds_eos,
        "clean_up_tokenization_spaces": False,
    }


def _byte_level(file: GgufFile, vocabulary: dict[str, int]) -> dict[str, Any]:
    """Byte-level BPE."""
    split = file.get("tokenizer.ggml.pre", str, "default")
    merges = [tuple(each.split(" ")) for each in _list(file, "tokenizer.ggml.merges", str)]
    if bad := next(
        (each for each in merges if len(each) != 2 or not all(part in vocabulary for part in (*each, "".join(each)))), None
    ):
        raise StartupError(
            f"{file.path}: damaged: tokenizer.ggml.merges holds {' '.join(bad)[:60]!r}, which the vocabulary lacks"
        )
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": split not in _SPLITS}
    if split in _SPLITS:
        first: dict[str, Any] = {"type": "Split", "pattern": {"Regex": _SPLITS[split]}, "behavior": "Isolated", "invert": False}
        steps = [first, level]
    elif split in _DIGITS:
        steps = [{"type": "Digits", "individual_digits": True}, level]
    elif split in _GPT2:
        steps = [level]
    else:
        known = ", ".join((*_SPLITS, *_GPT2, *_DIGITS))
        raise StartupError(f"{file.path}: tokenizer.ggml.pre is {split[:40]!r}; supported are {known}")
    return {
        "normalizer": {"type": "NFC"} if split in _NFC else None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": steps},
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": _bpe(vocabulary, merges, ignore_merges=split in _WHOLE_WORDS),
    }


def _sentence_piece(file: GgufFile, vocabulary: dict[str, int], tokens: list[str], types: list[int]) -> dict[str, Any]:
    """SentencePiece's BPE: of two neighbours that make a token those with the highest score are merged first."""
    scores = _list(file, "tokenizer.ggml.scores", float)
    if len(scores) != len(tokens):
        raise StartupError(f"{file.path}: damaged: {len(scores)} scores for {len(tokens)} tokens")
    unknown = file.get("tokenizer.ggml.unknown_token_id", int, 0)
    ranked: list[tuple[float, int, str, str]] = []
    for id, token in enumerate(tokens):
        if types[id] in (_NORMAL, _USER):
            halves = ((token[:at], token[at:]) for at in range(1, len(token)))
            ranked += [
                (-scores[id], -len(left), left, right) for left, right in halves if left in vocabulary and right in vocabulary
            ]
    ranked.sort(key=lambda each: each[:2])
    begins = file.metadata.get("tokenizer.ggml.add_space_prefix", True) is True
    replace = {"type": "Replace", "pattern": {"String": " "}, "content": _SPACE}
    prepend = [{"type": "Prepend", "prepend": _SPACE}] if begins else []
    strip = [{"type": "Strip", "content": " ", "start": 1, "stop": 0}] if begins else []
    back = {"type": "Replace", "pattern": {"String": _SPACE}, "content": " "}
    model = _bpe(vocabulary, [(left, right) for _, _, left, right in ranked], byte_fallback=_BYTE in types, fuse_unk=True)
    return {
        "normalizer": {"type": "Sequence", "normalizers": [*prepend, replace]},
        "pre_tokenizer": None,
        "decoder": {"type": "Sequence", "decoders": [back, {"type": "ByteFallback"}, {"type": "Fuse"}, *strip]},
        "model": model | {"unk_token": tokens[unknown] if 0 <= unknown < len(tokens) else None},
    }


def _bpe(vocabulary: dict[str, int], merges: list[Any], **settings: bool) -> dict[str, Any]:
    return {
        "type": "BPE",
        "dropout": None,
        "unk_token": None,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": False,
        "byte_fallback": False,
        "ignore_merges": False,
        **settings,
        "vocab": vocabulary,
        "merges": [list(each) for each in merges],
    }


def _added(id: int, token: str, kind: int) -> dict[str, Any]:
    plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    return {"id": id, "content": token, **plain, "special": kind != _USER}


def _special(file: GgufFile, tokens: list[str]) -> dict[str, Any]:
    """tokenizer_config.json's special tokens and chat template."""
    found: dict[str, Any] = {}
    for key, there in (("bos", "bos_token"), ("eos", "eos_token"), ("unknown", "unk_token"), ("padding", "pad_token")):
        if f"tokenizer.ggml.{key}_token_id" in file.metadata:
            id = file.get(f"tokenizer.ggml.{key}_token_id", int)
            if not 0 <= id < len(tokens):
                raise StartupError(f"{file.path}: damaged: tokenizer.ggml.{key}_token_id is {id}, of {len(tokens)} tokens")
            found[there] = tokens[id]
    if "tokenizer.chat_template" in file.metadata:
        found["chat_template"] = file.get("tokenizer.chat_template", str)
    return found


def _template(config: dict[str, Any], vocabulary: dict[str, int], bos: bool, eos: bool, otherwise: Any) -> Any:
    """The post-processor that adds the tokens at the beginning and the end."""
    first = [config["bos_token"]] if bos and "bos_token" in config else []
    last = [config["eos_token"]] if eos and "eos_token" in config else []
    if not first and not last:
        return otherwise
    special = {token: {"id": token, "ids": [vocabulary[token]], "tokens": [token]} for token in (*first, *last)}

    def around(*names: str) -> list[dict[str, Any]]:
        ends = [[{"SpecialToken": {"id": token, "type_id": 0}} for token in tokens] for tokens in (first, last)]
        return [*ends[0], *({"Sequence": {"id": name, "type_id": 0}} for name in names), *ends[1]]

    return {"type": "TemplateProcessing", "single": around("A"), "pair": around("A", "B"), "special_tokens": special}


def _list(file: GgufFile, key: str, kind: type) -> list[Any]:
    found: list[Any] = file.get(key, list)
    if not all(type(each) is kind for each in found):
        raise StartupError(f"{file.path}: damaged: {key} holds other things than {kind.__name__}")
    return found
