"""Make the golden checkpoints of models that see images: with their processors, images as a processor makes them, and transcripts.

Two real types: llava, whose tokens see what precedes them, and gemma3, where tokens of an image see each other. And the toy, in which the
tokens of an image have numbers of their own in place of ids.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tgi_conformance.golden import HERE, IMAGES, TOY_IMAGES, TRANSCRIPT, toy
from tgi_conformance.image_rules import ItemForm, written
from tgi_conformance.reference_sampling import Scores, logprobs

VOCAB, POSITIONS, NEW_TOKENS, TOPS = 250, 256, 8, 4
PLACEHOLDER, BEGIN, END = VOCAB - 1, VOCAB - 2, VOCAB - 3
"""Token ids beyond those of the suite's texts: of an image's tokens, and those that gemma3 has around them."""
TOKENS = 9
"""Tokens of an image: no multiple of a block's."""
SURE = 0.02
"""The least distance between the two likeliest tokens, in nats."""

PROMPTS: dict[str, tuple[int | str, ...]] = {
    "one": (3, 1, 4, 1, 5, "sky", 9, 2, 6),
    "begins": ("sea", 5, 3, 5),
    "ends": (8, 9, 7, "sky"),
    "two": (3, 1, "sky", 4, 1, 5, 9, "sea", 2, 6),
    "turned": (3, 1, "sea", 4, 1, 5, 9, "sky", 2, 6),
    "other": (3, 1, "sky", 4, 1, 5, 9, "sand", 2, 6),
    "twice": (12, 7, "sand", 19, "sand", 23, "sky", 0),
    "three": (5, "sand", 8, "sky", 9, "sea", 7),
    "text": (12, 7, 7, 19, 23, 0, 11, 8, 5, 17, 21, 13, 4, 16, 9, 1),
}
"""Prompts by name: token ids, and names of images."""
NEIGHBOURS: dict[str, tuple[int | str, ...]] = {"side-by-side": (6, 2, "sea", "sky", 8, 4)}
"""Of models whose images have nothing around them."""

_TEXTS = 50
"""Texts are made of the first 50 tokens, as all of the suite's."""

ANSWERED: tuple[int | str, ...] = (4, 1, "sea", 8, 3)
"""A prompt whose answer begins with a placeholder's id, which stands for no image there."""

SeeingModel = Callable[[Sequence[int], Sequence[bytes], Sequence[int]], list[Scores]]
"""Returns the logits after each position of a prompt with images, and after each token of its answer."""


def item(tensors: Mapping[str, tuple[str, tuple[int, ...], bytes]]) -> bytes:
    """Return an item of `Request.media`: by name, a tensor's dtype, shape and bytes."""
    form = ItemForm(TOKENS, tuple((name, dtype, shape) for name, (dtype, shape, _) in tensors.items()))
    return written(form, b"".join(data for _, _, data in tensors.values()))


def write(name: str, model: SeeingModel, images: Mapping[str, bytes], *, around: bool = False) -> None:
    """Write images and transcripts."""
    folder = HERE / name
    (folder / IMAGES).mkdir(parents=True, exist_ok=True)
    for title, data in images.items():
        (folder / IMAGES / f"{title}.safetensors").write_bytes(data)
    prompts = PROMPTS if around else PROMPTS | NEIGHBOURS
    cases = [_sure(f"greedy-{title}", model, prompt, images, around) for title, prompt in prompts.items()]
    cases.append(_sure("answered", model, ANSWERED, images, around, (PLACEHOLDER,)))
    config = json.loads((folder / "config.json").read_text())
    config["eos_token_id"] = cases[0]["tokens"][2]
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    value = {"eos": config["eos_token_id"], "placeholder": PLACEHOLDER, "cases": cases}
    (folder / TRANSCRIPT).write_text(json.dumps(value, separators=(",", ":")) + "\n")


