"""Which drafter a user asks for, settled before anything is loaded."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from attrs import frozen

from outrider import registry
from outrider.checkpoint import Checkpoint, load_hot_tokens
from outrider.drafting.builders import ChainBuilder, DrafterBuilder
from outrider.drafting.ngram import NgramBuilder
from outrider.errors import ConfigurationError, Problems
from outrider.interfaces import LoadOptions, Target

__all__ = ["AUTO", "NGRAM", "DrafterChoice", "drafter_names", "read_hot_tokens"]

AUTO = "auto"
NGRAM = "ngram"


def drafter_names() -> tuple[str, ...]:
    """What may be asked for: `AUTO` (the loader that recognises the draft), each installed draft loader, `NGRAM`."""
    return (AUTO, *registry.names(registry.DRAFTS), NGRAM)


def read_hot_tokens(
    hot_tokens: str | Path | Sequence[int] | None, allow_pickle: bool = False
) -> tuple[int, ...] | None:
    """The ids given, or those of the file given; `outrider.checkpoint.load_hot_tokens` says what may be wrong with one."""
    if hot_tokens is None:
        return None
    if isinstance(hot_tokens, (str, Path)):
        return load_hot_tokens(Path(hot_tokens).expanduser(), allow_pickle)
    return tuple(hot_tokens)


@frozen
class DrafterChoice:
    """A checked wish: ``name`` of `drafter_names`, the draft's ``directory`` if any, and the length of its chains."""

    name: str
    directory: Path | None
    num_tokens: int

    @classmethod
    def of(cls, name: str, directory: Path | None, explicit: bool, num_tokens: int, hot_tokens: bool) -> DrafterChoice:
        """The choice, if it makes sense. ``explicit``: the user named the draft; it is not merely that of the pair.

        Raises:
            ConfigurationError: an unknown name, or wishes that contradict each other; all at once.
        """
        with Problems("the drafter cannot be set up", ConfigurationError) as problems:
            if num_tokens < 0:
                problems.add(f"num_draft_tokens is {num_tokens}, 0 (no drafting) or more is needed")
            if name not in drafter_names():
                problems.add(f"drafter '{name}' is not known; known are: {', '.join(drafter_names())}")
            elif name == NGRAM:
                if explicit and directory is not None:
                    problems.add(
                        f"drafter {NGRAM} looks the text up in itself, but a draft ({directory}) is given; leave one out"
                    )
                directory = None
            elif name != AUTO and directory is None:
                problems.add(f"drafter {name} needs a draft, but none is given; name its directory (draft=, --draft)")
            if hot_tokens and (directory is None or num_tokens == 0):
                problems.add(
                    "hot tokens are given, but no draft model runs whose head they could cut; leave them out, or name a draft"
                )
        return cls(name, directory, num_tokens)

    def builder(self, target: Target, options: LoadOptions, allow_pickle: bool = False) -> DrafterBuilder | None:
        """What builds the drafter for ``target``; ``None`` when nothing drafts. Loads and binds the draft.

        Raises:
            CheckpointError: the draft is missing, foreign or faulty.
            BindError: it does not fit the target.
        """
        if self.num_tokens == 0:
            return None
        if self.name == NGRAM:
            return NgramBuilder(self.num_tokens)
        if self.directory is None:
            return None
        loader = None if self.name == AUTO else self.name
        unbound = registry.load_draft(Checkpoint(self.directory, allow_pickle), options, loader=loader)
        return ChainBuilder(unbound.bind(target), self.num_tokens)
