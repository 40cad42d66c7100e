"""The settings of the model and of its weights, which are the first of all settings."""

from __future__ import annotations

from dataclasses import dataclass

from tgi_core.settings.spec import Scope, ignored, setting

EVERY_COMMAND = Scope.ROUTER | Scope.SHARD | Scope.DOWNLOAD


@dataclass(frozen=True, slots=True)
class ModelSettings:
    """What is served, and how it is read."""

    # model
    model_id: str | None = setting(
        None,
        "Model to serve: a local directory, a GGUF file or a Hugging Face Hub id. Default: the bundled demo model.",
        "Model",
        scope=EVERY_COMMAND,
    )
    revision: str | None = setting(None, "Hub revision of the model: a branch, tag or commit.", "Model", scope=EVERY_COMMAND)
    dtype: str = setting(
        "auto",
        "Data type of the weights and the KV cache; auto uses the model's own.",
        "Model",
        choices=("auto", "float32", "bfloat16", "float16"),
        scope=Scope.SHARD,
    )
    quantize: str | None = setting(
        None,
        "Quantize unquantized weights at load: int8, int4 or fp8 (eetq and bitsandbytes are aliases of int8; bitsandbytes-nf4 "
        "and bitsandbytes-fp4 of int4). The format of a quantized checkpoint is read from its files; the flag must match it.",
        "Model",
        choices=(
            *("awq", "compressed-tensors", "eetq", "exl2", "gptq", "marlin", "bitsandbytes"),
            *("bitsandbytes-nf4", "bitsandbytes-fp4", "fp8", "int8", "int4"),
        ),
        scope=Scope.SHARD,
    )
    tokenizer_config_path: str | None = setting(None, "File to use instead of the model's tokenizer_config.json.", "Model")
    served_model_name: str | None = setting(None, "Model name that the API reports. Default: the value of --model-id.", "Model")
    trust_remote_code: bool = ignored(
        False,
        "Run Python code from the model's repository.",
        "Model",
        "code from model repositories is never run; models that require it do not load",
        scope=EVERY_COMMAND,
    )
    lora_adapters: str | None = setting(
        None,
        "Comma-separated LoRA adapters to serve: HUB_ID, HUB_ID@REVISION or NAME=PATH.",
        "Model",
        scope=Scope.SHARD | Scope.DOWNLOAD,
    )
    draft_model: str | None = setting(
        None,
        "Model that drafts tokens: a smaller one with the same tokenizer, or speculation heads (Medusa, MLPSpeculator, EAGLE-3); a local "
        "directory or a Hugging Face Hub id. Default: the heads in --model-id, if it is a checkpoint of heads.",
        "Model",
        scope=Scope.SHARD | Scope.DOWNLOAD,
    )
    rope_scaling: str | None = setting(
        None,
        "RoPE scaling that overrides the model's config.json. linear multiplies the context length by --rope-factor; dynamic changes "
        "nothing, because requests cannot exceed the model's own context length. Default: linear with --rope-factor, otherwise the "
        "model's own.",
        "Model",
        choices=("linear", "dynamic"),
        scope=Scope.SHARD,
    )
    rope_factor: float | None = setting(
        None, "RoPE scaling factor. Default: 1 with --rope-scaling.", "Model", minimum=1.0, scope=Scope.SHARD
    )
    # weights
    huggingface_hub_cache: str | None = setting(
        None, "Hub cache directory. Default: the one huggingface_hub uses.", "Weights", scope=EVERY_COMMAND
    )
    weights_cache_override: str | None = setting(
        None, "Directory with the weight files of a Hub model.", "Weights", scope=EVERY_COMMAND
    )
    auto_convert: bool = setting(
        False,
        "Convert .bin weights if the model has no safetensors; the files are read without executing pickled code.",
        "Weights",
        scope=EVERY_COMMAND,
    )
