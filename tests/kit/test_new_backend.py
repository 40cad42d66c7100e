"""What `tgi-conformance new-backend` writes is short, clean and green as it is; a bad name or a full folder is one line."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from tgi_conformance.cli import main
from tgi_conformance.kit.writing import TEMPLATE, new_backend

from tests.kit.environment import Environment
from tgi_core.backend import API_VERSION

RUFF = Path(sys.executable).with_name("ruff")


def write(*arguments: str) -> Result:
    """The command."""
    return CliRunner().invoke(main, ["new-backend", *arguments])


@pytest.mark.parametrize("name", ["acme", "x9", "a-rather-long-chip-name"])
def test_it_is_complete_clean_and_short(name: str, tmp_path: Path) -> None:
    """Entry point, plugin, session, errors, test, workflow, image, README: nothing of the template's name is left, ruff is content."""
    folder = tmp_path / name
    assert write(name, "--out", str(folder)).exit_code == 0
    package = f"tgi_backend_{name.replace('-', '_')}"
    files = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    assert files == {
        *(f"{package}/{part}.py" for part in ("__init__", "plugin", "device", "session", "errors")),
        *(
            "pyproject.toml",
            "README.md",
            "Dockerfile",
            ".gitignore",
            ".github/workflows/conformance.yml",
            "tests/test_conformance.py",
        ),
    }
    project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    assert project["name"] == f"tgi-backend-{name}" and project["entry-points"]["tgi.backends"] == {name: f"{package}.plugin"}
    texts = [path.read_text() for path in folder.rglob("*") if path.is_file()]
    assert not any("mydevice" in text for text in texts)
    assert sum(len(path.read_text().splitlines()) for path in folder.rglob("*.py")) <= 300
    assert len((folder / "tests/test_conformance.py").read_text().strip().splitlines()) == 3
    for command in (["check", "--no-cache"], ["format", "--check", "--no-cache"]):
        done = subprocess.run([RUFF, *command, folder], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout
    built = f"api_built=({API_VERSION[0]}, {API_VERSION[1]})"  # raise it in the template, and show what is new there
    assert built in (folder / package / "plugin.py").read_text()


@pytest.mark.parametrize(
    "name",
    [
        "",
        "Acme",
        "9x",
        "a_b",
        "a--b",
        "a-",
        "-a",
        "../a",
        "a/b",
        "a b",
        "acmé",
        "a" * 25,
        "acme;ls",
        "reference",
        "mutant",
        "none",
    ],
)
def test_bad_names(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Status 2 and one line that names NAME; nothing is written."""
    monkeypatch.chdir(tmp_path)
    done = write("--", name)
    assert done.exit_code == 2 and done.stderr.startswith("Error: NAME ") and done.stderr.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    """A folder that holds something is left as it is, and so is a file; an empty folder will do."""
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "plugin.py").write_text("mine")
    (tmp_path / "file").write_text("mine")
    (tmp_path / "empty").mkdir()
    for name in ("full", "file", "file/below"):
        done = write("acme", "--out", str(tmp_path / name))
        assert done.exit_code == 2 and done.stderr.startswith("Error: ") and done.stderr.count("\n") == 1
    assert (tmp_path / "full" / "plugin.py").read_text() == (tmp_path / "file").read_text() == "mine"
    assert len(list(tmp_path.rglob("*"))) == 4
    assert write("acme", "--out", str(tmp_path / "empty")).exit_code == 0


def test_what_tools_leave_in_the_template_is_not_copied(tmp_path: Path) -> None:
    """Caches of linters and interpreters beside the template."""
    before = len(new_backend("acme", tmp_path / "one"))
    copy = Path(shutil.copytree(TEMPLATE, tmp_path / "template"))
    for inside in ("__pycache__", ".ruff_cache", "tgi_backend_mydevice/__pycache__"):
        (copy / inside).mkdir(exist_ok=True)
        (copy / inside / "left.pyc").write_bytes(b"\x89")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tgi_conformance.kit.writing.TEMPLATE", copy)
        assert len(new_backend("acme", tmp_path / "two")) == before


def test_its_own_test_and_its_errors(tmp_path: Path) -> None:
    """Installed under a name with hyphens, its three lines of test pass up to L2, and its table maps what it names."""
    environment = Environment.make(tmp_path / "home")
    new_backend("my-chip", tmp_path / "my-chip")
    environment.install("--no-deps", str(tmp_path / "my-chip"))
    done = environment.run("pytest", "-q", "-x", str(tmp_path / "my-chip"), cwd=tmp_path)
    assert done.returncode == 0 and "passed" in done.stdout, done.stdout + done.stderr
    code = """
from tgi_backend_my_chip.errors import TABLE, translated
for foreign, kind in TABLE:
    try:
        with translated():
            raise foreign("two\\nlines")
    except kind as error:
        assert str(error) == "two lines" and type(error) is kind, error
try:
    with translated():
        raise ZeroDivisionError
except ZeroDivisionError:
    print("mapped")
"""
    assert environment.run("python", "-c", code).stdout == "mapped\n"
