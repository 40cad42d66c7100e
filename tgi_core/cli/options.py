"""Command-line options generated from `Settings`. Precedence: flag, environment, --config file, default."""

from __future__ import annotations

import functools
import os
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import Field, dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from tgi_core.config import Settings, environment_variable, flag
from tgi_core.errors import StartupError
from tgi_core.settings.files import read_settings_file
from tgi_core.settings.spec import Effect, Setting, check_secret, setting_of

if TYPE_CHECKING:
    _Type = click.ParamType[Any]
else:
    _Type = click.ParamType  # generic in newer versions only


class StringList(click.types.StringParamType):
    """Repeatable text option; separated by commas or spaces in the environment."""

    def split_envvar_value(self, rv: str) -> list[str]:
        """Split the value of an environment variable."""
        return rv.replace(",", " ").split()


_TYPES: dict[type, _Type] = {int: click.INT, float: click.FLOAT, str: click.STRING, bool: click.BOOL}


@dataclass(frozen=True, slots=True)
class Resolved:
    """The settings of a command and their origins."""

    settings: Settings
    origins: Mapping[str, str]
    """Setting name to `default`, `flag --port`, `environment PORT` or `file tgi.toml`."""


class IntegerList(_Type):
    """Comma-separated integers."""

    name = "list"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, ...]:
        """Convert text, or a list from a file, to a tuple."""
        parts = value.split(",") if isinstance(value, str) else value
        try:
            return tuple(int(part) for part in parts)
        except (TypeError, ValueError):
            self.fail(f"{value!r} is not a comma-separated list of integers", param, ctx)


class SettingOption(click.Option):
    """The option for a setting or for one of its old names. The help lists it under `setting.group`."""

    def __init__(self, *names: Any, setting: Setting, **rest: Any) -> None:
        super().__init__(*names, **rest)
        self.setting = setting


class SettingsCommand(click.Command):
    """A command whose help groups its settings."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the command's own options, then the settings by group."""
        groups: dict[str, list[tuple[str, str]]] = {}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx) if isinstance(param, click.Option) else None
            if record is not None:
                group = param.setting.group if isinstance(param, SettingOption) else "Options"
                groups.setdefault(group, []).append(record)
        for group in sorted(groups, key=lambda name: name != "Options"):
            with formatter.section(group):
                formatter.write_dl(groups[group])


