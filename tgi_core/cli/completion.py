"""`tgi completion`: print shell completion scripts."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

_SHELLS = ("bash", "fish", "zsh")
_HOW = """Print a shell script that completes commands and flags.

\b
bash  tgi completion bash > ~/.local/share/bash-completion/completions/tgi
zsh   tgi completion zsh > "${fpath[1]}/_tgi"
fish  tgi completion fish > ~/.config/fish/completions/tgi.fish
"""


@click.command("completion", help=_HOW)
@click.argument("shell", type=click.Choice(_SHELLS))
@click.pass_context
def command(ctx: click.Context, shell: str) -> None:
    """Print the completion script for a shell."""
    root = ctx.find_root()
    kind = get_completion_class(shell)
    if kind is None:
        raise click.UsageError(f"{shell}: not supported by this version of click")
    # Not `source()`: it runs the target shell, which may not be installed here.
    completion = kind(root.command, {}, "tgi", "_TGI_COMPLETE")
    click.echo(completion.source_template % completion.source_vars())