def _sure(
    id: str,
    model: SeeingModel,
    prompt: Sequence[int | str],
    images: Mapping[str, bytes],
    around: bool,
    answer: tuple[int, ...] = (),
) -> dict[str, Any]:
    """Return the case with the first texts for which rounding can change no token, none is a placeholder, and other images make other
    tokens. `answer` is how its answer begins."""
    shown = [part for part in prompt if isinstance(part, str)]
    names = list(images)
    others = [names[(names.index(name) + 1) % len(names)] for name in shown]
    image = [BEGIN, *[PLACEHOLDER] * TOKENS, END] if around else [PLACEHOLDER] * TOKENS
    for shift in range(_TEXTS):
        tokens: list[int] = []
        for part in prompt:
            tokens += image if isinstance(part, str) else [(part + shift) % _TEXTS]
        case = _transcript(model, tokens, [images[name] for name in shown], answer)
        other = _transcript(model, tokens, [images[name] for name in others], answer)
        if case is not None and (not shown or (other is not None and case["tokens"] != other["tokens"])):
            return {"id": id, "prompt": tokens, "sampling": {}, "images": shown} | case
    raise ValueError(f"{id}: no text has a sure answer")


def _transcript(
    model: SeeingModel, prompt: Sequence[int], items: Sequence[bytes], answer: Sequence[int]
) -> dict[str, Any] | None:
    made, chosen, tops = list(answer), [0.0] * len(answer), [[[token, 0.0]] for token in answer]
    while len(made) < NEW_TOKENS:
        likely = sorted(logprobs(model(prompt, items, made)[-1]).items(), key=lambda pair: (-pair[1], pair[0]))
        (token, logprob), (_, second) = likely[:2]
        if logprob - second < SURE or token == PLACEHOLDER:
            return None
        made.append(token)
        chosen.append(round(logprob, 5))
        tops.append([[token, round(value, 5)] for token, value in likely[:TOPS]])
    before = [logprobs(scores) for scores in model(prompt, items, ())]
    following = [before[at].get(token, -math.inf) for at, token in enumerate(prompt[1:])]
    rounded = [None, *(value if math.isinf(value) else round(value, 5) for value in following)]
    return {"tokens": made, "logprobs": chosen, "tops": tops, "prompt_logprobs": rounded}


def make_toy() -> None:
    """Make the toy that sees images."""
    folder = HERE / TOY_IMAGES
    folder.mkdir(parents=True, exist_ok=True)
    config = {"model_type": "tgi-toy", "vocab_size": VOCAB, "max_position_embeddings": POSITIONS, "image_token_id": PLACEHOLDER}
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    numbers = {
        name: [1000 * place + 7 * index + index * index for index in range(TOKENS)]
        for place, name in enumerate(("sky", "sea", "sand"), 1)
    }
    images = {name: item({"numbers": ("I64", (TOKENS,), struct.pack(f"<{TOKENS}q", *row))}) for name, row in numbers.items()}
    rows = {data: numbers[name] for name, data in images.items()}

    def scores(prompt: Sequence[int], items: Sequence[bytes], answer: Sequence[int]) -> list[Scores]:
        numbers = iter([number for data in items for number in rows[data]])
        return toy.scores([*(next(numbers) if token == PLACEHOLDER else token for token in prompt), *answer], VOCAB)

    write(TOY_IMAGES, scores, images)


TEXT: dict[str, Any] = {
    "vocab_size": VOCAB,
    "max_position_embeddings": POSITIONS,
    "initializer_range": 0.25,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "bos_token_id": 1,
    "pad_token_id": 0,
}
TOWER: dict[str, Any] = {
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "patch_size": 2,
}


