"""`StandaloneLoader`: any model that can be loaded as a target, as a draft; only where that is asked for by name."""

from __future__ import annotations

from attrs import evolve

from outrider import registry
from outrider.checkpoint import Checkpoint
from outrider.errors import CheckpointError, Problems
from outrider.interfaces import AskedByName, Description, DraftLoader, LoadOptions
from outrider.types import DraftOverrides
from outrider_adapters.standalone.draft import StandaloneDraft

__all__ = ["StandaloneLoader", "load", "loader"]


class StandaloneLoader(DraftLoader):
    """Loads an ordinary language model as a draft, by whichever target loader recognises it.

    A plain model in the place of a draft is most often a mistake (the target given twice, the wrong directory), so no
    checkpoint is taken unless this loader is named.
    """

    def refuses(self, checkpoint: Checkpoint) -> str | None:
        """Always a reason: `AskedByName` where the checkpoint is a model, which naming this loader sets aside."""
        unfit = registry.target_refusal(checkpoint)
        return unfit if unfit is not None else AskedByName("only when asked for by name (drafter standalone)")

    def load(self, checkpoint: Checkpoint, options: LoadOptions) -> StandaloneDraft:
        """The model, unbound; of `DraftOverrides` it honours ``hot_tokens``.

        Raises:
            CheckpointError: no target loader recognises it, it is faulty, or an override cannot be honoured.
        """
        overrides = options.overrides
        with Problems(f"{checkpoint.directory} cannot be used as a standalone draft", CheckpointError) as problems:
            for name, given in (
                ("taps", overrides.taps is not None),
                ("tap_convention", overrides.tap_convention is not None),
                ("target_head", overrides.target_head),
            ):
                if given:
                    problems.add(f"{name} was given, but it takes nothing from the target; leave it out")
        model = registry.load_target(checkpoint, evolve(options, overrides=DraftOverrides()))
        return StandaloneDraft(model, overrides.hot_tokens)

    def describe(self, checkpoint: Checkpoint) -> Description:
        """The model as its target loader describes it."""
        return registry.describe(checkpoint)


def loader() -> DraftLoader:
    """The loader of standalone drafts (entry point ``standalone`` of ``outrider.drafts``)."""
    return StandaloneLoader()


def load(checkpoint: Checkpoint, options: LoadOptions) -> StandaloneDraft:
    """``checkpoint`` as a standalone draft; see `StandaloneLoader.load`."""
    return StandaloneLoader().load(checkpoint, options)
