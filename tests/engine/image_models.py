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
from transformers.models.paligemma.processing_paligemma import EXTRA_TOKENS

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
    for name, parameter in model.named_parameters():
        # a projection or a gate that begins with zeros would hide the image
        if (parameter.ndim > 1 or name.endswith("gate")) and not parameter.any():
            torch.nn.init.normal_(parameter, std=0.3)
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


def _idefics2(tokenizer: Any) -> tuple[Any, ProcessorMixin]:
    text = _text(tokenizer, "<fake_token_around_image>", "<image>", "<end_of_utterance>")
    tower = transformers.models.idefics2.Idefics2VisionConfig(**_TOWER, patch_size=7)
    perceiver = {
        "resampler_n_latents": 4,
        "resampler_depth": 1,
        "resampler_n_heads": 2,
        "resampler_head_dim": 16,
        "num_key_value_heads": 1,
    }
    id = tokenizer.convert_tokens_to_ids("<image>")
    config = transformers.Idefics2Config(
        text_config=text, vision_config=tower, perceiver_config={"hidden_size": 32, **perceiver}, image_token_id=id
    )
    images = _images("idefics2", size={"shortest_edge": 14, "longest_edge": 28}, do_image_splitting=False)
    return config, _processor("Idefics2Processor", tokenizer, image_processor=images, image_seq_len=4)


def _aya_vision(tokenizer: Any) -> tuple[Any, ProcessorMixin]:
    marks = ("<image>", "<|IMG_PATCH|>", "<|START_OF_IMG|>", "<|END_OF_IMG|>", "<|IMG_LINE_BREAK|>", "TILE", "TILE_GLOBAL")
    _text(tokenizer, *marks)
    text = transformers.Cohere2Config(
        vocab_size=len(tokenizer), **_TEXT, sliding_window=64, pad_token_id=0, bos_token_id=1, eos_token_id=2
    )
    tower = transformers.SiglipVisionConfig(**_TOWER, patch_size=7)
    id = tokenizer.convert_tokens_to_ids("<|IMG_PATCH|>")
    config = transformers.AyaVisionConfig(
        text_config=text, vision_config=tower, image_token_index=id, downsample_factor=2, adapter_layer_norm_eps=1e-6
    )
    images = _images("aya_vision", size={"height": 28, "width": 28}, crop_to_patches=True, max_patches=4)
    return config, _processor(
        "AyaVisionProcessor", tokenizer, image_processor=images, patch_size=7, img_size=28, downsample_factor=2
    )


def _paligemma(tokenizer: Any, decoder: Any = transformers.GemmaConfig, **options: Any) -> tuple[Any, ProcessorMixin]:
    """Its prompts see their own future."""
    tokenizer.add_special_tokens({"additional_special_tokens": ["<image>"]})
    tokenizer.add_tokens(EXTRA_TOKENS)  # as its processor does
    id = tokenizer.convert_tokens_to_ids("<image>")
    text = decoder(vocab_size=len(tokenizer), **_TEXT, **options)
    tower = transformers.SiglipVisionConfig(**_TOWER, patch_size=7)
    config = transformers.PaliGemmaConfig(text_config=text, vision_config=tower, image_token_index=id, projection_dim=32)
    config.vocab_size = len(tokenizer)
    images = _images("paligemma", size={"height": 28, "width": 28})
    images.image_seq_length = 16
    return config, _processor("PaliGemmaProcessor", tokenizer, image_processor=images)


def _paligemma2(tokenizer: Any) -> tuple[Any, ProcessorMixin]:
    """Prompts are longer than what layers with sliding windows see of an answer."""
    options = {"sliding_window": 12, "query_pre_attn_scalar": 16, "pad_token_id": 0}
    return _paligemma(tokenizer, transformers.Gemma2Config, **options)


