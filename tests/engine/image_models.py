"""Tiny random models that see images, with processors over the demo model's tokenizer."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers
from PIL import Image
from transformers import AutoTokenizer, LlamaConfig, PreTrainedModel, ProcessorMixin
from transformers.models.auto.image_processing_auto import IMAGE_PROCESSOR_MAPPING_NAMES

from tgi_core.model_files import DEMO

Family = Callable[[Any], tuple[Any, Any]]
"""From a tokenizer to a config and a processor."""

_TEXT = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 1024,
    "initializer_range": 0.3,
}
_TOWER = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 3, "num_attention_heads": 2, "image_size": 28}


def save_model(family: str, directory: Path) -> Path:
    """Save a random model of a family and its processor."""
    tokenizer = AutoTokenizer.from_pretrained(DEMO)
    config, processor = FAMILIES[family](tokenizer)
    torch.manual_seed(1)
    model: PreTrainedModel = transformers.AutoModelForImageTextToText.from_config(config)
    model.generation_config.eos_token_id = None
    model.eval().save_pretrained(directory)
    processor.save_pretrained(directory)
    return directory


def image(seed: int, width: int = 40, height: int = 33) -> Image.Image:
    """A picture of random colours."""
    made = torch.Generator().manual_seed(seed)
    return Image.fromarray(torch.randint(0, 256, (height, width, 3), generator=made, dtype=torch.uint8).numpy())


def _processor(family: str, tokenizer: Any, **options: Any) -> Any:
    return getattr(transformers, family)(tokenizer=tokenizer, **options)


def _images(kind: str, **options: Any) -> Any:
    """An image processor that needs no torchvision."""
    name = IMAGE_PROCESSOR_MAPPING_NAMES[kind]
    name = name["pil"] if isinstance(name, dict) else name[0]
    module = transformers.models.auto.image_processing_auto.get_image_processor_class_from_name(name)
    return module(**options)


def _text(tokenizer: Any, *special: str) -> LlamaConfig:
    tokenizer.add_special_tokens({"additional_special_tokens": list(special)})
    return LlamaConfig(vocab_size=len(tokenizer), **_TEXT)


def _llava(tokenizer: Any) -> tuple[Any, ProcessorMixin]:
    text, tower = _text(tokenizer, "<image>"), transformers.CLIPVisionConfig(**_TOWER, patch_size=7)
    id = tokenizer.convert_tokens_to_ids("<image>")
    config = transformers.LlavaConfig(text_config=text, vision_config=tower, image_token_index=id)
    images = _images("llava", size={"shortest_edge": 28}, crop_size={"height": 28, "width": 28})
    options = {"patch_size": 7, "vision_feature_select_strategy": "default", "num_additional_image_tokens": 1}
    return config, _processor("LlavaProcessor", tokenizer, image_processor=images, **options)


def _llava_next(tokenizer: Any) -> tuple[Any, ProcessorMixin]:
    text, tower = _text(tokenizer, "<image>"), transformers.CLIPVisionConfig(**_TOWER, patch_size=7)
    id, grid = tokenizer.convert_tokens_to_ids("<image>"), [[28, 56], [56, 28], [56, 56]]
    config = transformers.LlavaNextConfig(text_config=text, vision_config=tower, image_token_index=id, image_grid_pinpoints=grid)
    images = _images("llava_next", size={"shortest_edge": 28}, crop_size={"height": 28, "width": 28}, image_grid_pinpoints=grid)
    options = {"patch_size": 7, "vision_feature_select_strategy": "default", "num_additional_image_tokens": 1}
    return config, _processor("LlavaNextProcessor", tokenizer, image_processor=images, **options)


def _idefics3(tokenizer: Any) -> tuple[Any, ProcessorMixin]:
    text = _text(tokenizer, "<fake_token_around_image>", "<image>", "<end_of_utterance>", "<global-img>")
    tower = transformers.models.idefics3.Idefics3VisionConfig(**_TOWER, patch_size=7)
    id = tokenizer.convert_tokens_to_ids("<image>")
    config = transformers.Idefics3Config(text_config=text, vision_config=tower, image_token_id=id, scale_factor=2)
    images = _images("idefics3", size={"longest_edge": 56}, max_image_size={"longest_edge": 28})
    return config, _processor("Idefics3Processor", tokenizer, image_processor=images, image_seq_len=4)


def _paligemma(tokenizer: Any) -> tuple[Any, ProcessorMixin]:
    """Its prompts see their own future."""
    tokenizer.add_special_tokens({"additional_special_tokens": ["<image>"]})
    id = tokenizer.convert_tokens_to_ids("<image>")
    text = transformers.GemmaConfig(vocab_size=len(tokenizer), **_TEXT)
    tower = transformers.SiglipVisionConfig(**_TOWER, patch_size=7)
    config = transformers.PaliGemmaConfig(text_config=text, vision_config=tower, image_token_index=id, projection_dim=32)
    images = _images("paligemma", size={"height": 28, "width": 28})
    images.image_seq_length = 16
    return config, _processor("PaliGemmaProcessor", tokenizer, image_processor=images)


FAMILIES: dict[str, Family] = {"llava": _llava, "llava_next": _llava_next, "idefics3": _idefics3, "paligemma": _paligemma}
