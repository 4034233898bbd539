"""The floor that memory sets: how fast a device copies, and how many bytes of weights a round must read."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping

import torch
from attrs import frozen

from benchmarks._race import device_wait
from outrider.checkpoint import Checkpoint, TensorInfo

__all__ = ["RoundBytes", "copy_bandwidth", "weight_bytes_per_round"]

_COPIES_IN_A_ROW = 8

_EMBEDDING, _HEAD = "embed_tokens.weight", "lm_head.weight"
_ONCE_PER_ROUND = ("fc.weight", "fc.bias", "input_norm.weight")
"""Tensors of an EAGLE-3 draft that verified rows pass and drafted ones skip."""


@frozen
class RoundBytes:
    """Bytes of weights that one round reads, whatever its batch: the target's once, the draft's once a drafted token."""

    target: int
    draft: int

    @property
    def total(self) -> int:
        """Both."""
        return self.target + self.draft

    def floor_ms(self, bytes_per_second: float) -> float:
        """Milliseconds below which no round can come whose weights do not stay in a cache."""
        return 1e3 * self.total / bytes_per_second


def copy_bandwidth(
    device: torch.device,
    num_bytes: int = 4 << 30,
    repeats: int = 9,
    clock: Callable[[], float] = time.perf_counter,
) -> float:
    """Bytes a second, read and written ones both counted, of copies of ``num_bytes`` within ``device``; the median.

    ``num_bytes`` must be far above the size of every cache. Each of ``repeats`` timings is of several copies in a row, so
    that launching and waiting do not count. Allocates twice ``num_bytes`` and synchronises.
    """
    source = torch.ones(num_bytes, dtype=torch.uint8, device=device)
    destination = torch.empty_like(source)
    wait = device_wait(device)

    def seconds_per_copy() -> float:
        wait()
        began = clock()
        for _ in range(_COPIES_IN_A_ROW):
            destination.copy_(source)
        wait()
        return (clock() - began) / _COPIES_IN_A_ROW

    seconds_per_copy()
    return 2 * num_bytes / statistics.median(seconds_per_copy() for _ in range(repeats))


def weight_bytes_per_round(
    target: Checkpoint, draft: Checkpoint | None, num_drafted: int, dtype: torch.dtype | None = None
) -> RoundBytes:
    """What a round of ``num_drafted`` tokens from an EAGLE-3 ``draft`` reads of the weights, loaded as ``dtype``.

    ``dtype`` ``None`` is as stored. The target is read once. Drafting reads the head ``num_drafted`` times and the layer
    as often, once for the verified rows, which pass ``fc`` as well, and once for every further token. A chain has a token
    a level; give a tree its depth. An embedding is looked up row by row and counts only where it is the head as well; so
    does the target's head count for a draft without one. Keys, values and activations do not count.
    """
    target_bytes = _parts(target.tensors, dtype)
    target_head = target_bytes.head or target_bytes.embedding
    if draft is None or num_drafted == 0:
        return RoundBytes(target_bytes.body + target_bytes.once + target_head, 0)
    draft_bytes = _parts(draft.tensors, dtype)
    each = draft_bytes.body + (draft_bytes.head or target_head)
    return RoundBytes(target_bytes.body + target_bytes.once + target_head, num_drafted * each + draft_bytes.once)


@frozen
class _Parts:
    body: int
    once: int
    head: int
    embedding: int


def _parts(tensors: Mapping[str, TensorInfo], dtype: torch.dtype | None) -> _Parts:
    body = once = head = embedding = 0
    for name, info in tensors.items():
        if not info.dtype.is_floating_point:
            continue  # maps of a draft vocabulary: looked up
        size = math.prod(info.shape) * (info.dtype if dtype is None else dtype).itemsize
        if name.endswith(_EMBEDDING):
            embedding += size
        elif name.endswith(_HEAD):
            head += size
        elif name.endswith(_ONCE_PER_ROUND) or name.startswith("fc_norm."):
            once += size
        else:
            body += size
    return _Parts(body, once, head, embedding)
