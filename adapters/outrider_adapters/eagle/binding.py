"""Joins an EAGLE draft and its target: every check, and the weights they share."""

from __future__ import annotations

from attrs import evolve, frozen
from torch import Tensor

from outrider.binding import check_shared_embedding, check_shared_head
from outrider.errors import BindError, Problems
from outrider.interfaces import LayerStackProvider, Target
from outrider.types import DraftSpec, LogitScaling, ModelSpec, PositionView, WeightSource
from outrider_adapters.eagle.taps import default_taps
from outrider_adapters.nn import same_device

__all__ = ["JoinedWeights", "bind_spec", "join_weights"]


@frozen(eq=False)
class JoinedWeights:
    """``embedding [V, H]`` and ``head [Dv, H]`` of a draft bound to ``bound_to``; the target's are its own storage.

    ``embedding_scale`` and ``logit_scaling`` are the target's where the weight is, and change nothing where it is the draft's.
    """

    bound_to: LayerStackProvider
    embedding: Tensor
    head: Tensor
    embedding_scale: float
    logit_scaling: LogitScaling


def bind_spec(spec: DraftSpec, target: Target, taps_by_depth: bool, media_note: str | None) -> DraftSpec:
    """``spec`` with its taps and positions final, after every check against ``target``.

    ``taps_by_depth``: the taps follow from the number of the target's layers. ``media_note``: for a target with media.

    Raises:
        BindError: widths, vocabulary, taps, dtype or device do not fit, or weights to share are not offered; all at
            once.
    """
    model = target.stack.spec
    with Problems(f"draft '{spec.name}' does not fit target '{model.name}'", BindError) as problems:
        _check_widths(spec, model, problems)
        _check_vocabulary(spec, model, problems)
        if spec.dtype != model.dtype:
            problems.add(
                f"the draft's weights are {spec.dtype}, the target's {model.dtype}; load both with the same dtype "
                "(LoadOptions.dtype)"
            )
        if not same_device(spec.device, model.device):
            problems.add(f"the draft is on {spec.device}, the target on {model.device}; load both on the same device")
        shared = [
            what
            for what, source in (("embedding", spec.embedding), ("head", spec.head))
            if source is not WeightSource.OWN
        ]
        if shared and target.weights is None:
            problems.add(
                f"the draft takes its {' and '.join(shared)} from the target, whose loader offers no SharedWeights "
                "(Target.weights is None); use a draft that brings its own, or a loader that shares them"
            )
        spec = _final_taps(spec, model, taps_by_depth, problems)
    if target.media is not None and media_note is not None:
        spec = evolve(spec, notes=(*spec.notes, media_note))
    return _final_positions(evolve(spec, notes=(*spec.notes, *_scale_notes(spec, model))), model)


def join_weights(
    spec: DraftSpec, target: Target, own_embedding: Tensor | None, own_head: Tensor | None
) -> JoinedWeights:
    """Embedding and head of a checked pair; slicing copies rows, sharing never copies.

    Raises:
        BindError: the target's weights are not what its spec says, or not what its stack uses.
    """
    shared, model = target.weights, target.stack.spec
    embedding, head = own_embedding, own_head
    if shared is not None and embedding is None:
        embedding = shared.embedding
    if shared is not None and head is None:
        head = shared.head
    if embedding is None or head is None:
        raise BindError(f"draft '{spec.name}': the target shares neither embedding nor head (Target.weights is None)")
    with Problems(f"draft '{spec.name}' cannot share weights with target '{model.name}'", BindError) as problems:
        for what, source, weight in (("embedding", spec.embedding, embedding), ("head", spec.head, head)):
            expected = (model.vocab_size, spec.hidden_size)
            if source is not WeightSource.OWN and (weight.shape != expected or weight.dtype != spec.dtype):
                problems.add(
                    f"the target's {what} is {list(weight.shape)} {weight.dtype}, expected {list(expected)} {spec.dtype}"
                )
    shares_embedding, shares_head = spec.embedding is not WeightSource.OWN, spec.head is not WeightSource.OWN
    with Problems(f"draft '{spec.name}' cannot share weights with target '{model.name}'", BindError) as problems:
        if shared is not None and shares_embedding:
            for problem in check_shared_embedding(target.stack, shared):
                problems.add(problem)
        if shared is not None and shares_head:
            for problem in check_shared_head(target.stack, shared):
                problems.add(problem)
    if spec.head is WeightSource.TARGET_SLICED and spec.vocab.target_ids is not None:
        head = head.index_select(0, spec.vocab.target_ids)
    return JoinedWeights(
        target.stack,
        embedding,
        head,
        embedding_scale=model.embedding_scale if shares_embedding else 1.0,
        logit_scaling=model.logit_scaling if shares_head else LogitScaling(),
    )


