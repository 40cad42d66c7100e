"""The repository's own rules: the size of its files, and the paths that CONTRIBUTING.md names."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from scripts import module_docs

ROOT = Path(__file__).parents[2]
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
SOURCES = ("*.py", "*.h", "*.cpp", "*.proto", "*.toml", "*.yml", "Dockerfile.*")
ENDINGS = (".py", ".h", ".cpp", ".md", ".json", ".yml")
LONGER = ("_pb2.py", "tgi_core/backend/types.py")
"""Ends of the paths that may be longer: generated stubs, and the contract's types, which are kept on one page."""


def test_no_file_has_more_than_400_lines() -> None:
    """Python files have at most 400 lines, except those that CONTRIBUTING.md names."""
    listed = subprocess.run(["git", "ls-files", "*.py"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    files = [name for name in listed if not name.endswith(LONGER) and (ROOT / name).exists()]
    lengths = {name: len((ROOT / name).read_text(encoding="utf-8").splitlines()) for name in files}
    assert files and {name: lines for name, lines in lengths.items() if lines > 400} == {}


def test_contributing_names_paths_that_exist() -> None:
    """Each path and each test that CONTRIBUTING.md names exists, as seen from the root."""
    quoted = [word for code in re.findall(r"`([^`\n]+)`", CONTRIBUTING) for word in code.split()]
    paths = [word for word in quoted if "/" in word and re.fullmatch(r"[\w./-]+", word) and not word.startswith(("/", "build/"))]
    assert len(paths) > 80
    assert [path for path in paths if not (ROOT / path).exists()] == []


def test_contributing_names_targets_that_exist() -> None:
    """Each `make` target and module that CONTRIBUTING.md names exists."""
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets, modules = re.findall(r"`make ([\w-]+)", CONTRIBUTING), re.findall(r"`python -m ([\w.]+)", CONTRIBUTING)
    assert targets and modules
    assert [name for name in targets if not re.search(rf"^{name}:", makefile, re.MULTILINE)] == []
    paths = {name: name.replace(".", "/") for name in modules}
    files = {name: [f"{path}.py", f"{path}/__main__.py", f"conformance-tests/{path}.py"] for name, path in paths.items()}
    assert [name for name, places in files.items() if not any((ROOT / place).exists() for place in places)] == []


def test_contributing_names_code_that_exists() -> None:
    """Each class, function and setting that an entry of CONTRIBUTING.md names is a word of the sources."""
    listed = subprocess.run(["git", "ls-files", *SOURCES], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    words = {word for name in listed for word in re.findall(r"\w+", (ROOT / name).read_text(encoding="utf-8"))}
    _, entries = CONTRIBUTING.split("## Where to make a change")
    named = set(re.findall(r"`(_?[A-Za-z]\w*(?:\.[A-Za-z_]\w*)*)(?:\(\w*\))?`", entries))
    assert len(named) > 100
    assert [name for name in sorted(named) if not name.endswith(ENDINGS) and not words.issuperset(name.split("."))] == []


def test_the_list_of_modules_is_current() -> None:
    """`python -m scripts.module_docs` changes nothing, and every module says what it is for."""
    text = module_docs.document()
    assert module_docs.FILE.read_text(encoding="utf-8") == text
    assert re.search(r"^\| `[^`]+` \|\s*\|", text, re.MULTILINE) is None
