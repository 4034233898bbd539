"""An EAGLE checkpoint in words, for ``outrider inspect``."""

from __future__ import annotations

from outrider.interfaces import Description
from outrider.types import RopeSpec, WeightSource
from outrider_adapters.eagle.plan import DraftPlan, HeadChoice

__all__ = ["describe_plan"]


def describe_plan(kind: str, plan: DraftPlan | None, found: tuple[str, ...], fc: str) -> Description:
    """``plan`` as facts and notes; ``found`` are the problems. Without a plan there is only what is wrong."""
    if plan is None:
        return Description(kind, (), (), found)
    sizes, head = plan.sizes, plan.head
    facts = (
        ("hidden size", str(sizes.hidden_size)),
        ("target hidden size", str(plan.target_hidden_size)),
        ("layers", str(len(plan.layers))),
        ("attention", f"{sizes.num_heads} query / {sizes.num_kv_heads} kv heads of {sizes.head_dim}"),
        ("taps", str(plan.taps)),
        ("fc", fc),
        ("rope", _rope(sizes.rope)),
        ("context", str(sizes.max_positions)),
        ("vocabulary", _vocabulary(head, sizes.vocab_size)),
        ("embedding", _source(plan.embedding)),
        ("head", _source(head.source)),
        ("at images", plan.media.view.value),
        ("dtype", str(plan.dtype).removeprefix("torch.")),
    )
    return Description(kind, facts, plan.notes, found)


def _vocabulary(head: HeadChoice, vocab_size: int) -> str:
    if head.source is WeightSource.TARGET_SLICED:
        return f"{head.size} hot tokens of {vocab_size}"
    if head.target_ids is None:
        return f"full, {vocab_size} ids"
    return f"{head.size} of {vocab_size} ids, mapped by d2t"


def _source(source: WeightSource) -> str:
    return "its own" if source is WeightSource.OWN else f"from the {source.value}"


def _rope(rope: RopeSpec) -> str:
    scaled = "" if rope.kind == "default" else f", {rope.kind} x {rope.factor:g}"
    axes = "" if rope.sections is None else f", axes {'/'.join(map(str, rope.sections))}"
    return f"theta {rope.theta:g} over {rope.rotary_dim} dimensions{scaled}{axes} (the draft's own)"
