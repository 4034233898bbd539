"""The draft vocabulary: its size, and its map to target ids from ``d2t`` and ``t2d``."""

from __future__ import annotations

import torch
from torch import Tensor

from outrider.errors import Problems
from outrider_adapters.eagle.settings import Settings

__all__ = ["draft_vocab_size", "target_ids_from_offsets"]

_INTEGERS = (torch.int64, torch.int32, torch.int16)
_MAX_SHOWN = 5


def draft_vocab_size(settings: Settings, vocab_size: int, problems: Problems) -> int:
    """Dv by ``draft_vocab_size`` or ``truncated_vocab_size``; the target's V where neither is there."""
    found = settings.whole("draft_vocab_size", "truncated_vocab_size")
    if found is None:
        return vocab_size
    if not 0 < found <= vocab_size:
        problems.add(f"the draft vocabulary has {found} ids, the target's {vocab_size}: expected 1 to {vocab_size}")
        return vocab_size
    return found


def target_ids_from_offsets(
    d2t: Tensor | None, t2d: Tensor | None, size: int, vocab_size: int, problems: Problems
) -> Tensor | None:
    """Absolute target ids ``[size]`` int64 on the CPU; ``None`` for a full vocabulary (or a faulty map, noted).

    ``d2t [size]`` holds *offsets*: draft id i is target id i + d2t[i]. ``t2d [V]`` marks the target ids that are in
    the draft's vocabulary, and must tell the same.
    """
    if d2t is None:
        if size < vocab_size:
            problems.add(
                f"the draft vocabulary has {size} of {vocab_size} ids, but there is no 'd2t' that maps them; get the "
                "complete checkpoint: without the map, drafted ids are other tokens"
            )
        return None
    if d2t.shape != (size,) or d2t.dtype not in _INTEGERS:
        problems.add(
            f"'d2t' is {d2t.dtype} {list(d2t.shape)}, expected whole numbers [{size}], one per id of the draft vocabulary"
        )
        return None
    offsets = d2t.to(torch.int64)
    if size == vocab_size and not offsets.any():
        return None
    if not offsets.any():
        problems.add(
            f"'d2t' is all zero, though the draft vocabulary has only {size} of {vocab_size} ids; an untrained or lost "
            "map. Get the complete checkpoint"
        )
        return None
    target_ids = torch.arange(size) + offsets
    hint = _absolute_hint(offsets, t2d, vocab_size)
    outside = (target_ids < 0) | (target_ids >= vocab_size)
    if outside.any():
        problems.add(
            f"'d2t' maps {int(outside.sum())} draft ids outside the target's 0 to {vocab_size - 1} "
            f"({_first_ids(target_ids[outside])}){hint}"
        )
        return None
    counts = torch.bincount(target_ids, minlength=vocab_size)
    if (counts > 1).any():
        repeated = (counts > 1).nonzero().flatten()
        problems.add(f"'d2t' maps several draft ids to the same target id ({_first_ids(repeated)}){hint}")
        return None
    if t2d is not None and not _agrees(counts, t2d, vocab_size, hint, problems):
        return None
    return target_ids


def _agrees(counts: Tensor, t2d: Tensor, vocab_size: int, hint: str, problems: Problems) -> bool:
    if t2d.shape != (vocab_size,):
        problems.add(f"'t2d' is {list(t2d.shape)}, expected [{vocab_size}], one mark per target id")
        return False
    marked = t2d.to(torch.bool)
    only_d2t, only_t2d = (counts > 0) & ~marked, (counts == 0) & marked
    if not (only_d2t | only_t2d).any():
        return True
    problems.add(
        f"'d2t' and 't2d' disagree: d2t reaches {int(only_d2t.sum())} target ids that t2d does not mark "
        f"({_first_ids(only_d2t.nonzero().flatten())}), t2d marks {int(only_t2d.sum())} that d2t does not reach "
        f"({_first_ids(only_t2d.nonzero().flatten())}){hint}"
    )
    return False


def _absolute_hint(offsets: Tensor, t2d: Tensor | None, vocab_size: int) -> str:
    absolute = bool(((offsets >= 0) & (offsets < vocab_size)).all()) and bool((offsets.sort().values.diff() > 0).all())
    if absolute and t2d is not None and t2d.shape == (vocab_size,):
        absolute = bool(t2d.to(torch.bool)[offsets].all())
    if absolute:
        return "; its values look like absolute target ids, but d2t holds offsets: store d2t[i] - i"
    return "; d2t holds offsets, target id = i + d2t[i]"


def _first_ids(ids: Tensor) -> str:
    values = [int(token) for token in ids[:_MAX_SHOWN]]
    return ", ".join(str(value) for value in values) + (", …" if ids.numel() > _MAX_SHOWN else "") or "none"
