"""`python -m tgi_core.cli.flag_docs` writes docs/flags.md from the settings; `--check` only says whether it is up to date."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import Field, fields
from pathlib import Path
from typing import Any

from tgi_core.cli.launcher import DEFAULTS as LAUNCHER
from tgi_core.cli.options import variables
from tgi_core.cli.router import DEFAULTS as ROUTER
from tgi_core.config import Settings, flag
from tgi_core.settings.environment import VARIABLES
from tgi_core.settings.spec import Effect, setting_of

FILE = Path(__file__).parents[2] / "docs" / "flags.md"

_HEAD = """# Flags

Made from `tgi_core/config.py` by `python -m tgi_core.cli.flag_docs`; change it there.

Each setting of `tgi serve` is a flag, an environment variable and, without the dashes, a key of the file that `--config` or
`TGI_CONFIG` names (TOML, JSON, or YAML with PyYAML installed). A flag goes before the environment, the environment before the file,
the file before the default; `tgi config show --origin` prints each value and where it came from. A switch such as `--json-output` has
an opposite, `--no-json-output`. In a file, `max-total-tokens` and `max_total_tokens` are the same.

What a setting does: *honoured*; *ignored*, with a line at start, since answers are the same without it; or *refused*, because
without it they would not be those that were asked for.

`text-generation-launcher` takes the same flags as `tgi serve`. `text-generation-router` and `text-generation-server` take those of
TGI's programs.
"""


def document() -> str:
    """The text of docs/flags.md."""
    groups: dict[str, list[Field[Any]]] = {}
    for spec in fields(Settings):
        groups.setdefault(setting_of(spec).group, []).append(spec)
    parts = [_HEAD, *(_section(name, specs) for name, specs in groups.items()), _defaults(), _environment()]
    return "\n".join(parts)


def main() -> None:
    """Write the file, or check it."""
    text = document()
    if "--check" not in sys.argv[1:]:
        FILE.parent.mkdir(exist_ok=True)
        FILE.write_text(text, encoding="utf-8")
    elif not FILE.exists() or FILE.read_text(encoding="utf-8") != text:
        sys.exit(f"{FILE}: out of date; run python -m tgi_core.cli.flag_docs")


def _section(name: str, specs: list[Field[Any]]) -> str:
    lines = [f"## {name}", "", "| flag | environment | default | |", "|---|---|---|---|", *map(_row, specs), ""]
    return "\n".join(lines)


def _row(spec: Field[Any]) -> str:
    known = setting_of(spec)
    names = [flag(spec.name), *([known.short] if known.short else []), *map(flag, known.old_names)]
    environment = [*variables(spec, spec.name), *(item for name in known.old_names for item in variables(spec, name))]
    return f"| {_code(names)} | {_code(environment)} | {_default(spec.default)} | {_text(spec)} |"


def _text(spec: Field[Any]) -> str:
    known = setting_of(spec)
    text = known.help
    if known.choices:
        text += f" One of {_code(known.choices)}."
    if known.minimum is not None:
        text += f" At least {known.minimum:g}" + (f", at most {known.maximum:g}." if known.maximum is not None else ".")
    return text if known.effect is Effect.HONOURED else f"{text} *{known.effect.value.capitalize()}: {known.reason}.*"


def _default(value: object) -> str:
    if value is None or value == ():
        return ""
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


def _defaults() -> str:
    lines = ["## Other defaults", "", "| program | setting | default |", "|---|---|---|"]
    return "\n".join(
        [*lines, *_differing("text-generation-launcher", LAUNCHER), *_differing("text-generation-router", ROUTER), ""]
    )


def _differing(program: str, defaults: Mapping[str, object]) -> list[str]:
    return [f"| `{program}` | `{flag(name)}` | {_default(value)} |" for name, value in defaults.items()]


def _environment() -> str:
    lines = ["## Environment variables without a flag", "", "| variable | |", "|---|---|"]
    rows = [f"| `{item.name}` | {f'*Ignored: {item.text}.*' if item.ignored else item.text} |" for item in VARIABLES]
    return "\n".join([*lines, *rows, ""])


def _code(names: tuple[str, ...] | list[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


if __name__ == "__main__":
    main()
