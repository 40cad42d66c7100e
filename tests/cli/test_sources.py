"""Flag before environment before file before default, and `tgi config show` says which it was."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest

from tests.serve.process import run
from tgi_core.config import Settings


def shown(*arguments: str, extra: dict[str, str] | None = None) -> dict[str, tuple[str, str]]:
    """Value and origin of each setting, as printed."""
    result = run("config", "show", "--origin", *arguments, extra=extra)
    assert result.returncode == 0, result.stderr
    rows = [line.rsplit("  # ", 1) for line in result.stdout.splitlines()]
    settings = (row[0].removeprefix("# ").split("=", 1) for row in rows)
    return {name.strip(): (value.strip(), row[1]) for (name, value), row in zip(settings, rows, strict=True)}


def test_precedence(tmp_path: Path) -> None:
    """Each source covers the one below it; every setting is shown."""
    file = tmp_path / "tgi.toml"
    file.write_text("port = 1\nmax-best-of = 3\n")
    assert shown().keys() == Settings.__dataclass_fields__.keys()
    assert shown()["port"] == ("3000", "default")
    from_file = ["--config", str(file)]
    assert shown(*from_file)["port"] == ("1", f"file {file}") and shown(*from_file)["max_best_of"] == ("3", f"file {file}")
    assert shown(*from_file, extra={"PORT": "2"})["port"] == ("2", "environment PORT")
    assert shown(*from_file, "-p", "4", extra={"PORT": "2"})["port"] == ("4", "flag --port")
    assert shown(extra={"TGI_CONFIG": str(file)})["port"] == ("1", f"file {file}")
    assert shown(extra={"PORT": ""})["port"] == ("3000", "default"), "an empty variable is none, as charts set them"


def test_switches_and_lists(tmp_path: Path) -> None:
    """A switch of the environment can be undone by a flag; lists come from all sources."""
    assert shown("--no-json-output", extra={"JSON_OUTPUT": "true"})["json_output"] == ("false", "flag --json-output")
    assert shown(extra={"SHARDED": "false"})["sharded"] == ("false", "environment SHARDED")
    assert shown(extra={"CUDA_GRAPHS": "1,2"})["cuda_graphs"][0] == "[1, 2]"
    assert shown(extra={"CORS_ALLOW_ORIGIN": "a,b"})["cors_allow_origin"][0] == '["a", "b"]'
    (tmp_path / "f.json").write_text(json.dumps({"cors_allow_origin": ["a", "b"], "cuda_graphs": [4]}))
    both = shown("--config", str(tmp_path / "f.json"))
    assert both["cors_allow_origin"][0] == '["a", "b"]' and both["cuda_graphs"][0] == "[4]"
    assert shown(extra={"HPU_MEMORY_FRACTION": "0.5"})["cuda_memory_fraction"] == ("0.5", "environment HPU_MEMORY_FRACTION")


def test_the_model() -> None:
    """MODEL goes before MODEL_ID; two different ones on the command line are an error."""
    assert shown("a/b", extra={"MODEL_ID": "c/d"})["model_id"] == ('"a/b"', "argument MODEL")
    assert shown("a/b", "--model-id", "a/b")["model_id"][0] == '"a/b"'
    result = run("config", "show", "a/b", "--model-id", "c/d")
    assert result.returncode == 1 and "MODEL a/b" in result.stderr and "--model-id c/d" in result.stderr


def test_an_old_name() -> None:
    """--max-input-length is --max-input-tokens; both are an error, as in TGI, wherever they come from."""
    assert shown("--max-input-length", "9")["max_input_tokens"] == ("9", "flag --max-input-length")
    result = run("config", "show", "--max-input-tokens", "9", extra={"MAX_INPUT_LENGTH": "8"})
    assert result.returncode == 1 and "--max-input-tokens and --max-input-length are names of the same setting" in result.stderr


def test_the_output_is_a_file_of_settings(tmp_path: Path) -> None:
    """What is printed can be used as --config, and gives the same settings; a secret is in neither form."""
    extra = {"API_KEY": "s3cret", "NGROK_AUTHTOKEN": "t0ken", "MAX_TOTAL_TOKENS": "64", "SERVED_MODEL_NAME": 'a "b" ü'}
    printed = run("config", "show", "--cuda-graphs", "0", extra=extra).stdout
    assert "s3cret" not in printed and "t0ken" not in printed and "# api_key = (hidden)" in printed
    assert tomllib.loads(printed)["served_model_name"] == 'a "b" ü'
    (tmp_path / "f.toml").write_text(printed)
    again = run("config", "show", "--config", str(tmp_path / "f.toml"))
    assert again.stdout.replace("api_key =", "api_key = (hidden)").replace("authtoken =", "authtoken = (hidden)") == printed


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("f.toml", "prot = 1", ["prot", "unknown setting", "did you mean port?"]),
        ("f.toml", "port = 'many'", ["port", "many"]),
        ("f.toml", "port = 99999", ["--port 99999", "65535"]),
        ("f.toml", "dtype = 'int3'", ["dtype", "int3"]),
        ("f.toml", "cuda_graphs = ['x']", ["cuda_graphs", "x"]),
        ("f.toml", "[port]\nx = 1", ["port", "must not be nested"]),
        ("f.toml", "max-best-of = 1\nmax_best_of = 2", ["max_best_of", "twice"]),
        ("f.toml", "port =", ["f.toml", "Invalid value"]),
        ("f.json", "{", ["f.json"]),
        ("f.json", "[1]", ["f.json", "list"]),
        ("f.yaml", "a: [", ["f.yaml", "YAML"]),
    ],
)
def test_a_broken_file(tmp_path: Path, name: str, text: str, says: list[str]) -> None:
    """One line names the file, the key and what is wrong."""
    (tmp_path / name).write_text(text)
    result = run("config", "show", "--config", str(tmp_path / name))
    assert result.returncode == 1 and len(result.stderr.splitlines()) == 1, result.stderr
    assert not [item for item in says if item not in result.stderr], result.stderr


def test_yaml_and_a_missing_file(tmp_path: Path) -> None:
    """YAML is read as a chart writes it; a file that is not there is named."""
    (tmp_path / "f.yml").write_text("port: 7\napi_key:\nmax-total-tokens: 32\n")
    read = shown("--config", str(tmp_path / "f.yml"))
    assert read["port"][0] == "7" and read["max_total_tokens"][0] == "32" and read["api_key"][1] == "default"
    result = run("config", "show", "--config", "/not/there.toml")
    assert result.returncode == 1 and "/not/there.toml" in result.stderr