def settings_options(
    defaults: Mapping[str, Any] | None = None, only: typing.Container[str] | None = None
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorator that adds an option per setting and passes `resolved`. `defaults` overrides defaults; `only` limits the
    settings."""
    chosen = [spec for spec in fields(Settings) if only is None or spec.name in only]
    options = [option for spec in chosen for option in _options(spec, (defaults or {}).get(spec.name, spec.default))]

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def run(**values: Any) -> Any:
            given = {option.name: values.pop(option.name) for option in options if option.name}
            return function(resolved=resolve(click.get_current_context(), chosen, given), **values)

        run.__dict__["__click_params__"] = [*options[::-1], _config_option(), *getattr(function, "__click_params__", [])]
        return run

    return decorate


def resolve(ctx: click.Context, chosen: list[Field[Any]], given: dict[str, Any]) -> Resolved:
    """Build the settings from click's parameter values. Raises StartupError."""
    values: dict[str, Any] = {}
    origins: dict[str, str] = {spec.name: "default" for spec in fields(Settings)}
    for spec in chosen:
        sources = [name for name in (spec.name, *setting_of(spec).old_names) if _origin(ctx, spec, name) != "default"]
        if len(sources) > 1:
            both = " and ".join(map(flag, sources))
            raise StartupError(f"{both} are names of the same setting; give only {flag(spec.name)}")
        name = sources[0] if sources else spec.name
        values[spec.name], origins[spec.name] = given[name], _origin(ctx, spec, name)
        if values[spec.name] is None and setting_of(spec).secret:
            _refuse_empty(spec)
    return Resolved(Settings(**values), origins)


def variables(spec: Field[Any], name: str) -> tuple[str, ...]:
    """Environment variables of a setting, or of one of its old names; the first that is not empty is used."""
    return (environment_variable(name), *(setting_of(spec).variables if name == spec.name else ()))


def _refuse_empty(spec: Field[Any]) -> None:
    """Reject an empty variable for a secret. Other empty variables count as unset because Helm charts set them. Raises
    StartupError."""
    for variable in variables(spec, spec.name):
        if variable in os.environ:
            check_secret(variable, os.environ[variable])


def _origin(ctx: click.Context, spec: Field[Any], name: str) -> str:
    source = ctx.get_parameter_source(name)
    if source is ParameterSource.COMMANDLINE:
        return f"flag {flag(name)}"
    if source is ParameterSource.ENVIRONMENT:
        return f"environment {next(item for item in variables(spec, name) if os.environ.get(item))}"
    if source is ParameterSource.DEFAULT_MAP:
        return f"file {ctx.meta[_FILE]}"
    return "default"


_FILE = "tgi_core.settings_file"


def _config_option() -> click.Option:
    return click.Option(
        ["--config"],
        type=click.Path(path_type=Path),
        envvar="TGI_CONFIG",
        show_envvar=True,
        is_eager=True,  # the other options take their values from it
        expose_value=False,
        callback=_use_file,
        help="Config file: TOML, JSON or YAML. Flags and environment variables override it.",
    )


def _use_file(ctx: click.Context, param: click.Parameter, path: Path | None) -> None:
    if path is None:
        return
    options = {option.name: option for option in ctx.command.params if isinstance(option, SettingOption) and option.name}
    values = read_settings_file(path, options)
    for name, value in values.items():
        try:
            options[name].type_cast_value(ctx, value)
        except click.BadParameter as error:
            raise StartupError(f"{path}: {name}: {error.message}") from error
    ctx.meta[_FILE] = path
    ctx.default_map = values


def _options(spec: Field[Any], default: Any) -> list[SettingOption]:
    known = setting_of(spec)
    kind, multiple = _value_type(spec)
    names = [_declared(spec.name, kind, default), *([known.short] if known.short else []), spec.name]
    shared: dict[str, Any] = {"type": kind, "multiple": multiple, "show_envvar": True, "hidden": known.hidden, "setting": known}
    first = SettingOption(
        names,
        **shared,
        default=default,
        envvar=variables(spec, spec.name),
        show_default="on" if default is True else default not in (None, (), False),  # click would show the flag's name
        help=_help(known),
    )
    old = [
        SettingOption([flag(name), name], **shared, envvar=variables(spec, name), help=f"Old name of {flag(spec.name)}.")
        for name in known.old_names
    ]
    return [first, *old]


def _declared(name: str, kind: _Type, default: Any) -> str:
    """Declare a flag. Switches get a --no- variant to override the environment or a file."""
    return f"{flag(name)}/--no-{flag(name)[2:]}" if kind is click.BOOL and default is not None else flag(name)


def _help(known: Setting) -> str:
    return known.help if known.effect is Effect.HONOURED else f"{known.help} ({known.effect.value}: {known.reason})"


def _value_type(spec: Field[Any]) -> tuple[_Type, bool]:
    """Type of one value, and whether the option may be repeated."""
    hint, choices = typing.get_type_hints(Settings)[spec.name], setting_of(spec).choices
    if choices:
        return click.Choice(choices), False
    arguments = [item for item in typing.get_args(hint) if item is not types.NoneType]
    if typing.get_origin(hint) is tuple:
        return StringList(), True
    kind = arguments[0] if arguments else hint
    return (IntegerList() if typing.get_origin(kind) is tuple else _TYPES[kind]), False


def with_model(model: str | None, resolved: Resolved) -> Settings:
    """Set the model to the MODEL argument, if given. Raises StartupError if --model-id names another."""
    flagged = resolved.settings.model_id
    if model is None:
        return resolved.settings
    if resolved.origins["model_id"].startswith("flag") and flagged != model:
        raise StartupError(f"MODEL {model} and --model-id {flagged}: give only one model")
    return replace(resolved.settings, model_id=model)
