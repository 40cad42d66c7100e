"""The command line is quick and says what it can do."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import fields

import pytest

from tests.serve.process import run
from tgi_core.config import Settings, environment_variable, flag
from tgi_core.settings.spec import setting_of

HEAVY = ("torch", "transformers", "numpy", "fastapi", "starlette", "tgi_router", "huggingface_hub", "tokenizers")


@pytest.mark.parametrize("arguments", [["--help"], ["serve", "--help"], ["--version"]])
def test_help_loads_nothing_heavy(arguments: list[str]) -> None:
    """Help imports neither the router nor a model library."""
    code = f"import sys; from tgi_core.cli import tgi; sys.argv[1:] = {arguments}\ntry: tgi()\nfinally: print(*sys.modules)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not set(HEAVY) & set(result.stdout.splitlines()[-1].split())


def test_every_setting_has_a_flag_and_a_variable() -> None:
    """The help of `tgi serve` names each setting's flag and environment variable, those for tests of the server excepted."""
    text = " ".join(run("serve", "--help", extra={"COLUMNS": "200"}).stdout.split())
    for spec in fields(Settings):
        shown = flag(spec.name) in text and environment_variable(spec.name) in text
        assert shown is not setting_of(spec).hidden


def test_the_environment_sets_a_flag() -> None:
    """A bound is checked for a value from the environment too, and the flag is named."""
    result = run("serve", extra={"MAX_BEST_OF": "0"})
    assert result.returncode == 1 and "--max-best-of 0: must be at least 1" in result.stderr


def test_the_table_of_backends() -> None:
    """`tgi backends` lists each plugin with its package and status, one line each."""
    lines = run("backends").stdout.splitlines()
    assert lines[0].split()[:4] == ["backend", "package", "API", "status"]
    assert {line.split()[0] for line in lines[1:]} >= {"cpu", "reference"}
    column = lines[0].index("status")
    assert all(line[column - 2 : column] == "  " and line[column] != " " for line in lines), lines