def _check_widths(spec: DraftSpec, model: ModelSpec, problems: Problems) -> None:
    if spec.target_hidden_size != model.hidden_size:
        problems.add(
            f"the draft was trained on features of width {spec.target_hidden_size}, the target's hidden size is "
            f"{model.hidden_size}; use the target it was trained for"
        )
    if spec.hidden_size == model.hidden_size:
        return
    for what, source in (("embedding", spec.embedding), ("head", spec.head)):
        if source is not WeightSource.OWN:
            problems.add(
                f"the draft is {spec.hidden_size} wide and takes its {what} from the target, which is "
                f"{model.hidden_size} wide; a draft of another width must bring its own {what}"
            )


def _scale_notes(spec: DraftSpec, model: ModelSpec) -> tuple[str, ...]:
    """What it is given of the target beyond raw weights: no published config says whether it was trained on these or those."""
    notes: list[str] = []
    if spec.embedding is not WeightSource.OWN and model.embedding_scale != 1.0:
        notes.append(f"embedding: the target's, times {model.embedding_scale:g} as the target embeds")
    scaling = model.logit_scaling
    if spec.head is not WeightSource.OWN and scaling != LogitScaling():
        cap = "" if scaling.cap is None else f", soft cap {scaling.cap:g}"
        notes.append(f"head: logits as the target's are, scale {scaling.scale:g}{cap}")
    return tuple(notes)


def _check_vocabulary(spec: DraftSpec, model: ModelSpec, problems: Problems) -> None:
    if spec.vocab.target_size != model.vocab_size:
        problems.add(
            f"the draft was trained for a vocabulary of {spec.vocab.target_size} ids, the target has "
            f"{model.vocab_size}; use the target it was trained for"
        )


def _final_positions(spec: DraftSpec, model: ModelSpec) -> DraftSpec:
    """Heads of one axis are trained on counted positions, and SGLang serves them so, whatever the target's rope is."""
    if spec.position_axes == model.positions.axes or spec.position_axes != 1:
        return spec
    note = (
        f"rope positions count tokens: config.json names no 'mrope_section', so the {model.positions.axes} axes of the "
        "target's positions are not the draft's"
    )
    return evolve(spec, positions=PositionView.INDEX, notes=(*spec.notes, note))


def _final_taps(spec: DraftSpec, model: ModelSpec, by_depth: bool, problems: Problems) -> DraftSpec:
    if by_depth:
        taps = default_taps(model.num_layers)
        if taps is None:
            problems.add(
                f"the checkpoint names no layer ids, and EAGLE-3's own (boundaries 2, N//2, N-3) collide in a target of "
                f"{model.num_layers} layers; name the taps (DraftOverrides(taps=...))"
            )
            return spec
        shown = ", ".join(str(tap) for tap in taps)
        return evolve(spec, taps=taps, notes=(*spec.notes, f"taps {shown} for a target of {model.num_layers} layers"))
    missing = [str(tap) for tap in spec.taps if not tap.exists_in(model.num_layers)]
    if missing:
        problems.add(
            f"the draft is fed {', '.join(missing)}, but a target of {model.num_layers} layers has boundaries 0 to "
            f"{model.num_layers}; use the target it was trained for, or correct the taps or their convention"
        )
    return spec
