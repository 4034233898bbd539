"""Commands whose help lists many options under headings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import click

__all__ = ["SectionedCommand"]


class SectionedCommand(click.Command):
    """A command whose options stand under headings, in the order in which they are declared."""

    sections: ClassVar[Mapping[str, str]] = {}
    """Headings, each by the flag that opens its section."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write every section that has an option to show."""
        heading = "Options"
        records: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx) if isinstance(parameter, click.Option) else None
            if record is not None:
                heading = next((self.sections[flag] for flag in parameter.opts if flag in self.sections), heading)
                records.setdefault(heading, []).append(record)
        for heading, section in records.items():
            with formatter.section(heading):
                formatter.write_dl(section)
