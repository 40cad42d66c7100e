"""`tgi completion`: what a shell needs to complete commands and flags."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

_SHELLS = ("bash", "fish", "zsh")
_HOW = """Print a script that completes commands and flags.

\b
bash  tgi completion bash > ~/.local/share/bash-completion/completions/tgi
zsh   tgi completion zsh > "${fpath[1]}/_tgi"
fish  tgi completion fish > ~/.config/fish/completions/tgi.fish
"""


@click.command("completion", help=_HOW)
@click.argument("shell", type=click.Choice(_SHELLS))
@click.pass_context
def command(ctx: click.Context, shell: str) -> None:
    """Print the script of a shell."""
    root = ctx.find_root()
    kind = get_completion_class(shell)
    if kind is None:
        raise click.UsageError(f"{shell}: this version of click has no completion for it")
    # Not `source()`: it runs the shell that it writes for, which may be on another machine.
    completion = kind(root.command, {}, "tgi", "_TGI_COMPLETE")
    click.echo(completion.source_template % completion.source_vars())
