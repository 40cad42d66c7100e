"""A setting that is given and empty: nothing is taken for it in silence, least of all for a key."""

from __future__ import annotations

import json
from dataclasses import Field, fields
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from tests.serve.process import run
from tgi_core.cli import tgi
from tgi_core.config import Settings, environment_variable, flag
from tgi_core.errors import StartupError
from tgi_core.settings.spec import setting_of

TEXTS = [spec for spec in fields(Settings) if "str" in str(spec.type)]
SECRETS = [spec for spec in fields(Settings) if setting_of(spec).secret]
NO_KEYS = ["", " ", "\t\n", "hunter2\n", " hunter2", "hunter\n2", "hunter2\x7f", "hunter2\udcff"]
"""What guards nothing, or what no client can send."""


def shown(*arguments: str, **environ: str | None) -> Result:
    """`tgi config show`, in this process."""
    return CliRunner().invoke(tgi, ["config", "show", *arguments], env=environ)


def refused(result: Result, words: str) -> None:
    """It ended with an error of one line."""
    assert isinstance(result.exception, StartupError), (result.output, result.exception)
    assert words in str(result.exception) and len(str(result.exception).splitlines()) == 1


@pytest.mark.parametrize("spec", TEXTS, ids=lambda spec: str(spec.name))
@pytest.mark.parametrize("blank", ["", "  ", "\n"])
def test_every_text(spec: Field[Any], blank: str, tmp_path: Path) -> None:
    """As a flag and in a file a blank text is an error that names its flag; in the environment an empty variable is none, unless it is a
    secret's, and one of spaces is as good as empty."""
    known, name, variable = setting_of(spec), flag(spec.name), environment_variable(spec.name)
    file = tmp_path / "f.toml"
    text = json.dumps(blank)
    file.write_text(f"{spec.name} = [{text}]" if "tuple" in str(spec.type) else f"{spec.name} = {text}")
    if known.choices:  # click says itself which there are
        assert shown(name, blank).exit_code == 2
        refused(shown("--config", str(file)), spec.name)
        assert shown(**{variable: blank}).exit_code == (0 if not blank else 2)
        return
    refused(shown(name, blank), f"{name}: is empty")
    refused(shown("--config", str(file)), f"{name}: is empty")
    told = shown(**{variable: blank})
    if "tuple" in str(spec.type) or (not blank and not known.secret):
        assert told.exit_code == 0 and shown().output == told.output
    else:
        refused(told, "is empty")


@pytest.mark.parametrize("spec", SECRETS, ids=lambda spec: str(spec.name))
@pytest.mark.parametrize("key", NO_KEYS)
def test_keys_that_guard_nothing(spec: Field[Any], key: str) -> None:
    """An empty key, one of spaces, with a line break or with bytes that are no text is refused without being shown."""
    with pytest.raises(StartupError, match=f"^{flag(spec.name)}: ") as caught:
        given: dict[str, Any] = {spec.name: key}
        Settings(**given)
    assert "hunter2" not in str(caught.value)


def test_keys_that_guard() -> None:
    """What clients can send is a key: letters of other scripts and spaces inside too."""
    for key in ("k", "Sécret", "two words", "a" * 4096):
        assert Settings(api_key=key).api_key == key


@pytest.mark.parametrize("command", ["serve", "router"])
@pytest.mark.parametrize(("key", "arguments"), [("", []), (" ", []), (None, ["--api-key", ""]), (None, ["--api-key", "  "])])
def test_nobody_serves_openly_by_oversight(command: str, key: str | None, arguments: list[str]) -> None:
    """`API_KEY=` and `--api-key ""`: one line, exit status 1."""
    where = ["--shard", "127.0.0.1:9"] if command == "router" else []
    result = run(command, *where, *arguments, "/not/there", extra={} if key is None else {"API_KEY": key})
    assert result.returncode == 1
    [line] = result.stderr.splitlines()
    assert line.startswith(f"tgi: error: {'API_KEY' if key == '' else '--api-key'}: is empty"), line


def test_a_key_from_elsewhere_counts(tmp_path: Path) -> None:
    """Where a flag or a file gives the key, an empty variable takes nothing away from it."""
    (tmp_path / "f.toml").write_text('api_key = "k"\n')
    for arguments in (["--api-key", "k"], ["--config", str(tmp_path / "f.toml")]):
        assert "# api_key = (hidden)" in shown(*arguments, API_KEY="").output
