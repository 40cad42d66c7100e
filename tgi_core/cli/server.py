"""`text-generation-server`: TGI's commands for a shard and its weights."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from tgi_core import __version__
from tgi_core.cli import run as run_command
from tgi_core.cli.download_weights import download
from tgi_core.cli.options import Resolved, SettingsCommand, settings_options
from tgi_core.config import Scope, Settings, settings_in
from tgi_core.errors import StartupError

_SHARD_SETTINGS = frozenset(
    {"revision", "quantize", "speculate", "dtype", "kv_cache_dtype", "compile_cache", "trust_remote_code", "json_output"}
    | {"lora_adapters", "disable_grammar_support"}
    | {"otlp_endpoint", "otlp_service_name", "max_input_tokens", "backend", "memory_fraction", "cuda_memory_fraction"}
    | {"huggingface_hub_cache", "weights_cache_override", "auto_convert"}
)
_LEVEL = click.option("--logger-level", default="INFO", show_default=True, help="Minimum log level.")


@click.group("text-generation-server", context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, "-V", "--version", prog_name="text-generation-server")
def server() -> None:
    """Run a shard or prepare a model's weights."""


@server.command("serve", cls=SettingsCommand)
@click.argument("model_id")
@click.option("--sharded/--no-sharded", help="Shard the model across devices.")
@click.option("--uds-path", default="/tmp/text-generation-server", show_default=True, help="Socket path without -RANK.")  # noqa: S108
@_LEVEL
@settings_options({"otlp_service_name": "text-generation-inference.server"}, _SHARD_SETTINGS)
def serve(model_id: str, sharded: bool, uds_path: str, logger_level: str, resolved: Resolved) -> None:
    """Run the shard of a model on the socket that TGI's router connects to."""
    from tgi_core.cli.shard import run as run_shard
    from tgi_core.server.grpc_address import prepare_unix

    world = os.environ.get("WORLD_SIZE", "1")
    if sharded and world != "1":
        raise StartupError(
            f"--sharded with WORLD_SIZE={world}: torchrun is not supported here; `tgi shard --num-shard {world}` starts all ranks"
        )
    os.environ["LOG_LEVEL"] = logger_level
    run_shard(replace(resolved.settings, model_id=model_id), prepare_unix(Path(f"{uds_path}-0"), shared=True))


@server.command("download-weights", cls=SettingsCommand)
@click.argument("model_id")
@click.option("--extension", default=".safetensors", show_default=True, help="Kind of weight files.")
@click.option("--merge-lora/--no-merge-lora", help="Merge an adapter into its base model.")
@_LEVEL
@settings_options({"auto_convert": True}, settings_in(Scope.DOWNLOAD) - {"model_id"})
def download_weights(model_id: str, extension: str, merge_lora: bool, logger_level: str, resolved: Resolved) -> None:
    """Download a model from the Hub into the cache, and print its directory."""
    if extension != ".safetensors":
        raise StartupError(f"--extension {extension}: only .safetensors is supported; --auto-convert converts .bin files")
    os.environ["LOG_LEVEL"] = logger_level
    download(replace(resolved.settings, model_id=model_id))


@server.command("quantize", cls=SettingsCommand)
@click.argument("model_id")
@click.argument("output_dir")
@click.option("--revision", default="main", show_default=True, help="Hub revision of the model.")
@_LEVEL
@click.option("--json-output/--no-json-output", help="Log one JSON object per line.")
@click.option("--trust-remote-code/--no-trust-remote-code", help="Run code from the model's repository.")
@click.option("--upload-to-model-id", help="Repository to upload the result to.")
@click.option("--percdamp", type=float, default=0.01, show_default=True, help="Dampening, as a fraction of the mean diagonal.")
@click.option("--act-order/--no-act-order", help="Quantize columns in order of activation size.")
@click.option("--groupsize", type=int, default=128, show_default=True, help="Number of columns that share a scale.")
def quantize(model_id: str, output_dir: str, revision: str, json_output: bool, **options: Any) -> None:
    """Quantize a model's weights to 4 bits by GPTQ, as `tgi quantize` does."""
    from tgi_core.cli.quantize import run

    if options["upload_to_model_id"]:
        raise StartupError("--upload-to-model-id: nothing is uploaded; use `hf upload` afterwards")
    os.environ["LOG_LEVEL"] = options["logger_level"]
    settings = replace(Settings(), model_id=model_id, revision=revision, json_output=json_output)
    run(
        settings,
        Path(output_dir),
        "gptq",
        4,
        options["groupsize"],
        None,
        (128, 512),
        act_order=options["act_order"],
        damping=options["percdamp"],
    )


def main() -> None:
    """Entry point of `text-generation-server`."""
    run_command(server, "text-generation-server")
