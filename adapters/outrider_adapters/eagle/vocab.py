"""The draft vocabulary: its size, and its map to target ids from ``d2t``, ``t2d`` or a hot-token list."""

from __future__ import annotations

import json
from pathlib import Path
from typing import cast

import torch
from attrs import frozen
from torch import Tensor

from outrider.errors import CheckpointError, Problems
from outrider_adapters.eagle.settings import Settings

__all__ = ["HotTokens", "draft_vocab_size", "hot_tokens", "read_hot_tokens", "target_ids_from_offsets"]

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


@frozen
class HotTokens:
    """A hot-token list without repeats, in its order, and how many repeats were dropped."""

    ids: tuple[int, ...]
    num_repeats: int


def hot_tokens(listed: tuple[int, ...], vocab_size: int, problems: Problems) -> HotTokens:
    """``listed`` absolute target ids, unsorted and perhaps repeated, checked and with each id kept once.

    Source: FR-Spec (Zhao et al. 2025).
    """
    outside = tuple(token for token in listed if not 0 <= token < vocab_size)
    if outside:
        shown = ", ".join(map(str, outside[:_MAX_SHOWN]))
        problems.add(f"{len(outside)} hot tokens are outside the target's 0 to {vocab_size - 1} ({shown})")
    if not listed:
        problems.add("the hot-token list is empty; leave it out to draft over the whole vocabulary")
    kept = tuple(dict.fromkeys(listed))
    return HotTokens(kept, len(listed) - len(kept))


def read_hot_tokens(path: Path, allow_pickle: bool = False) -> tuple[int, ...]:
    """The list of target ids in a token file: a JSON list, or a pickled ``.pt`` list with an explicit opt-in.

    Raises:
        CheckpointError: the file cannot be read, is pickled without the opt-in, or holds no list of whole numbers.
    """
    loaded: object
    try:
        if path.suffix == ".json":
            loaded = json.loads(path.read_text(encoding="utf-8"))
        elif allow_pickle:
            loaded = torch.load(path, map_location="cpu", weights_only=True)
        else:
            raise CheckpointError(
                f"{path}: a pickled token file can run code when opened; store it as a JSON list, or allow it explicitly"
            )
    except CheckpointError:
        raise
    except Exception as error:
        raise CheckpointError(f"{path}: cannot be read as a token list ({error})") from error
    if isinstance(loaded, Tensor):
        # Fails below, as a list must, where the tensor holds no whole numbers.
        whole = loaded.dtype in _INTEGERS
        loaded = [int(token) if whole else None for token in loaded.flatten()]
    if not isinstance(loaded, list):
        raise CheckpointError(f"{path}: holds a {type(loaded).__name__}, expected a list of target token ids")
    items = cast("list[object]", loaded)
    if any(not isinstance(item, int) or isinstance(item, bool) for item in items):
        raise CheckpointError(f"{path}: holds values that are no whole numbers, expected a list of target token ids")
    return tuple(cast("list[int]", items))
