"""``outrider inspect``: what a checkpoint is, what it needs, and what is wrong with it."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

import click
import torch
from attrs import evolve, frozen

from outrider import registry
from outrider.checkpoint import Checkpoint
from outrider.cli.render import has_room, progress_bar
from outrider.cli.terminal import write_out
from outrider.errors import CheckpointError, OutriderError
from outrider.generation.load import resolve_directory
from outrider.interfaces import Description, LoadOptions, Target
from outrider.types import DraftSpec, PositionView, RowAlignment

__all__ = ["inspect_command"]

_EXAMPLES = """\b
Examples:
  outrider inspect tiny
  outrider inspect path/to/draft --target path/to/target
"""


@frozen(eq=False)
class _LoadedTarget:
    """The target that drafts are bound to, on the CPU in its own dtype, and where it comes from."""

    directory: Path
    target: Target

    @classmethod
    def of(cls, name: str, allow_pickle: bool) -> _LoadedTarget:
        """Load it.

        Raises:
            CheckpointError: it cannot be loaded.
        """
        checkpoint = Checkpoint(resolve_directory(_expand(name)[0]), allow_pickle)
        with progress_bar(f"loading {checkpoint.name}") as progress:
            options = LoadOptions(torch.device("cpu"), None, progress)
            return cls(checkpoint.directory.resolve(), registry.load_target(checkpoint, options))


@frozen
class _Explained:
    """One checkpoint: what was asked for, and its description."""

    name: str
    description: Description

    def as_json(self) -> str:
        """One line of JSON."""
        described = self.description
        return json.dumps(
            {
                "checkpoint": self.name,
                "kind": described.kind,
                "facts": dict(described.facts),
                "notes": list(described.notes),
                "problems": list(described.problems),
            },
            ensure_ascii=not sys.stdout.encoding.lower().startswith("utf"),
        )

    @property
    def rows(self) -> list[tuple[str, str]]:
        """Everything there is to say, as keys and values."""
        described = self.description
        return [
            ("checkpoint", self.name),
            ("kind", described.kind),
            *described.facts,
            *(("note", note) for note in described.notes),
            *(("problem", problem) for problem in described.problems),
        ]


@click.command("inspect", short_help="Explain checkpoints, and what is wrong with them.", epilog=_EXAMPLES)
@click.argument("checkpoints", metavar="DIR...", nargs=-1, required=True)
@click.option(
    "--target", metavar="DIR", help="Load this target, and check that every other DIR is a draft that binds to it."
)
@click.option("--json", "as_json", is_flag=True, help="One line of JSON for each checkpoint.")
@click.option("--allow-pickle", is_flag=True, help="Read pickled weights, which can run code.")
def inspect_command(checkpoints: Sequence[str], target: str | None, as_json: bool, allow_pickle: bool) -> None:
    """Explain the checkpoint in each DIR: a directory, a hub id, or an installed pair (its target and drafts).

    Says what it is, its taps, its vocabulary map, where its head and embedding come from, and what is wrong with it.
    Ends with 1 when something is.
    """
    names = [name for asked in checkpoints for name in _expand(asked)]
    loaded = None if target is None else _LoadedTarget.of(target, allow_pickle)
    faulty: list[_Explained] = []
    for number, name in enumerate(names):
        explained = _Explained(name, _explain(name, loaded, allow_pickle))
        if as_json:
            write_out(explained.as_json() + "\n")
        else:
            _show(explained, first=number == 0)
        if explained.description.problems:
            faulty.append(explained)
    if faulty:
        count = sum(len(explained.description.problems) for explained in faulty)
        raise CheckpointError(
            f"{count} {'problem' if count == 1 else 'problems'} in {', '.join(explained.name for explained in faulty)}"
        )


def _expand(name: str) -> list[str]:
    """The directories of an installed pair; any other name stands for itself."""
    if name not in registry.names(registry.PAIRS) or Path(name).exists():
        return [name]
    pair = registry.pair(name)
    return [str(directory) for directory in (pair.target, *pair.drafts)]


def _explain(name: str, loaded: _LoadedTarget | None, allow_pickle: bool) -> Description:
    try:
        checkpoint = Checkpoint(resolve_directory(name), allow_pickle)
        description = registry.describe(checkpoint)
    except OutriderError as error:
        return Description("unknown", (), problems=(str(error),))
    if loaded is None or checkpoint.directory.resolve() == loaded.directory:
        return description
    spec = loaded.target.stack.spec
    if description.problems:
        fact = ("binds to", f"{spec.name}: not tried, see the problems")
        return evolve(description, facts=(*description.facts, fact))
    try:
        with progress_bar(f"loading {checkpoint.name}") as progress:
            # The dtype of the target, as generation loads both with one dtype.
            draft = registry.load_draft(checkpoint, LoadOptions(spec.device, spec.dtype, progress))
        bound = draft.bind(loaded.target).spec
    except OutriderError as error:
        return evolve(
            description,
            facts=(*description.facts, ("binds to", f"{spec.name}: no")),
            problems=(*description.problems, str(error)),
        )
    return evolve(
        description, facts=(*description.facts, ("binds to", f"{spec.name}: yes, {_view(bound, loaded.target)}"))
    )


def _view(bound: DraftSpec, target: Target) -> str:
    """What the draft sees of its target: taps, and what depends on images where the target reads them."""
    parts = [f"taps {', '.join(map(str, bound.taps)) or 'none'}"]
    if target.media is not None:
        parts.append(f"at images {bound.media.value}")
    if target.stack.spec.positions.axes != 1:
        by_index = bound.positions is PositionView.INDEX or bound.alignment is RowAlignment.SAME
        axes = "1 axis" if bound.position_axes == 1 else f"{bound.position_axes} axes"
        parts.append(f"positions {PositionView.INDEX.value if by_index else bound.positions.value}, {axes}")
    return ", ".join(parts)


def _show(explained: _Explained, first: bool) -> None:
    if not first:
        write_out("\n")
    if not has_room(sys.stdout):
        for key, value in explained.rows:
            write_out(f"{key}: {value}\n".replace("\n  ", "\n    "))
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    styles = {"checkpoint": "bold", "note": "yellow", "problem": "bold red"}
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for key, value in explained.rows:
        table.add_row(key, Text(value, style=styles.get(key, "")))
    Console(file=sys.stdout, highlight=False, markup=False).print(table)
