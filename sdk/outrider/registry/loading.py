"""Picks the loader that recognises a checkpoint, and loads or describes the checkpoint with it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Generic, TypeVar

from attrs import evolve, field, frozen

from outrider.checkpoint import Checkpoint
from outrider.errors import CheckpointError, ConfigurationError, NoLoaderError, PluginError
from outrider.interfaces import AskedByName, Description, DraftLoader, LoadOptions, Target, TargetLoader, UnboundDraft
from outrider.registry.parts import DRAFTS, INSTALLED, TARGETS, Group, Registry

__all__ = ["describe", "load_draft", "load_target", "target_refusal"]

_log = logging.getLogger(__name__)
L = TypeVar("L", TargetLoader, DraftLoader)


def load_target(
    checkpoint: Checkpoint, options: LoadOptions, loader: str | None = None, registry: Registry = INSTALLED
) -> Target:
    """The target in ``checkpoint``, by the one loader that recognises it, or by ``loader``.

    Raises:
        NoLoaderError: no loader recognises it (or ``loader`` does not); each one's reason is given.
        ConfigurationError: several loaders recognise it and ``loader`` is not given, or no such loader is known.
        CheckpointError: it is recognised, but faulty; or too faulty (a truncated file) to be recognised.
    """
    return _choose(registry, TARGETS, checkpoint, loader).load(checkpoint, options)


def load_draft(
    checkpoint: Checkpoint, options: LoadOptions, loader: str | None = None, registry: Registry = INSTALLED
) -> UnboundDraft:
    """The draft in ``checkpoint``, not bound to a target yet; otherwise as `load_target`."""
    return _choose(registry, DRAFTS, checkpoint, loader).load(checkpoint, options)


def describe(checkpoint: Checkpoint, registry: Registry = INSTALLED) -> Description:
    """What ``checkpoint`` is, target or draft, without loading its weights.

    One that serves as a target is described as a target; what else it can be loaded as is added to the notes.

    Raises:
        NoLoaderError: no loader of either kind recognises it; each one's reason is given.
        CheckpointError: it is too faulty (a truncated file) to be recognised.
    """
    targets = _ask(registry, TARGETS, checkpoint, registry.names(TARGETS))
    drafts = _ask(registry, DRAFTS, checkpoint, registry.names(DRAFTS))
    explain: list[tuple[str, Callable[[Checkpoint], Description]]] = [
        *((f"target loader '{name}'", loader.describe) for name, loader in targets.fitting.items()),
        *((f"draft loader '{name}'", loader.describe) for name, loader in drafts.fitting.items()),
    ]
    if not explain:
        targets.raise_fault()
        drafts.raise_fault()
        raise NoLoaderError(
            f"{checkpoint.directory}: no loader recognises this checkpoint ({_architectures(checkpoint)})"
            f"{targets.reasons()}{drafts.reasons()}"
        )
    (_, first), *others = explain
    description = first(checkpoint)
    notes = tuple(f"recognised by the {who} as well" for who, _ in others)
    return evolve(description, notes=(*description.notes, *notes))


def target_refusal(checkpoint: Checkpoint, registry: Registry = INSTALLED) -> str | None:
    """``None`` when some target loader recognises ``checkpoint``, else why none does, in a clause."""
    answers = _ask(registry, TARGETS, checkpoint, registry.names(TARGETS))
    if answers.fitting:
        return None
    reasons = "; ".join(f"'{name}': {reason}" for name, reason in answers.refusals.items())
    return f"no target loader recognises it ({reasons or 'none is installed'})"


@frozen
class _Answers(Generic[L]):
    """The loaders of one group that recognise a checkpoint, and why the others do not.

    ``faults``: what of the checkpoint itself kept loaders from telling.
    """

    group: Group[Callable[[], L]]
    fitting: dict[str, L] = field(factory=lambda: dict[str, L]())
    refusals: dict[str, str] = field(factory=lambda: dict[str, str]())
    faults: list[CheckpointError] = field(factory=lambda: list[CheckpointError]())

    def raise_fault(self) -> None:
        """Raise the first fault of the checkpoint, if there is one: no other loader would mend it."""
        if self.faults:
            raise self.faults[0]

    def reasons(self) -> str:
        """One line per refusal."""
        lines = [f"\n  - {self.group.noun} '{name}': {reason}" for name, reason in self.refusals.items()]
        return "".join(lines) or f"\n  - no {self.group.noun} is installed"

    def by_name(self) -> str:
        """How to have the checkpoint loaded all the same, where a loader takes it when it is named; else nothing."""
        names = [name for name, reason in self.refusals.items() if isinstance(reason, AskedByName)]
        option = "--drafter" if self.group.name == DRAFTS.name else "loader="
        return "".join(f"\nTo use it all the same, name the {self.group.noun}: {option} {name}" for name in names)


def _ask(
    registry: Registry, group: Group[Callable[[], L]], checkpoint: Checkpoint, names: tuple[str, ...]
) -> _Answers[L]:
    """Every loader's answer; one that cannot be used, or fails while it looks, counts as a refusal and is logged."""
    answers = _Answers(group)
    for name in names:
        try:
            loader = registry.create(group, name)
            reason = loader.refuses(checkpoint)
        except (PluginError, ConfigurationError) as error:
            _log.warning("%s", error)
            answers.refusals[name] = str(error)
        except CheckpointError as error:
            answers.refusals[name] = str(error)
            answers.faults.append(error)
        except Exception as error:  # a fault of one package must not keep the others from being asked
            reason = f"failed while it looked ({type(error).__name__}: {error})"
            _log.warning("%s '%s' %s at %s", group.noun, name, reason, checkpoint.directory)
            answers.refusals[name] = reason
        else:
            if reason is None:
                answers.fitting[name] = loader
            else:
                answers.refusals[name] = reason
    return answers


