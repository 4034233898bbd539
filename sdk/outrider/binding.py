"""Checks made when parts are bound to each other: can this backend serve these layers, this draft that target?"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from outrider.interfaces import BoundDraft, LayerStackProvider, SharedWeights
from outrider.types import (
    AttentionSpec,
    AttnCapabilities,
    DraftSpec,
    MediaView,
    ModelSpec,
    RowAlignment,
    WeightSource,
)

__all__ = [
    "check_attention",
    "check_draft_target",
    "check_draft_view",
    "check_shared_embedding",
    "check_shared_head",
]

_COMPARED_IDS = 512
_SHARED_TOLERANCE = 0.02
"""Of the largest value: more than the rounding of a half-precision product, less than a scale that was meant."""
_MAGNITUDES = (1.0, 16.0, 256.0)
"""Of the rows that a head is compared on: a cap shows at large ones, under a cap a scale at small ones."""


def check_attention(
    capabilities: AttnCapabilities,
    layers: Sequence[AttentionSpec],
    dtype: torch.dtype,
    device: torch.device,
    page_size: int,
    needs_tree: bool,
) -> list[str]:
    """Every reason why the backend cannot serve ``layers`` under these settings; empty when it can.

    Each message names what the model asks, what the backend has, and a remedy. Layers that share a fault are named in
    one message.
    """
    name = f"attention backend {capabilities.name!r}"
    problems: list[str] = []
    if device.type not in capabilities.devices:
        problems.append(
            f"the model is on {device.type}, {name} runs on {_listed(capabilities.devices)}; "
            "load the model there, or choose another backend"
        )
    if dtype not in capabilities.dtypes:
        problems.append(f"the model's dtype is {dtype}, {name} serves {_listed(map(str, capabilities.dtypes))}")
    if capabilities.page_sizes is not None and page_size not in capabilities.page_sizes:
        allowed = _numbers(capabilities.page_sizes)
        problems.append(f"the page size is {page_size}, {name} serves {allowed}; set one of these")
    if needs_tree and not capabilities.tree_masks:
        problems.append(f"the draft proposes trees, {name} has no tree masks; draft chains or choose another backend")

    if capabilities.head_dims is not None:
        for head_dim in sorted({spec.head_dim for spec in layers} - capabilities.head_dims):
            where = _where(layers, [spec.head_dim == head_dim for spec in layers])
            problems.append(f"{where}: head_dim {head_dim}, {name} serves {_numbers(capabilities.head_dims)}")
    for served, wanted, feature in (
        (capabilities.windows, [spec.window is not None for spec in layers], "a sliding window"),
        (capabilities.soft_cap, [spec.soft_cap is not None for spec in layers], "a soft cap on scores"),
        (capabilities.sinks, [spec.sinks is not None for spec in layers], "attention sinks"),
    ):
        if not served and any(wanted):
            where = _where(layers, wanted)
            problems.append(f"{where}: {feature} is asked, {name} has none; choose a backend that serves it")
    uneven = [spec.num_kv_heads < 1 or spec.num_heads % spec.num_kv_heads != 0 for spec in layers]
    if any(uneven):
        first = layers[uneven.index(True)]
        problems.append(
            f"{_where(layers, uneven)}: {first.num_heads} query heads over {first.num_kv_heads} kv heads; "
            "the former must be a multiple of the latter"
        )
    return problems


def check_draft_target(draft: BoundDraft, stack: LayerStackProvider) -> list[str]:
    """Every reason why ``draft`` cannot draft for ``stack``; empty when it can.

    A draft that was bound to another target gives that one reason: what its spec says is of the other.
    """
    spec, target = draft.spec, stack.spec
    if draft.bound_to is not stack:
        bound_to = draft.bound_to.spec
        alike = " (another load, whose weights may differ)" if bound_to == target else ""
        return [
            f"it was bound to {_sized(bound_to)}, and this target is {_sized(target)}{alike}; a bound draft serves only the "
            "target that it was checked against and shares weights with: bind the draft to this one (draft.bind(target))"
        ]
    problems: list[str] = []
    if spec.vocab.target_size != target.vocab_size:
        problems.append(
            f"its vocab.target_size is {spec.vocab.target_size}, '{target.name}' has {target.vocab_size} ids; declare the "
            "target's size"
        )
    shares = WeightSource.OWN is not spec.embedding or WeightSource.OWN is not spec.head
    if (spec.taps or shares) and spec.target_hidden_size != target.hidden_size:
        problems.append(
            f"its target_hidden_size is {spec.target_hidden_size}, '{target.name}' is {target.hidden_size} wide; declare the "
            "target's width"
        )
    return [*problems, *check_draft_view(spec, target)]


def check_draft_view(spec: DraftSpec, target: ModelSpec) -> list[str]:
    """Every reason why what the draft says it sees (features, media, positions) cannot be given to it; empty when it can."""
    problems: list[str] = []
    same = spec.alignment is RowAlignment.SAME
    if same and spec.taps:
        taps = ", ".join(map(str, spec.taps))
        problems.append(
            f"its rows are {spec.alignment.value}, yet it is fed {taps}: the target has no feature at its root yet; "
            "declare RowAlignment.SHIFTED, or no taps"
        )
    if spec.media is MediaView.TARGET_EMBEDDING and same:
        problems.append(
            f"its rows are {spec.alignment.value}, yet at media it wants {spec.media.value}: it reads tokens alone; declare "
            "MediaView.PLACEHOLDER"
        )
    if spec.media is MediaView.TARGET_EMBEDDING and spec.embed_width != target.hidden_size:
        problems.append(
            f"at media it wants {spec.media.value}, which is {target.hidden_size} wide, but its own embeddings are "
            f"{spec.embed_width} wide; declare MediaView.PLACEHOLDER"
        )
    if spec.position_axes not in (1, 3):
        problems.append(f"its position_axes is {spec.position_axes}, allowed are 1 and 3")
    return problems


def check_shared_embedding(stack: LayerStackProvider, weights: SharedWeights) -> list[str]:
    """Why rows of ``weights.embedding``, times the spec's ``embedding_scale``, are not what ``embed`` gives; empty if they are.

    Some hundred ids are compared, on the stack's device; synchronises.
    """
    spec, ids = stack.spec, _spread_ids(stack.spec)
    expected = weights.embedding.index_select(0, ids).float() * spec.embedding_scale
    distance = _distance(stack.embed(ids), expected)
    if distance <= _SHARED_TOLERANCE:
        return []
    return [
        f"'{spec.name}' embeds otherwise than its shared embedding times embedding_scale {spec.embedding_scale} (off by "
        f"{distance:.0%} of the largest value); declare in ModelSpec the scale that `embed` applies, and share the "
        "embedding that it uses"
    ]


def check_shared_head(stack: LayerStackProvider, weights: SharedWeights) -> list[str]:
    """Why products with ``weights.head``, under the spec's ``logit_scaling``, are not what ``logits`` gives; empty if they are.

    A few rows are compared at some hundred ids, on the stack's device; synchronises.
    """
    spec, ids = stack.spec, _spread_ids(stack.spec)
    row = torch.linspace(-1.0, 1.0, spec.hidden_size, device=spec.device)
    hidden = torch.stack([row * magnitude for magnitude in _MAGNITUDES]).to(spec.dtype)
    head = weights.head.index_select(0, ids).float()
    expected = spec.logit_scaling.apply(hidden.float() @ head.T)
    found = stack.logits(hidden).index_select(1, ids)
    distance = max(_distance(*rows) for rows in zip(found, expected, strict=True))
    if distance <= _SHARED_TOLERANCE:
        return []
    scaling = spec.logit_scaling
    return [
        f"the logits of '{spec.name}' are not hidden @ head.T of its shared head under its logit_scaling (scale "
        f"{scaling.scale}, cap {scaling.cap}; off by {distance:.0%} of the largest value); declare in ModelSpec the scale "
        "and soft cap that `logits` applies, and share the head that it uses"
    ]


def _spread_ids(model: ModelSpec) -> Tensor:
    return torch.arange(0, model.vocab_size, max(model.vocab_size // _COMPARED_IDS, 1), device=model.device)


def _distance(found: Tensor, expected: Tensor) -> float:
    """Largest difference relative to the largest expected value; infinite where something is not finite."""
    largest = float(expected.abs().amax().clamp(min=1e-6))
    worst = float((found.float() - expected).abs().amax()) / largest
    return worst if worst == worst else float("inf")


def _sized(model: ModelSpec) -> str:
    return f"'{model.name}' ({model.vocab_size} ids, hidden size {model.hidden_size}, {model.num_layers} layers)"


def _where(layers: Sequence[AttentionSpec], faulty: Sequence[bool]) -> str:
    """Which layers a message is about, shortened when there are many."""
    indices = [index for index, fault in enumerate(faulty) if fault]
    if len(indices) == len(layers):
        return "every layer"
    shown = ", ".join(str(index) for index in indices[:8])
    more = f" and {len(indices) - 8} more" if len(indices) > 8 else ""
    return f"layer {shown}{more}" if len(indices) == 1 else f"layers {shown}{more}"


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(names))


def _numbers(values: Iterable[int]) -> str:
    return ", ".join(str(value) for value in sorted(values))