def _mllama(tokenizer: Any) -> tuple[Any, ProcessorMixin]:
    """Layers look at images; the placeholder has no logit, since its id is beyond the vocabulary."""
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|python_tag|>", "<|image|>"]})
    sizes = {name: value for name, value in _TEXT.items() if name != "head_dim"} | {"hidden_size": 64, "num_hidden_layers": 4}
    text = transformers.models.mllama.MllamaTextConfig(
        vocab_size=len(tokenizer) - 1, **sizes, cross_attention_layers=[1, 3], pad_token_id=0, bos_token_id=1, eos_token_id=2
    )
    tower = transformers.models.mllama.MllamaVisionConfig(
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=3,
        num_global_layers=1,
        attention_heads=2,
        image_size=28,
        patch_size=7,
        vision_output_dim=48,
        intermediate_layers_indices=[0, 2],
        initializer_range=0.3,
    )
    id = tokenizer.convert_tokens_to_ids("<|image|>")
    config = transformers.MllamaConfig(text_config=text, vision_config=tower, image_token_index=id)
    images = _images("mllama", size={"height": 28, "width": 28}, max_image_tiles=4)
    return config, _processor("MllamaProcessor", tokenizer, image_processor=images)


def _gemma3(tokenizer: Any) -> tuple[Any, ProcessorMixin]:
    """Tokens of an image see each other. An image has more tokens than the layers with sliding windows see."""
    marks = {"boi_token": "<start_of_image>", "eoi_token": "<end_of_image>", "image_token": "<image_soft_token>"}
    tokenizer.add_special_tokens({"additional_special_tokens": list(marks.values())})
    tokenizer._set_model_specific_special_tokens(marks)
    begins, ends, id = map(tokenizer.convert_tokens_to_ids, marks.values())
    layers = {"num_hidden_layers": 3, "layer_types": ["sliding_attention", "full_attention", "sliding_attention"]}
    text = transformers.Gemma3TextConfig(
        vocab_size=len(tokenizer), **_TEXT | layers, sliding_window=12, query_pre_attn_scalar=16, pad_token_id=0
    )
    tower = transformers.SiglipVisionConfig(**_TOWER, patch_size=7, vision_use_head=False)
    config = transformers.Gemma3Config(
        text_config=text,
        vision_config=tower,
        mm_tokens_per_image=16,
        boi_token_index=begins,
        eoi_token_index=ends,
        image_token_index=id,
    )
    images = _images("gemma3", size={"height": 28, "width": 28})
    return config, _processor("Gemma3Processor", tokenizer, image_processor=images, image_seq_length=16)


def _qwen(tokenizer: Any, config: Any, processor: str, tower: dict[str, Any]) -> tuple[Any, ProcessorMixin]:
    """Positions with three axes."""
    marks = {"image_token_id": "<|image_pad|>", "video_token_id": "<|video_pad|>", "vision_start_token_id": "<|vision_start|>"}
    _text(tokenizer, *marks.values(), "<|vision_end|>")
    text = {name: value for name, value in _TEXT.items() if name != "head_dim"} | {"hidden_size": 64}
    rope = {"rope_type": "default", "type": "mrope", "mrope_section": [2, 3, 3], "rope_theta": 10_000.0}
    ids = {name: tokenizer.convert_tokens_to_ids(token) for name, token in marks.items()}
    made = config(
        text_config={"vocab_size": len(tokenizer), "bos_token_id": 1, "eos_token_id": 2, "rope_scaling": rope, **text},
        vision_config={"depth": 2, "num_heads": 2, "patch_size": 7, "spatial_merge_size": 2} | tower,
        vision_end_token_id=tokenizer.convert_tokens_to_ids("<|vision_end|>"),
        **ids,
    )
    sizes = {"patch_size": 7, "min_pixels": 28 * 28, "max_pixels": 70 * 70}
    videos = transformers.Qwen2VLVideoProcessor(patch_size=7)
    images = transformers.Qwen2VLImageProcessor(**sizes)
    return made, _processor(processor, tokenizer, image_processor=images, video_processor=videos)


def _qwen2_vl(tokenizer: Any) -> tuple[Any, ProcessorMixin]:
    tower = {"embed_dim": 16, "hidden_size": 64, "mlp_ratio": 2}
    return _qwen(tokenizer, transformers.Qwen2VLConfig, "Qwen2VLProcessor", tower)


def _qwen2_5_vl(tokenizer: Any) -> tuple[Any, ProcessorMixin]:
    sizes = {"hidden_size": 16, "intermediate_size": 32, "out_hidden_size": 64}
    tower = {**sizes, "window_size": 28, "fullatt_block_indexes": [1]}
    return _qwen(tokenizer, transformers.Qwen2_5_VLConfig, "Qwen2_5_VLProcessor", tower)


