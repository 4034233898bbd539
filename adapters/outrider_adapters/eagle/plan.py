"""What EAGLE drafts of either generation share once their checkpoint is understood, before weights are read."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from attrs import frozen
from torch import Tensor

from outrider.checkpoint import Checkpoint, check_hot_tokens
from outrider.errors import Problems
from outrider.types import DraftOverrides, WeightSource
from outrider_adapters.eagle.decoder import DecoderSizes, LayerForm
from outrider_adapters.eagle.media import MediaChoice
from outrider_adapters.eagle.names import TensorPlan
from outrider_adapters.eagle.settings import Settings
from outrider_adapters.eagle.taps import TapChoice

__all__ = ["DraftPlan", "HeadChoice", "plan_dtype", "plan_sliced_head", "stored_tensor"]

_FLOATS = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


@frozen(eq=False)
class HeadChoice:
    """Where the head comes from and which ids it speaks of.

    ``name``: canonical name of the draft's own head tensor (the embedding's where they are tied), else ``None``.
    ``target_ids``: ``[size]`` int64 on the CPU, ``None`` for a full vocabulary.
    """

    source: WeightSource
    name: str | None
    size: int
    target_ids: Tensor | None = None


@frozen(eq=False)
class DraftPlan:
    """A checked checkpoint: every tensor that will be read has its name, shape and use."""

    sizes: DecoderSizes
    layers: tuple[LayerForm, ...]
    names: Mapping[str, str]
    taps: TapChoice
    target_hidden_size: int
    embedding: WeightSource
    head: HeadChoice
    media: MediaChoice
    dtype: torch.dtype
    fc_bias: bool
    notes: tuple[str, ...]


def plan_dtype(tensors: TensorPlan, settings: Settings, problems: Problems, notes: list[str]) -> torch.dtype:
    """The floating dtype the weights are stored in; config.json's word is only compared with it."""
    info = tensors.info("fc.weight") or tensors.info("layers.0.mlp.down_proj.weight")
    if info is None:
        return torch.float32
    if info.dtype not in _FLOATS:
        allowed = ", ".join(str(dtype) for dtype in _FLOATS)
        problems.add(f"weights are stored as {info.dtype}, expected one of {allowed}; quantized drafts are not loaded")
        return torch.float32
    told = settings.stored_dtype()
    if told is not None and f"torch.{told.removeprefix('torch.')}" != str(info.dtype):
        notes.append(f"dtype {info.dtype}: config.json says {told}, the tensors are {info.dtype}; the tensors win")
    return info.dtype


def plan_sliced_head(
    overrides: DraftOverrides, sizes: DecoderSizes, size: int, problems: Problems
) -> tuple[HeadChoice, str]:
    """The target's head sliced to the hot tokens of ``overrides``, and the note that says so (FR-Spec)."""
    hot = check_hot_tokens(overrides.hot_tokens or (), sizes.vocab_size, problems)
    if size not in (sizes.vocab_size, len(hot.ids)):
        problems.add(
            f"the draft vocabulary has {size} ids by config.json, the hot-token list {len(hot.ids)} distinct ones; they "
            "must agree: give the list this draft was made for"
        )
    repeats = f", {hot.num_repeats} repeats dropped" if hot.num_repeats else ""
    note = f"head: the target's, sliced to {len(hot.ids)} hot tokens in the order given{repeats}"
    target_ids = torch.tensor(hot.ids, dtype=torch.int64)
    return HeadChoice(WeightSource.TARGET_SLICED, None, len(hot.ids), target_ids), note


def stored_tensor(checkpoint: Checkpoint, tensors: TensorPlan, name: str) -> Tensor | None:
    """The small tensor ``name``, read at once since the plan depends on its values; ``None`` where it is absent."""
    if not tensors.has(name):
        return None
    tensors.use(name)
    return checkpoint.files.read(tensors.names[name])