def _tokenizer(marks: dict[str, str]) -> Any:
    """Return a tokenizer that knows the marks of images, and takes every other word for token 0."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    ids = dict(zip(marks.values(), (PLACEHOLDER, BEGIN, END), strict=False))
    unknown = {"unk_token": "<unk>"}
    tokenizer = Tokenizer(models.WordLevel({"<unk>": 0} | ids, **unknown))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **unknown, extra_special_tokens=marks)


def _llava() -> tuple[Any, Any]:
    import transformers

    tower = transformers.CLIPVisionConfig(**TOWER, image_size=6)
    text = transformers.LlamaConfig(**TEXT, tie_word_embeddings=False)
    config = transformers.LlavaConfig(
        text_config=text, vision_config=tower, image_token_index=PLACEHOLDER, tie_word_embeddings=False
    )
    images = transformers.CLIPImageProcessorPil(size={"shortest_edge": 6}, crop_size={"height": 6, "width": 6})
    options = {"patch_size": 2, "vision_feature_select_strategy": "default", "num_additional_image_tokens": 1}
    tokenizer = _tokenizer({"image_token": "<image>"})
    return config, transformers.LlavaProcessor(image_processor=images, tokenizer=tokenizer, **options)


def _gemma3() -> tuple[Any, Any]:
    """An image has more tokens than a sliding window."""
    import transformers

    tower = transformers.SiglipVisionConfig(**TOWER, image_size=12, vision_use_head=False)
    layers = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 8, "query_pre_attn_scalar": 2}
    text = transformers.Gemma3TextConfig(**TEXT, **layers, tie_word_embeddings=False)
    config = transformers.Gemma3Config(
        text_config=text,
        vision_config=tower,
        mm_tokens_per_image=TOKENS,
        boi_token_index=BEGIN,
        eoi_token_index=END,
        image_token_index=PLACEHOLDER,
        tie_word_embeddings=False,
    )
    images = transformers.Gemma3ImageProcessorPil(size={"height": 12, "width": 12})
    tokenizer = _tokenizer({"image_token": "<image_soft_token>", "boi_token": "<start_of_image>", "eoi_token": "<end_of_image>"})
    return config, transformers.Gemma3Processor(image_processor=images, tokenizer=tokenizer, image_seq_length=TOKENS)


REAL: dict[str, Callable[[], tuple[Any, Any]]] = {"llava": _llava, "gemma3": _gemma3}


def make_real(name: str) -> None:
    """Make a random checkpoint of one type with its processor, images and transcripts."""
    import torch
    from transformers import AutoModelForImageTextToText

    torch.manual_seed(11)
    config, processor = REAL[name]()
    model = AutoModelForImageTextToText.from_config(config, dtype=torch.float32, attn_implementation="eager").eval()
    for parameter_name, parameter in model.named_parameters():
        if parameter.ndim == 1:
            parameter.data += 0.1 * torch.randn(parameter.shape)
        elif any(
            part in parameter_name for part in ("vision", "projector", "lm_head")
        ):  # small ones would make little of an image
            parameter.data = 0.4 * torch.randn(parameter.shape)
    folder = HERE / name
    folder.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(folder)
    processor.save_pretrained(folder)
    images = {title: _features(processor, seed) for seed, title in enumerate(("sky", "sea", "sand"))}
    write(name, _scoring(model, name), images, around=name == "gemma3")
    (folder / "generation_config.json").unlink(missing_ok=True)


def _features(processor: Any, seed: int) -> bytes:
    """Return what the processor makes of a picture of random colours."""
    import numpy as np
    from PIL import Image

    colours = np.random.default_rng(seed).integers(0, 256, (12, 12, 3), dtype=np.uint8)
    mark = getattr(processor, "boi_token", None) or processor.image_token
    made = processor(text=[mark], images=[[Image.fromarray(colours)]], return_tensors="pt")
    kinds = {"float32": "F32", "int64": "I64"}
    tensors = {key: value.numpy() for key, value in made.items() if key not in ("input_ids", "attention_mask")}
    return item({key: (kinds[str(value.dtype)], tuple(value.shape), value.tobytes()) for key, value in tensors.items()})


def _scoring(model: Any, name: str) -> SeeingModel:
    """Wrap a transformers model as a function of a row with images."""
    import torch
    from safetensors.torch import load

    def scores(prompt: Sequence[int], items: Sequence[bytes], answer: Sequence[int]) -> list[Scores]:
        ids = torch.tensor([list(prompt)])
        given = {"pixel_values": torch.cat([load(data)["pixel_values"] for data in items])} if items else {}
        kinds = {"token_type_ids": (ids == PLACEHOLDER).long()} if name == "gemma3" else {}
        with torch.inference_mode():
            done = model(input_ids=ids, use_cache=bool(answer), **given, **kinds)
            found = [done.logits[0]]
            for token in answer:  # an id of a placeholder is a token like any other there
                later = {name: torch.zeros(1, 1, dtype=torch.int64) for name in kinds}
                done = model(input_ids=torch.tensor([[token]]), past_key_values=done.past_key_values, use_cache=True, **later)
                found.append(done.logits[0])
        return [dict(enumerate(row)) for row in torch.cat(found).double().tolist()]

    return scores


def make() -> None:
    """Make all checkpoints of models that see images."""
    make_toy()
    for name in REAL:
        make_real(name)
