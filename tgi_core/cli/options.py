"""Command-line options made from `Settings`."""

from __future__ import annotations

import types
import typing
from collections.abc import Callable
from dataclasses import Field, fields
from typing import Any

import click

from tgi_core.config import Settings, environment_variable, flag

_TYPES: dict[type, click.ParamType] = {int: click.INT, float: click.FLOAT, str: click.STRING, bool: click.BOOL}


def settings_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command one option per setting, each with its environment variable."""
    hints = typing.get_type_hints(Settings)
    for spec in reversed(fields(Settings)):
        command = _option(spec, hints[spec.name])(command)
    return command


def _option(spec: Field[Any], hint: Any) -> Callable[..., Any]:
    kind, multiple = _value_type(hint)
    names = [flag(spec.name), *([spec.metadata["short"]] if spec.metadata["short"] else [])]
    choices = spec.metadata["choices"]
    return click.option(
        *names,
        spec.name,
        type=click.Choice(choices) if choices else _TYPES[kind],
        is_flag=kind is bool,
        multiple=multiple,
        default=spec.default,
        envvar=environment_variable(spec.name),
        show_envvar=True,
        show_default=spec.default not in (None, (), False),
        help=spec.metadata["help"],
    )


def _value_type(hint: Any) -> tuple[type, bool]:
    """The type of one value, and whether there may be several."""
    arguments = [item for item in typing.get_args(hint) if item not in (types.NoneType, ...)]
    if typing.get_origin(hint) is tuple:
        return arguments[0], True
    return (arguments[0] if arguments else hint), False
