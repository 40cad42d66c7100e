"""Output of `--env`: versions for bug reports."""

from __future__ import annotations

import importlib.metadata
import platform

from tgi_core import __version__
from tgi_core.telemetry.logs import announce

_PACKAGES = (
    "torch",
    "transformers",
    "tokenizers",
    "safetensors",
    "huggingface-hub",
    "numpy",
    "pydantic",
    "fastapi",
    "starlette",
    "uvicorn",
)


def runtime_lines() -> list[str]:
    """One line per fact. Imports nothing and shows no settings or secrets."""
    facts = {"tgi-core": __version__, "python": platform.python_version(), "platform": platform.platform()}
    versions = {name: _version(name) for name in _PACKAGES}
    backends = importlib.metadata.entry_points(group="tgi.backends")
    facts |= {f"backend {entry.name}": _distribution(entry) for entry in sorted(backends, key=lambda entry: entry.name)}
    return [f"{name}: {value}" for name, value in (facts | versions).items()]


def print_runtime() -> None:
    """Print the lines to standard error."""
    announce("Runtime environment:")
    for line in runtime_lines():
        announce(f"  {line}")


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def _distribution(entry: importlib.metadata.EntryPoint) -> str:
    return f"{entry.dist.name} {entry.dist.version}" if entry.dist else "?"
