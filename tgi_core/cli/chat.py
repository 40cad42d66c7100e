"""`tgi chat`: talk to a model in the terminal."""

from __future__ import annotations

import contextlib
import signal
import sys
from collections.abc import Iterator
from typing import Any

import click

from tgi_core.errors import StartupError

_SAMPLING = {
    "temperature": (click.FloatRange(0, 2), "Sampling temperature; 0 always takes the likeliest token."),
    "top_p": (click.FloatRange(0, 1), "Sample from the likeliest tokens with this total probability."),
    "top_k": (click.IntRange(1), "Sample from so many likeliest tokens."),
    "min_p": (click.FloatRange(0, 1), "Leave out tokens less likely than this share of the likeliest one."),
    "repetition_penalty": (click.FloatRange(0, min_open=True), "Penalty of tokens that are in the text already; 1 for none."),
    "seed": (click.INT, "Seed, for the same answer to the same conversation."),
    "max_tokens": (click.IntRange(1), "Most tokens of an answer."),
}
"""Type and help of each field of the body that has a flag."""


def _sampling_options(function: Any) -> Any:
    for name, (kind, text) in reversed(_SAMPLING.items()):
        function = click.option(f"--{name.replace('_', '-')}", type=kind, help=text)(function)
    return function


@click.command("chat")
@click.argument("target", required=False)
@click.argument("serve_flags", nargs=-1, type=click.UNPROCESSED, metavar="[-- FLAGS OF TGI SERVE]")
@click.option("--system", help="System prompt.")
@_sampling_options
@click.option("--model", help="Model to name in requests. Default: the first one that the server lists.")
@click.option("--api-key", envvar="API_KEY", show_envvar=True, help="API key, sent as a bearer token.")
def command(
    target: str | None, serve_flags: tuple[str, ...], system: str | None, model: str | None, api_key: str | None, **sampling: Any
) -> None:
    """Chat with the server at TARGET, a URL, or with a model: a directory, a GGUF file or a Hugging Face Hub id, for which a server
    is started on this machine. Default: the small bundled demo model.

    \b
    Ctrl-C stops an answer; Ctrl-D or /exit exits. /help lists the commands.
    Flags after -- are those of tgi serve: tgi chat MODEL -- --dtype bfloat16
    """
    from tgi_core.cli.chat_client import ChatClient
    from tgi_core.cli.chat_loop import Chat, converse

    if target is not None and target.startswith("-"):  # what follows -- without a target
        serve_flags, target = (target, *serve_flags), None
    chosen = {name: value for name, value in sampling.items() if value is not None}
    with _server(target, serve_flags) as url:
        client = ChatClient.open(url, model, api_key)
        converse(Chat(client, system, chosen), sys.stdin.isatty())


@contextlib.contextmanager
def _server(target: str | None, serve_flags: tuple[str, ...]) -> Iterator[str]:
    """The URL of a running server, or of one that runs while the block does. Raises StartupError."""
    if target is not None and target.startswith(("http://", "https://")):
        if serve_flags:
            raise StartupError(f"{' '.join(serve_flags)}: flags of tgi serve, but {target} is a server that runs already")
        yield target
        return
    from tgi_core.cli.started_server import started_server

    for number in (signal.SIGTERM, signal.SIGHUP):  # or the server would outlive this process
        signal.signal(number, lambda number, _: sys.exit(128 + number))
    with started_server(target, serve_flags) as url:
        yield url
