"""The command line: ``outrider generate`` and ``outrider inspect``.

Exit codes: 0; 1 failed (one ``error:`` message on stderr, no traceback); 2 bad usage, or options that cannot be honoured;
130 interrupted.
"""

from __future__ import annotations

import click

from outrider import __version__
from outrider.cli.generate import generate_command
from outrider.cli.inspect import inspect_command
from outrider.cli.terminal import INTERRUPTED, prepare_streams
from outrider.errors import ConfigurationError, OutriderError, PluginError

__all__ = ["main"]


class _Outrider(click.Group):
    """Turns the library's errors into messages and exit codes, whoever invokes it."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The command that is named; anything else is bad usage, and the commands are listed."""
        name = args[0]
        if name not in self.commands and not name.startswith("-"):
            ctx.fail(
                f"no command {name!r:.60}; commands are {', '.join(sorted(self.commands))} (to continue a text: "
                "outrider generate PROMPT)"
            )
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> object:
        """The command's result; a `ConfigurationError` ends with 2, any other `OutriderError` (and one of a package that is
        broken) with 1, Ctrl-C with 130, a broken pipe quietly (by click).
        """
        try:
            prepare_streams()
            result: object = super().invoke(ctx)
        except OutriderError as error:
            click.echo(f"error: {error}", err=True)
            usage = isinstance(error, ConfigurationError) and not isinstance(error, PluginError)
            ctx.exit(2 if usage else 1)
        except KeyboardInterrupt:
            click.echo("interrupted", err=True)
            ctx.exit(INTERRUPTED)
        return result


@click.group(cls=_Outrider, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, prog_name="outrider")
def main() -> None:
    """Exact speculative decoding: faster text, token for token the target model's own."""


main.add_command(generate_command)
main.add_command(inspect_command)
