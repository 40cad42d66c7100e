"""TGI's own command lines are understood word by word, with TGI's variables and defaults."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import click
import pytest

from tests.serve.process import ServerProcess, environment, run
from tgi_core.cli.launcher import launcher
from tgi_core.cli.options import SettingOption
from tgi_core.cli.router import router
from tgi_core.cli.server import server
from tgi_core.model_files import DEMO

OPENAPI = Path(__file__).parents[2] / "docs/openapi.json"
LAUNCHER = """--model-id m --revision r --validation-workers 2 --sharded true --num-shard 2 --quantize bitsandbytes-nf4 --speculate 2
--dtype bfloat16 --kv-cache-dtype fp8_e5m2 --trust-remote-code --max-concurrent-requests 128 --max-best-of 2 --max-stop-sequences 4
--max-top-n-tokens 5 --max-input-tokens 9 --max-total-tokens 10 --waiting-served-ratio 0.3 --max-batch-prefill-tokens 4096
--max-batch-total-tokens 9999 --max-waiting-tokens 20 --max-batch-size 8 --cuda-graphs 1,2,4 --hostname 0.0.0.0 --port 80
--prometheus-port 9000 --shard-uds-path /tmp/x --master-addr localhost --master-port 29500 --huggingface-hub-cache /data
--weights-cache-override /w --disable-custom-kernels --cuda-memory-fraction 1.0 --rope-scaling dynamic --rope-factor 2.0 --json-output
--otlp-endpoint http://o:4317 --otlp-service-name s --cors-allow-origin a --cors-allow-origin b --api-key k --watermark-gamma 0.5
--watermark-delta 2.0 --ngrok --ngrok-authtoken t --ngrok-edge e --tokenizer-config-path p --disable-grammar-support --env
--max-client-batch-size 4 --lora-adapters a/b,n=/p --usage-stats off --payload-limit 2000000 --enable-prefill-logprobs
--graceful-termination-timeout 90"""
ROUTER = """--max-concurrent-requests 128 --max-best-of 2 --max-stop-sequences 4 --max-top-n-tokens 5 --max-input-tokens 1
--max-total-tokens 2 --waiting-served-ratio 1.2 --max-batch-prefill-tokens 4096 --max-batch-total-tokens 9 --max-waiting-tokens 20
--max-batch-size 1 --hostname 0.0.0.0 -p 3000 --prometheus-port 9000
--master-shard-uds-path /tmp/text-generation-server-0 --tokenizer-name bigscience/bloom
--tokenizer-config-path p --revision r --trust-remote-code --validation-workers 2 --api-key k --json-output --otlp-endpoint o
--otlp-service-name s --cors-allow-origin a --ngrok --ngrok-authtoken t --ngrok-edge e --disable-grammar-support
--max-client-batch-size 4 --usage-stats on --payload-limit 2000000 --max-image-fetch-size 1073741824"""
SERVE = """m --revision r --sharded --quantize gptq --speculate 1 --dtype float16 --kv-cache-dtype fp8_e4m3fn --trust-remote-code
--uds-path /tmp/x --logger-level INFO --json-output --otlp-endpoint o --otlp-service-name s --max-input-tokens 5"""
DOWNLOAD = """m --revision r --extension .safetensors --auto-convert --logger-level INFO --json-output --trust-remote-code --merge-lora"""
QUANTIZE = """m out --revision main --logger-level INFO --json-output --trust-remote-code --upload-to-model-id u --percdamp 0.01
--act-order --groupsize 128"""


@pytest.mark.parametrize(
    ("command", "line"),
    [
        (launcher, LAUNCHER),
        (router, ROUTER),
        (server.commands["serve"], SERVE),
        (server.commands["download-weights"], DOWNLOAD),
        (server.commands["quantize"], QUANTIZE),
    ],
    ids=["launcher", "router", "serve", "download-weights", "quantize"],
)
def test_every_flag_is_understood(command: click.Command, line: str) -> None:
    """The whole line parses, and each long flag has a meaning of its own."""
    context = command.make_context("tgi", line.split())
    flags = [word for word in line.split() if word.startswith("--")]
    names = {name: param.name for param in command.params for name in param.opts}
    assert len({names[word] for word in flags}) == len(set(flags)) and context.params


def test_every_flag_of_the_launcher_has_its_variable() -> None:
    """Upper snake case of the flag, as in TGI; --env alone has none."""
    options = {name: param for param in launcher.params for name in param.opts if isinstance(param, SettingOption)}
    for word in LAUNCHER.split():
        if word.startswith("--") and word != "--env":
            variables = options[word].envvar
            assert word[2:].replace("-", "_").upper() in (variables or ()), word


@pytest.mark.parametrize(
    ("command", "name", "default"),
    [
        (launcher, "waiting_served_ratio", 0.3),
        (router, "waiting_served_ratio", 1.2),
        (router, "max_batch_prefill_tokens", 4096),
        (launcher, "model_id", "bigscience/bloom-560m"),
        (router, "tokenizer_name", "bigscience/bloom"),
        (launcher, "auto_convert", True),
        (launcher, "max_concurrent_requests", 128),
        (launcher, "graceful_termination_timeout", 90),
        (launcher, "payload_limit", 2_000_000),
        (launcher, "port", 3000),
        (server.commands["download-weights"], "extension", ".safetensors"),
        (server.commands["quantize"], "groupsize", 128),
    ],
)
def test_defaults_are_those_of_tgi(command: click.Command, name: str, default: object) -> None:
    """Also where the launcher and the router of TGI differ."""
    assert next(param for param in command.params if param.name == name).default == default


def program(name: str) -> tuple[str, ...]:
    """An installed script."""
    return (str(Path(sys.executable).with_name(name)),)


def test_the_launcher_serves() -> None:
    """`text-generation-launcher --model-id DIRECTORY --env` prints the versions and serves."""
    command = [*program("text-generation-launcher"), "--model-id", str(DEMO), "--backend", "reference", "--env"]
    child = subprocess.Popen(
        [*command, "--hostname", "127.0.0.1", "--port", "0"], stderr=subprocess.PIPE, text=True, env=environment()
    )
    running = ServerProcess(child)
    try:
        running.wait_ready(60)
    finally:
        running.close()
    assert "Runtime environment:\n" in running.lines and [line for line in running.lines if "backend reference: tgi-core" in line]


def test_what_cannot_be_done_is_said() -> None:
    """One line that names the flag, and exit status 1, before anything slow."""
    cases = {
        "text-generation-router": (
            ["--tokenizer-name", str(DEMO), "--master-shard-uds-path", "/not/there"],
            "/not/there: No such file",
        ),
        "text-generation-server": (["quantize", str(DEMO), "out", "--upload-to-model-id", "o/m"], "nothing is uploaded"),
    }
    for name, (arguments, says) in cases.items():
        result = run(*arguments, tgi=program(name))
        assert result.returncode == 1 and result.stderr.splitlines()[-1].startswith(f"{name}: error: "), result.stderr
        assert says in result.stderr
    sharded = run("serve", "o/m", "--sharded", tgi=program("text-generation-server"), extra={"WORLD_SIZE": "2"})
    assert sharded.returncode == 1 and "tgi shard --num-shard 2" in sharded.stderr
    quantized = run("serve", str(DEMO), "--quantize", "gptq", tgi=program("text-generation-server"))
    assert quantized.returncode == 1 and f"--quantize gptq: {DEMO} holds no quantized weights" in quantized.stderr


def test_the_server_downloads() -> None:
    """`text-generation-server download-weights DIRECTORY` as TGI's launcher calls it; other extensions are refused."""
    arguments = [
        "download-weights",
        str(DEMO),
        "--extension",
        ".safetensors",
        "--logger-level",
        "INFO",
        "--json-output",
        "--merge-lora",
    ]
    result = run(*arguments, tgi=program("text-generation-server"))
    assert result.stdout.strip() == str(DEMO), result.stderr
    result = run("download-weights", "o/m", "--extension", ".bin", tgi=program("text-generation-server"))
    assert result.returncode == 1 and "--extension .bin" in result.stderr


def test_print_schema() -> None:
    """The OpenAPI document of docs/openapi.json."""
    result = run("print-schema", tgi=program("text-generation-router"))
    assert result.returncode == 0 and result.stdout == OPENAPI.read_text(), result.stderr
