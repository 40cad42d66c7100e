"""`tgi quantize`: make a quantized checkpoint of a model."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tgi_core.backend import BackendError
from tgi_core.cli.options import Resolved, SettingsCommand, settings_options
from tgi_core.config import Scope, Settings, settings_in
from tgi_core.errors import StartupError
from tgi_core.telemetry.logs import set_up
from tgi_core.telemetry.progress import progress

if TYPE_CHECKING:
    from tgi_core.engine.quantizing.forms import Form

METHODS = ("gptq", "rtn", "int8", "fp8")


@click.command("quantize", cls=SettingsCommand)
@click.argument("model")
@click.argument("out", type=click.Path(path_type=Path))
@click.option("--method", type=click.Choice(METHODS), default="gptq", show_default=True, help="How weights become codes.")
@click.option("--bits", type=int, default=4, show_default=True, help="Bits of a code, for gptq and rtn: 2, 3, 4 or 8.")
@click.option(
    "--group-size", type=int, default=128, show_default=True, help="Inputs that share a scale, for gptq and rtn; -1 for all."
)
@click.option("--act-order", is_flag=True, help="gptq: round inputs with large activations first.")
@click.option(
    "--damping", type=float, default=0.01, show_default=True, help="gptq: dampening, as a fraction of the mean diagonal."
)
@click.option(
    "--calibration", type=click.Path(path_type=Path), help="Text file to calibrate with. Default: text that the model writes."
)
@click.option("--rows", type=click.IntRange(2, 100_000), default=128, show_default=True, help="Rows of calibration text.")
@click.option("--length", type=click.IntRange(2, 1 << 20), default=512, show_default=True, help="Tokens of a row.")
@settings_options(only=settings_in(Scope.DOWNLOAD) - {"model_id"})
def command(
    model: str,
    out: Path,
    method: str,
    bits: int,
    group_size: int,
    act_order: bool,
    damping: float,
    calibration: Path | None,
    rows: int,
    length: int,
    resolved: Resolved,
) -> None:
    """Write a copy of MODEL, a directory or a Hugging Face Hub id, with quantized weights to the directory OUT.

    gptq calibrates; rtn rounds to nearest in the same files; int8 and fp8 keep 8 bits per weight with a scale per output, in
    compressed-tensors' files. The last line, on standard output, is a report in JSON.
    """
    settings = replace(resolved.settings, model_id=model)
    run(settings, out, method, bits, group_size, calibration, (rows, length), act_order=act_order, damping=damping)


def run(
    settings: Settings,
    out: Path,
    method: str,
    bits: int,
    group_size: int,
    calibration: Path | None,
    size: tuple[int, int],
    *,
    act_order: bool,
    damping: float,
) -> None:
    """Quantize a model and print the report. Raises StartupError."""
    set_up(settings.json_output)
    try:
        text = None if calibration is None else calibration.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise StartupError(f"--calibration {calibration}: cannot be read: {error}") from error
    from tgi_core.cli.weights import fetch_model

    with progress() as show:
        directory = fetch_model(str(settings.model_id), settings, show)
        # torch takes seconds to import
        from tgi_core.engine.quantizing.quantize import Text, describe, quantize_model
        from tgi_core.tokenizer import Tokenizer

        rows, length = size
        ids = None if text is None else list(Tokenizer.load(directory).encode(text).ids)
        try:
            form = _form(method, bits, group_size, act_order, damping)
            report = quantize_model(directory, out, form, Text(rows, length, ids, str(calibration)), show)
        except BackendError as error:
            raise StartupError(str(error)) from error
    click.echo(describe(report))


def _form(method: str, bits: int, group_size: int, act_order: bool, damping: float) -> Form:
    from tgi_core.engine.quantizing.forms import Channels, Gptq

    if method in ("int8", "fp8"):
        return Channels(method)
    return Gptq(bits, group_size, calibrated=method == "gptq", damping=damping, ordered=act_order)
