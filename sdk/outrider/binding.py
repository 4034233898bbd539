"""Checks made when parts are bound to each other: can this backend serve these layers?"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch

from outrider.types import AttentionSpec, AttnCapabilities, DraftSpec, MediaView, ModelSpec, RowAlignment

__all__ = ["check_attention", "check_draft_view"]


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
