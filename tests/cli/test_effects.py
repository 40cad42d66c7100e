"""Every setting has an effect, or a line that says why it has none."""

from __future__ import annotations

import ast
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from tests.serve.process import run
from tgi_core.cli.settings_review import review
from tgi_core.config import Settings, environment_variable, flag
from tgi_core.settings.environment import VARIABLES
from tgi_core.settings.spec import Effect, setting_of

ROOT = Path(__file__).parents[2]
OF = {effect: [spec for spec in fields(Settings) if setting_of(spec).effect is effect] for effect in Effect}
SAMPLES: dict[str, Any] = {
    "lora_adapters": "a/b",
    "num_shard": 2,
    "sharded": True,
    "shard_uds_path": "/x",
    "master_addr": "host",
    "cuda_graphs": (1, 2),
    "prefix_caching": False,
    "prefill_chunking": False,
    "otlp_endpoint": "http://127.0.0.1:4317",
    "otlp_service_name": "me",
    "watermark_gamma": 0.5,
    "watermark_delta": 2.0,
}


def sample(name: str) -> Any:
    """A value that is not the default."""
    spec = Settings.__dataclass_fields__[name]
    known = setting_of(spec)
    if known.choices:
        return next(choice for choice in known.choices if choice != spec.default)
    if isinstance(spec.default, bool):
        return not spec.default
    if isinstance(spec.default, int | float):
        return spec.default + 1
    return SAMPLES.get(name, 1)


def test_ignored_ones_are_named_at_start() -> None:
    """Each ignored setting and variable that is given is one warning with its reason; the start goes on."""
    extra = {environment_variable(spec.name): as_text(sample(spec.name)) for spec in OF[Effect.IGNORED]}
    extra |= {variable.name: "1" for variable in VARIABLES if variable.ignored}
    result = run("serve", "--hostname", "127.0.0.1", "--port", "0", "/not/there", extra=extra)
    warnings = [line for line in result.stderr.splitlines() if "WARNING" in line]
    for spec in OF[Effect.IGNORED]:
        line = [item for item in warnings if f"{flag(spec.name)} " in item]
        assert len(line) == 1 and "is ignored" in line[0] and setting_of(spec).reason in line[0], (spec.name, result.stderr)
    for variable in VARIABLES:
        assert bool([item for item in warnings if f" {variable.name} is ignored: " in item]) is variable.ignored
    assert len(warnings) == len(OF[Effect.IGNORED]) + len([variable for variable in VARIABLES if variable.ignored])
    assert result.stderr.splitlines()[-1].startswith("tgi: error: model /not/there")


def as_text(value: object) -> str:
    """A value as an environment variable holds it."""
    return (
        ",".join(map(str, value)) if isinstance(value, tuple) else str(value).lower() if isinstance(value, bool) else str(value)
    )


@pytest.mark.parametrize("way", [("--in-process",), ()])
def test_what_only_the_backend_can_refuse(way: tuple[str, ...]) -> None:
    """Numbers that a backend does not keep in its cache are refused in one line, in the server's process and in the shard's."""
    result = run(
        "serve", "--hostname", "127.0.0.1", "--port", "0", "--backend", "reference", "--kv-cache-dtype", "fp8_e5m2", *way
    )
    assert result.returncode == 1
    assert result.stderr.splitlines()[-1] == (
        "tgi: error: backend reference: --kv-cache-dtype: keeps its cache in the dtype of the model, not in float8_e5m2; "
        "leave it out, or use another backend"
    )


def test_the_defaults_are_silent() -> None:
    """Nothing is said when nothing is given."""
    assert review(Settings(), {}) == []


def read_settings() -> set[str]:
    """The settings that the code of server and router reads, as `settings.NAME`."""
    found = set()
    for path in [*(ROOT / "tgi_core").rglob("*.py"), *(ROOT / "router").rglob("*.py")]:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute) and ast.unparse(node.value).rsplit(".", 1)[-1].lstrip("_") == "settings":
                found.add(node.attr)
    return found


def test_the_effects_are_true() -> None:
    """The code reads the settings that are called honoured and no others: who wires one in changes its line in config.py."""
    read = read_settings()
    assert {spec.name for spec in OF[Effect.HONOURED]} - read == set()
    assert read & {spec.name for spec in OF[Effect.IGNORED]} == set()
