"""Hot-token lists: the target ids that a draft's head is cut to, most frequent first.

Source: Zhao et al. 2025, "FR-Spec: Accelerating Large-Vocabulary Language Models via Frequency-Ranked Speculative
Sampling".
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import cast

import torch
from attrs import frozen
from torch import Tensor

from outrider.errors import CheckpointError, Problems

__all__ = ["HotTokens", "check_hot_tokens", "load_hot_tokens"]

_INTEGERS = (torch.int64, torch.int32, torch.int16)
_MAX_SHOWN = 5


@frozen
class HotTokens:
    """A hot-token list without repeats, in its order, and how many repeats were dropped."""

    ids: tuple[int, ...]
    num_repeats: int


def load_hot_tokens(path: Path, allow_pickle: bool = False) -> tuple[int, ...]:
    """The list of target ids in a token file: a JSON list, or a pickled ``.pt`` list with an explicit opt-in.

    Unsorted and with repeats, as published; `check_hot_tokens` makes it fit a vocabulary.

    Raises:
        CheckpointError: the file cannot be read, is pickled without the opt-in, or holds no list of token ids.
    """
    loaded: object
    if path.suffix != ".json" and not allow_pickle:
        raise CheckpointError(
            f"{path}: a pickled token file can run code when opened; store it as a JSON list (*.json), or allow it "
            "explicitly (allow_pickle=True)"
        )
    try:
        if path.suffix == ".json":
            loaded = json.loads(path.read_text(encoding="utf-8"))
        else:
            loaded = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch.load raises whatever it likes
        raise CheckpointError(f"{path}: cannot be read as a token list ({error})") from error
    if isinstance(loaded, Tensor):
        # Fails below, as a list must, where the tensor holds no whole numbers.
        whole = loaded.dtype in _INTEGERS
        loaded = [int(token) if whole else None for token in loaded.flatten()]
    if not isinstance(loaded, list):
        raise CheckpointError(f"{path}: holds a {type(loaded).__name__}, expected a list of target token ids")
    items = cast("list[object]", loaded)
    for place, item in enumerate(items):
        if not isinstance(item, int) or isinstance(item, bool) or item < 0:
            raise CheckpointError(f"{path}: entry {place} is {item!r}; a target token id is a whole number from 0")
    if not items:
        raise CheckpointError(f"{path}: the list is empty; leave it out to draft over the whole vocabulary")
    return tuple(cast("list[int]", items))


def check_hot_tokens(listed: tuple[int, ...], vocab_size: int, problems: Problems) -> HotTokens:
    """``listed`` absolute target ids, unsorted and perhaps repeated, checked and with each id kept once."""
    outside = tuple(token for token in listed if not 0 <= token < vocab_size)
    if outside:
        shown = ", ".join(map(str, outside[:_MAX_SHOWN]))
        problems.add(f"{len(outside)} hot tokens are outside the target's 0 to {vocab_size - 1} ({shown})")
    if not listed:
        problems.add("the hot-token list is empty; leave it out to draft over the whole vocabulary")
    kept = tuple(dict.fromkeys(listed))
    return HotTokens(kept, len(listed) - len(kept))
