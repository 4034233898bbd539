"""From a checked plan to the `DraftSpec` of an unbound draft."""

from __future__ import annotations

import torch

from outrider.types import DraftSpec, DraftVocab, RecurrentState
from outrider_adapters.eagle.plan import DraftPlan
from outrider_adapters.nn import extended_positions

__all__ = ["draft_spec"]


def draft_spec(name: str, kind: str, plan: DraftPlan, dtype: torch.dtype, device: torch.device) -> DraftSpec:
    """The spec of ``plan`` loaded as ``dtype`` on ``device``.

    ``taps`` is empty until bind where they follow from the target's depth; a note says so.
    """
    sizes, head = plan.sizes, plan.head
    target_ids = None if head.target_ids is None else head.target_ids.to(device)
    return DraftSpec(
        name=name,
        kind=kind,
        hidden_size=sizes.hidden_size,
        layers=tuple(sizes.attention(form.index) for form in plan.layers),
        taps=plan.taps.taps or (),
        target_hidden_size=plan.target_hidden_size,
        state=RecurrentState(sizes.hidden_size, dtype),
        vocab=DraftVocab(head.size, sizes.vocab_size, target_ids),
        embedding=plan.embedding,
        head=head.source,
        max_positions=extended_positions(sizes.rope, sizes.max_positions),
        dtype=dtype,
        device=device,
        rope=sizes.rope,
        media=plan.media.view,
        position_axes=1 if sizes.rope.sections is None else 3,
        needs_lengths=sizes.rope.kind == "dynamic",
        notes=plan.notes,
    )