def _choose(registry: Registry, group: Group[Callable[[], L]], checkpoint: Checkpoint, wanted: str | None) -> L:
    if wanted is not None:
        loader = registry.create(group, wanted)
        reason = loader.refuses(checkpoint)
        if reason is not None and not isinstance(reason, AskedByName):
            raise NoLoaderError(
                f"{checkpoint.directory}: the {group.noun} '{wanted}' that was asked for does not recognise it: "
                f"{reason}; name another, or none to let the checkpoint decide"
            )
        return loader
    answers = _ask(registry, group, checkpoint, registry.names(group))
    if len(answers.fitting) > 1:
        raise ConfigurationError(
            f"{checkpoint.directory}: {len(answers.fitting)} {group.noun}s recognise it: "
            f"{', '.join(answers.fitting)}; pick one with loader=NAME"
        )
    for loader in answers.fitting.values():
        return loader
    answers.raise_fault()
    raise NoLoaderError(
        f"{checkpoint.directory}: no {group.noun} recognises this checkpoint ({_architectures(checkpoint)})"
        f"{answers.reasons()}\n{_remedy(registry, group, checkpoint)}{answers.by_name()}"
    )


def _remedy(registry: Registry, group: Group[Callable[[], L]], checkpoint: Checkpoint) -> str:
    """What to do when no loader of ``group`` fits: most often a target and a draft were exchanged."""
    exchanged = (
        _ask(registry, DRAFTS, checkpoint, registry.names(DRAFTS)).fitting
        if group.name == TARGETS.name
        else _ask(registry, TARGETS, checkpoint, registry.names(TARGETS)).fitting
    )
    if exchanged:
        other = DRAFTS.noun if group.name == TARGETS.name else TARGETS.noun
        return f"The {other} '{next(iter(exchanged))}' recognises it: were the target and the draft exchanged?"
    return (
        f"Install a package that declares a loader for it as an entry point of the group '{group.name}', or register "
        "one with outrider.registry.register"
    )


def _architectures(checkpoint: Checkpoint) -> str:
    return f"architectures: {', '.join(checkpoint.architectures) or 'none stated'}"
