"""docs/flags.md, help and completion come from the same fields."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import pytest

from tests.serve.process import environment, run
from tgi_core.config import Settings, flag
from tgi_core.settings.spec import setting_of

HEAVY = {
    "torch",
    "transformers",
    "numpy",
    "fastapi",
    "tgi_router",
    "huggingface_hub",
    "tokenizers",
    "safetensors",
    "rich",
    "pydantic",
}


def test_flags_md_is_up_to_date() -> None:
    """`python -m tgi_core.cli.flag_docs` would write what is there."""
    result = subprocess.run(
        [sys.executable, "-m", "tgi_core.cli.flag_docs", "--check"], capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize(
    ("module", "arguments"),
    [
        ("tgi_core.cli", ["config", "show"]),
        ("tgi_core.cli", ["download-weights", "--help"]),
        ("tgi_core.cli", ["completion", "bash"]),
        ("tgi_core.cli.launcher", ["--help"]),
        ("tgi_core.cli.router", ["--help"]),
        ("tgi_core.cli.server", ["serve", "--help"]),
    ],
)
def test_nothing_heavy_is_loaded(module: str, arguments: list[str]) -> None:
    """What only reads settings imports neither router nor model libraries."""
    code = f"import sys; from {module} import main; sys.argv[1:] = {arguments}\ntry: main()\nfinally: print(*sys.modules)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment())
    assert not HEAVY & set(result.stdout.splitlines()[-1].split())


@pytest.mark.parametrize("columns", ["80", "160"])
def test_help_has_groups(columns: str) -> None:
    """Each setting stands once, under its group; hidden ones do not."""
    text = run("serve", "--help", extra={"COLUMNS": columns}).stdout
    assert [line for line in text.splitlines() if line in ("Model:", "HTTP:", "Limits:", "Logs:")] == [
        "Model:",
        "HTTP:",
        "Limits:",
        "Logs:",
    ]
    for name, spec in Settings.__dataclass_fields__.items():
        lines = [line for line in text.splitlines() if line.startswith("  -") and flag(name) in line.split()[:3]]
        assert len(lines) == (0 if setting_of(spec).hidden else 1), name


def test_an_unknown_flag_suggests_the_nearest() -> None:
    """Exit status 2, and the flag that was probably meant."""
    result = run("serve", "--max-totl-tokens", "5")
    assert result.returncode == 2 and "--max-total-tokens" in result.stderr


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts(shell: str) -> None:
    """The shell itself finds no fault with its script."""
    script = run("completion", shell).stdout
    assert "_TGI_COMPLETE" in script
    if shutil.which(shell):
        subprocess.run([shell, "-n"], input=script, text=True, check=True, capture_output=True)


def test_completion_completes() -> None:
    """Commands and flags, as bash asks for them."""
    for words, number, expected in (("tgi ser", "1", "serve"), ("tgi serve --max-tot", "2", "--max-total-tokens")):
        extra = {"_TGI_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": number, "PATH": os.environ["PATH"]}
        assert f"plain,{expected}" in run(extra=extra).stdout.splitlines()


@pytest.mark.parametrize("command", [("serve",), ("config", "show")])
def test_a_switch_that_is_on_shows_its_default(command: tuple[str, ...]) -> None:
    """The default of --prefix-caching is `on`, not the name of the flag."""
    text = " ".join(run(*command, "--help").stdout.split())
    help_text = text[text.index("--prefix-caching / --no-prefix-caching") :].split("]")[0]
    assert help_text.endswith("default: (on)")
