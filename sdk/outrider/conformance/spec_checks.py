"""Is a `ModelSpec` or a `DraftSpec` one that a model can have?"""

from __future__ import annotations

import math
from collections.abc import Sequence

from outrider.binding import check_draft_target
from outrider.conformance.report import Faults
from outrider.interfaces import BoundDraft, Target
from outrider.types import AttentionSpec, RopeSpec, WeightSource

__all__ = ["check_draft_spec", "check_draft_vocabulary", "check_model_spec"]


def check_model_spec(target: Target, faults: Faults) -> None:
    """Sizes that fit each other, the same every time they are asked."""
    spec = target.stack.spec
    faults.expect(target.stack.spec == spec, "spec changes between two reads; build it once")
    for name, value in (("hidden_size", spec.hidden_size), ("vocab_size", spec.vocab_size)):
        faults.expect(value >= 1, f"spec.{name} is {value}, at least 1 is needed")
    faults.expect(spec.max_positions >= 2, f"spec.max_positions is {spec.max_positions}, at least 2 are needed")
    faults.expect(spec.dtype.is_floating_point, f"spec.dtype is {spec.dtype}, a float type is needed")
    faults.expect(spec.positions.axes in (1, 3), f"spec.positions.axes is {spec.positions.axes}, allowed are 1 and 3")
    scaling = spec.logit_scaling
    for name, factor in (("embedding_scale", spec.embedding_scale), ("logit_scaling.scale", scaling.scale)):
        faults.expect(math.isfinite(factor) and factor > 0, f"spec.{name} is {factor}; a factor above 0 is needed")
    faults.expect(scaling.cap is None or scaling.cap > 0, f"spec.logit_scaling.cap is {scaling.cap}, not above 0")
    _check_layers(spec.layers, faults)
    _check_rope(spec.rope, spec.layers, faults)
    outside = [token for token in target.eos_ids if not 0 <= token < spec.vocab_size]
    faults.expect(not outside, f"eos_ids {outside} are outside the vocabulary 0..{spec.vocab_size - 1}")


def check_draft_spec(draft: BoundDraft, target: Target, faults: Faults) -> None:
    """Sizes that fit each other and the target."""
    spec, model = draft.spec, target.stack.spec
    faults.expect(draft.spec == spec, "spec changes between two reads; build it once")
    faults.expect(spec.hidden_size >= 1, f"spec.hidden_size is {spec.hidden_size}, at least 1 is needed")
    faults.expect(spec.max_positions >= 2, f"spec.max_positions is {spec.max_positions}, at least 2 are needed")
    _check_layers(spec.layers, faults)
    _check_rope(spec.rope, spec.layers, faults)
    for tap in spec.taps:
        faults.expect(
            tap.exists_in(model.num_layers),
            f"spec.taps asks for {tap}; '{model.name}' has boundaries 0 to {model.num_layers} and final_norm",
        )
    for problem in check_draft_target(draft, target.stack):
        faults.add(problem)
    sections = spec.rope is not None and spec.rope.sections is not None
    faults.expect(
        not sections or spec.position_axes == 3,
        "spec.rope has sections for several position axes, yet spec.position_axes is 1; declare 3",
    )
    if WeightSource.OWN is not spec.embedding or WeightSource.OWN is not spec.head:
        faults.expect(
            target.weights is not None,
            f"spec takes weights from the target, but '{model.name}' shares none (Target.weights is None)",
        )
    if spec.state is not None:
        faults.expect(spec.state.width >= 1, f"spec.state.width is {spec.state.width}, at least 1 is needed")
    if spec.max_draft_tokens is not None:
        faults.expect(spec.max_draft_tokens >= 1, f"spec.max_draft_tokens is {spec.max_draft_tokens}, 1 is the least")


def check_draft_vocabulary(draft: BoundDraft, faults: Faults) -> None:
    """Draft ids name distinct ids within the size that the spec says the target has."""
    vocab = draft.spec.vocab
    faults.expect(
        1 <= vocab.size <= vocab.target_size, f"vocab.size is {vocab.size}, allowed is 1 to {vocab.target_size}"
    )
    if vocab.target_ids is None:
        faults.expect(
            vocab.size == vocab.target_size,
            f"vocab.size is {vocab.size} of {vocab.target_size} and vocab.target_ids is None; give the id of each, or the "
            "whole vocabulary",
        )
        return
    ids = [int(token) for token in vocab.target_ids.flatten()]
    faults.expect(len(ids) == vocab.size, f"vocab.target_ids has {len(ids)} ids, vocab.size is {vocab.size}")
    faults.expect(
        not vocab.target_ids.is_floating_point() and vocab.target_ids.element_size() == 8,
        f"vocab.target_ids is {vocab.target_ids.dtype}, int64 is needed",
    )
    outside = [token for token in ids if not 0 <= token < vocab.target_size]
    faults.expect(
        not outside,
        f"{len(outside)} of vocab.target_ids are outside 0..{vocab.target_size - 1}, first {outside[:1]}; they are "
        "absolute target ids, not offsets",
    )
    repeated = len(ids) - len(set(ids))
    faults.expect(
        not repeated,
        f"{repeated} of vocab.target_ids repeat another; a target id may be named once (are these offsets, to be added to "
        "the draft id?)",
    )


def _check_layers(layers: Sequence[AttentionSpec], faults: Faults) -> None:
    faults.expect(bool(layers), "spec.layers is empty; give one AttentionSpec for each layer")
    for index, layer in enumerate(layers):
        name = f"spec.layers[{index}]"
        heads, kv_heads = layer.num_heads, layer.num_kv_heads
        faults.expect(
            kv_heads >= 1 and heads >= 1 and heads % max(kv_heads, 1) == 0,
            f"{name} has {heads} query heads over {kv_heads} kv heads; the former must be a multiple of the latter",
        )
        faults.expect(layer.head_dim >= 1, f"{name}.head_dim is {layer.head_dim}, at least 1 is needed")
        faults.expect(
            math.isfinite(layer.scale) and layer.scale > 0, f"{name}.scale is {layer.scale}; it multiplies q·k"
        )
        faults.expect(
            layer.window is None or layer.window >= 1, f"{name}.window is {layer.window}, at least 1 is needed"
        )
        faults.expect(layer.soft_cap is None or layer.soft_cap > 0, f"{name}.soft_cap is {layer.soft_cap}, not above 0")
        if layer.sinks is not None:
            faults.expect(
                list(layer.sinks.shape) == [heads],
                f"{name}.sinks is {list(layer.sinks.shape)}, expected [{heads}]: one logit for each query head",
            )


def _check_rope(rope: RopeSpec | None, layers: Sequence[AttentionSpec], faults: Faults) -> None:
    if rope is None or not layers:
        return
    smallest = min(layer.head_dim for layer in layers)
    faults.expect(
        rope.rotary_dim % 2 == 0 and 0 < rope.rotary_dim <= smallest,
        f"spec.rope.rotary_dim is {rope.rotary_dim}; an even number up to the head dim {smallest} is needed",
    )
    faults.expect(rope.theta > 0, f"spec.rope.theta is {rope.theta}, it must be above 0")
