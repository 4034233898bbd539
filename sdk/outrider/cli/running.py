"""Flags that say what is captured for whom, and what is told of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar, cast

import click
from attrs import frozen

from outrider.cli.render import capture_bar, show_report
from outrider.errors import ConfigurationError
from outrider.generation.model import SpeculativeModel
from outrider.generation.report import capture_rows, report_rows
from outrider.graphs import request_buckets, token_buckets
from outrider.types import RefusalReason, Role

__all__ = ["Running", "running_options"]

F = TypeVar("F", bound=Callable[..., object])


@frozen
class Running:
    """What the flags of `running_options` ask for. ``explain``: tell afterwards what ran how."""

    role: Role
    capture: bool
    capture_tokens: tuple[int, ...] | None
    capture_requests: tuple[int, ...] | None
    explain: bool

    @classmethod
    def of(cls, flags: Mapping[str, object]) -> Running:
        """From the values as click hands them over, each checked already."""
        return cls(
            Role(flags["role"]),
            capture=bool(flags["capture"]),
            capture_tokens=cast("tuple[int, ...] | None", flags["capture_tokens"]),
            capture_requests=cast("tuple[int, ...] | None", flags["capture_requests"]),
            explain=bool(flags["explain"]),
        )

    def prepare(self, model: SpeculativeModel) -> None:
        """Capture, where that is asked, with a bar while it lasts and a summary after it."""
        if not self.capture:
            return
        with capture_bar() as progress:
            summary = model.capture(progress)
        show_report(capture_rows(summary))

    def tell(self, model: SpeculativeModel) -> None:
        """What ran how, where that is asked; that the chosen runner could capture nothing, in any case."""
        report = model.engine.report
        if self.explain:
            show_report(report_rows(report, model.captured))
            return
        for refused in report.explained.values():
            if refused.reason is RefusalReason.DEVICE:
                click.echo(f"note: runner {report.runner}: {refused.numbers}; all of it ran eagerly", err=True)
                return


def running_options(function: F) -> F:
    """``function`` with the flags of `Running`."""
    for decorate in reversed(
        (
            click.option(
                "--role",
                type=click.Choice([role.value for role in Role]),
                default=Role.BOTH.value,
                show_default=True,
                help="What this worker does; a runner captures no graphs for the other half.",
            ),
            click.option("--capture", is_flag=True, help="Capture every size before the first prompt."),
            click.option(
                "--capture-tokens",
                type=_counts,
                metavar="LIST",
                callback=_checked(token_buckets),
                help="Sizes at which prompts are captured, in tokens. E.g. 16,64,256.  [default: up to 2048]",
            ),
            click.option(
                "--capture-requests",
                type=_counts,
                metavar="LIST",
                callback=_checked(request_buckets),
                help="Sizes at which rounds are captured, in prompts that run at once. E.g. 1,2,4.  [default: up to 64]",
            ),
            click.option(
                "--explain",
                is_flag=True,
                help="Tell afterwards what ran through which graphs, and why the rest did not.",
            ),
        )
    ):
        function = decorate(function)
    return function


def _counts(text: str) -> tuple[int, ...]:
    words = [word.strip() for word in text.split(",")] if text.strip() else []
    wrong = [word for word in words if not word.removeprefix("-").isdecimal()]
    if wrong:
        raise click.BadParameter(
            f"{', '.join(map(repr, wrong))} in {text!r}; give whole numbers with commas between them"
        )
    return tuple(map(int, words))


def _checked(
    buckets: Callable[[tuple[int, ...]], object],
) -> Callable[[click.Context, click.Parameter, tuple[int, ...] | None], tuple[int, ...] | None]:
    """A check that counts can be ``buckets``; anything else is bad usage."""

    def check(ctx: click.Context, param: click.Parameter, counts: tuple[int, ...] | None) -> tuple[int, ...] | None:
        if counts is not None:
            try:
                buckets(counts)
            except ConfigurationError as error:
                raise click.BadParameter(str(error), ctx, param) from error
        return counts

    return check