def _qwen3_vl(tokenizer: Any) -> tuple[Any, ProcessorMixin]:
    """Its first layers get features, too."""
    sizes = {"hidden_size": 16, "intermediate_size": 32, "out_hidden_size": 64, "num_position_embeddings": 16}
    tower = {**sizes, "depth": 3, "deepstack_visual_indexes": [0, 1], "temporal_patch_size": 2}
    return _qwen(tokenizer, transformers.Qwen3VLConfig, "Qwen3VLProcessor", tower)


def _smolvlm(tokenizer: Any) -> tuple[Any, ProcessorMixin]:
    text = _text(tokenizer, "<fake_token_around_image>", "<image>", "<end_of_utterance>", "<global-img>")
    tower = transformers.models.smolvlm.SmolVLMVisionConfig(**_TOWER, patch_size=7)
    id = tokenizer.convert_tokens_to_ids("<image>")
    config = transformers.SmolVLMConfig(text_config=text, vision_config=tower, image_token_id=id, scale_factor=2)
    images = transformers.SmolVLMImageProcessor(size={"longest_edge": 56}, max_image_size={"longest_edge": 28})
    videos = transformers.SmolVLMVideoProcessor(
        size={"longest_edge": 56}, max_image_size={"longest_edge": 28}, fps=1, num_frames=1
    )
    return config, _processor("SmolVLMProcessor", tokenizer, image_processor=images, video_processor=videos, image_seq_len=4)


def _internvl(tokenizer: Any) -> tuple[Any, ProcessorMixin]:
    marks = {
        "start_image_token": "<img>",
        "end_image_token": "</img>",
        "context_image_token": "<IMG_CONTEXT>",
        "video_token": "<video>",
    }
    text = _text(tokenizer, *marks.values())
    tokenizer._set_model_specific_special_tokens(marks)
    tower = transformers.InternVLVisionConfig(**_TOWER | {"image_size": [28, 28]}, patch_size=[7, 7])
    id = tokenizer.convert_tokens_to_ids("<IMG_CONTEXT>")
    config = transformers.InternVLConfig(
        text_config=text, vision_config=tower, image_token_id=id, image_seq_length=4, downsample_ratio=0.5
    )
    images = transformers.GotOcr2ImageProcessor(size={"height": 28, "width": 28}, crop_to_patches=True, max_patches=4)
    videos = transformers.InternVLVideoProcessor(size={"height": 28, "width": 28})
    return config, _processor("InternVLProcessor", tokenizer, image_processor=images, video_processor=videos, image_seq_length=4)


def _mistral3(tokenizer: Any) -> tuple[Any, ProcessorMixin]:
    text = _text(tokenizer, "[IMG]", "[IMG_BREAK]", "[IMG_END]")
    tower = transformers.PixtralVisionConfig(**_TOWER, patch_size=7, head_dim=8)
    config = transformers.Mistral3Config(
        text_config=transformers.MistralConfig(vocab_size=text.vocab_size, **_TEXT),
        vision_config=tower,
        image_token_index=tokenizer.convert_tokens_to_ids("[IMG]"),
        spatial_merge_size=2,
    )
    images = transformers.PixtralImageProcessor(size={"longest_edge": 56}, patch_size={"height": 7, "width": 7})
    return config, _processor("PixtralProcessor", tokenizer, image_processor=images, patch_size=7, spatial_merge_size=2)


FAMILIES: dict[str, Family] = {
    "llava": _llava,
    "llava_next": _llava_next,
    "idefics2": _idefics2,
    "idefics3": _idefics3,
    "aya_vision": _aya_vision,
    "paligemma": _paligemma,
    "paligemma2": _paligemma2,
    "mllama": _mllama,
    "gemma3": _gemma3,
    "qwen2_vl": _qwen2_vl,
    "qwen2_5_vl": _qwen2_5_vl,
    "qwen3_vl": _qwen3_vl,
    "smolvlm": _smolvlm,
    "internvl": _internvl,
    "mistral3": _mistral3,
}
