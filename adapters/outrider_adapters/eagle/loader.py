"""The two draft loaders: `Eagle3Loader` and `EagleLoader`."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from outrider.checkpoint import Checkpoint
from outrider.errors import CheckpointError, Problems
from outrider.interfaces import Description, DraftLoader, LoadOptions
from outrider.types import DraftOverrides, WeightSource
from outrider_adapters.eagle.describe import describe_plan
from outrider_adapters.eagle.eagle1 import Eagle1Draft, Eagle1Weights
from outrider_adapters.eagle.eagle1_plan import plan_eagle1
from outrider_adapters.eagle.eagle3 import Eagle3Draft, Eagle3Weights, EarlyProjection, TapFusion
from outrider_adapters.eagle.eagle3_plan import plan_eagle3
from outrider_adapters.eagle.layer import DraftLayer
from outrider_adapters.eagle.plan import DraftPlan
from outrider_adapters.eagle.recognise import eagle1_refusal, eagle3_refusal
from outrider_adapters.eagle.spec import draft_spec
from outrider_adapters.nn import Projection, RmsNorm, Rope, WeightLoader

__all__ = ["Eagle3Loader", "EagleLoader", "eagle3_loader", "eagle_loader"]

_EAGLE3, _EAGLE1 = "EAGLE-3 draft", "EAGLE-1 draft"
_VOCABULARY_MAPS: Sequence[str] = ("d2t", "t2d")


class Eagle3Loader(DraftLoader):
    """Loads EAGLE-3 drafts: of the authors, SpecForge, ModelOpt and speculators, and EAGLE-3.1."""

    def refuses(self, checkpoint: Checkpoint) -> str | None:
        """``None`` for an EAGLE-3 checkpoint; else why it is none."""
        return eagle3_refusal(checkpoint)

    def load(self, checkpoint: Checkpoint, options: LoadOptions) -> Eagle3Draft:
        """The loaded, unbound draft; see `DraftLoader.load`."""
        title = _check_kind(checkpoint, _EAGLE3, self.refuses(checkpoint))
        with Problems(title, CheckpointError) as problems:
            plan = plan_eagle3(checkpoint, options.overrides, problems)
        assert plan is not None  # a plan that could not be made has left its reasons in problems
        draft, dtype = plan.draft, options.dtype or plan.draft.dtype
        loader = _weight_loader(checkpoint, options, dtype)
        hidden = draft.sizes.hidden_size
        weights = Eagle3Weights(
            fusion=TapFusion.load(loader, plan),
            early=EarlyProjection.load(loader, plan),
            layers=tuple(
                DraftLayer.load(
                    loader, draft.sizes, form, normed_residual=plan.flags.norm_before_residual and form.index == 0
                )
                for form in draft.layers
            ),
            norm=RmsNorm(loader.tensor("norm.weight", (hidden,)), draft.sizes.eps),
            rope=Rope(draft.sizes.rope, draft.sizes.max_positions, options.device, dtype),
            norm_output=plan.flags.norm_output,
        )
        embedding, head = _own_ends(loader, draft)
        loader.finish(title)
        spec = draft_spec(checkpoint.name, "eagle3", draft, dtype, options.device)
        return Eagle3Draft(
            spec, weights, embedding, head, taps_by_depth=draft.taps.taps is None, media_note=draft.media.note
        )

    def describe(self, checkpoint: Checkpoint) -> Description:
        """Taps and why, vocabulary, where embedding and head come from, and every fault, without reading weights."""
        refusal = self.refuses(checkpoint)
        if refusal is not None:
            return Description(_EAGLE3, (), (), (refusal,))
        problems = Problems(checkpoint.name, CheckpointError)
        plan = plan_eagle3(checkpoint, DraftOverrides(), problems)
        if plan is None or not plan.flags.fc:
            fc = "none, the tap is fed as it is"
        else:
            draft = plan.draft
            width = draft.taps.count * draft.target_hidden_size
            fc = f"{width} ({draft.taps.count} taps x {draft.target_hidden_size}) to {draft.sizes.hidden_size}"
        return describe_plan(_EAGLE3, None if plan is None else plan.draft, problems.found, fc)


class EagleLoader(DraftLoader):
    """Loads EAGLE-1, EAGLE-2 and HASS drafts."""

    def refuses(self, checkpoint: Checkpoint) -> str | None:
        """``None`` for an EAGLE-1, EAGLE-2 or HASS checkpoint; else why it is none."""
        return eagle1_refusal(checkpoint)

    def load(self, checkpoint: Checkpoint, options: LoadOptions) -> Eagle1Draft:
        """The loaded, unbound draft; see `DraftLoader.load`."""
        title = _check_kind(checkpoint, _EAGLE1, self.refuses(checkpoint))
        with Problems(title, CheckpointError) as problems:
            plan = plan_eagle1(checkpoint, options.overrides, problems)
        assert plan is not None  # a plan that could not be made has left its reasons in problems
        draft, dtype = plan.draft, options.dtype or plan.draft.dtype
        loader = _weight_loader(checkpoint, options, dtype)
        hidden, sizes = draft.sizes.hidden_size, draft.sizes
        norm = loader.tensor("embed_layernorm.weight", (hidden,)) if plan.embed_norm else None
        weights = Eagle1Weights(
            fc=Projection(
                loader.tensor("fc.weight", (hidden, 2 * hidden)),
                loader.tensor("fc.bias", (hidden,)) if draft.fc_bias else None,
            ),
            embed_norm=None if norm is None else RmsNorm(norm, sizes.eps),
            layers=tuple(DraftLayer.load(loader, sizes, form) for form in draft.layers),
            rope=Rope(sizes.rope, sizes.max_positions, options.device, dtype),
        )
        embedding, head = _own_ends(loader, draft)
        loader.finish(title)
        spec = draft_spec(checkpoint.name, "eagle", draft, dtype, options.device)
        return Eagle1Draft(spec, weights, embedding, head, draft.media.note)

    def describe(self, checkpoint: Checkpoint) -> Description:
        """Taps and why, where embedding and head come from, and every fault, without reading weights."""
        refusal = self.refuses(checkpoint)
        if refusal is not None:
            return Description(_EAGLE1, (), (), (refusal,))
        problems = Problems(checkpoint.name, CheckpointError)
        plan = plan_eagle1(checkpoint, DraftOverrides(), problems)
        hidden = 0 if plan is None else plan.draft.sizes.hidden_size
        bias = "with" if plan is not None and plan.draft.fc_bias else "without"
        fc = f"{2 * hidden} (embedding + feature) to {hidden}, {bias} bias"
        return describe_plan(_EAGLE1, None if plan is None else plan.draft, problems.found, fc)


def eagle3_loader() -> DraftLoader:
    """The loader of EAGLE-3 drafts (entry point ``eagle3`` of ``outrider.drafts``)."""
    return Eagle3Loader()


def eagle_loader() -> DraftLoader:
    """The loader of EAGLE-1, EAGLE-2 and HASS drafts (entry point ``eagle`` of ``outrider.drafts``)."""
    return EagleLoader()


def _check_kind(checkpoint: Checkpoint, kind: str, refusal: str | None) -> str:
    title = f"{checkpoint.directory} cannot be used as an {kind}"
    if refusal is not None:
        raise CheckpointError(f"{title}: {refusal}")
    return title


def _weight_loader(checkpoint: Checkpoint, options: LoadOptions, dtype: torch.dtype) -> WeightLoader:
    loader = WeightLoader(checkpoint.reader(), options.device, dtype, options.progress, finite=True)
    scoped = loader.scope("", "model.", "draft_model.", "draft_model.model.")
    scoped.ignore(*_VOCABULARY_MAPS)
    scoped.ignore_ending(".rotary_emb.inv_freq")
    return scoped


def _own_ends(loader: WeightLoader, draft: DraftPlan) -> tuple[Tensor | None, Tensor | None]:
    hidden, embedding = draft.sizes.hidden_size, None
    if draft.embedding is WeightSource.OWN:
        embedding = loader.tensor("embed_tokens.weight", (draft.sizes.vocab_size, hidden))
    if draft.head.name is None:
        return embedding, None
    if draft.head.name == "embed_tokens.weight":
        return embedding, embedding
    return embedding, loader.tensor(draft.head.name, (draft.head.size, hidden))
