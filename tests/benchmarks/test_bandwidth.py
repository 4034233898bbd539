"""The floor that memory sets: bytes that move, and weights that a round reads."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file  # pyright: ignore[reportUnknownVariableType] - PathLike is left bare

from benchmarks._bandwidth import RoundBytes, copy_bandwidth, weight_bytes_per_round
from outrider.checkpoint import Checkpoint
from outrider.interfaces import ModelPair

CPU = torch.device("cpu")


def test_bandwidth_is_that_of_the_median_and_counts_both_directions() -> None:
    # Seconds for eight copies: one warm-up, then three timings of which one was disturbed.
    readings: Iterator[float] = iter([0.0, 100.0, 100.0, 104.0, 200.0, 203.0, 300.0, 900.0])
    assert copy_bandwidth(CPU, num_bytes=1000, repeats=3, clock=lambda: next(readings)) == 2 * 1000 / (4.0 / 8)


def test_bandwidth_of_this_machine_is_that_of_a_memory() -> None:
    assert 1e8 < copy_bandwidth(CPU, num_bytes=1 << 24, repeats=3) < 1e13


def stored_bytes(directory: Path, *, without: tuple[str, ...] = ()) -> int:
    """Bytes of floating point tensors, counted from the tensors themselves."""
    tensors: Mapping[str, torch.Tensor] = load_file(directory / "model.safetensors")
    return sum(
        tensor.nbytes for name, tensor in tensors.items() if tensor.is_floating_point() and not name.startswith(without)
    )


def test_the_target_is_read_once_and_the_draft_once_a_token(tiny_pair: ModelPair) -> None:
    target, draft = Checkpoint(tiny_pair.target), Checkpoint(tiny_pair.drafts[0])
    whole = stored_bytes(tiny_pair.target)  # tied: the embedding is read as the head
    each = stored_bytes(tiny_pair.drafts[0], without=("fc",))
    fusion = stored_bytes(tiny_pair.drafts[0]) - each
    assert fusion == 2 * 256 * 768
    for length in (1, 2, 5):
        assert weight_bytes_per_round(target, draft, length) == RoundBytes(whole, length * each + fusion)
        doubled = weight_bytes_per_round(target, draft, length, torch.float32)
        assert doubled == RoundBytes(2 * whole, 2 * (length * each + fusion))
    assert weight_bytes_per_round(target, draft, 0) == weight_bytes_per_round(target, None, 3) == RoundBytes(whole, 0)


def test_a_draft_without_a_head_reads_the_targets(tiny_pair: ModelPair) -> None:
    target, draft = Checkpoint(tiny_pair.target), Checkpoint(tiny_pair.drafts[1])
    head = math.prod((4096, 256)) * 2
    own = stored_bytes(tiny_pair.drafts[1], without=("fc",))
    fusion = stored_bytes(tiny_pair.drafts[1]) - own
    assert weight_bytes_per_round(target, draft, 1).draft == own + head + fusion


def test_the_floor_is_bytes_over_bandwidth() -> None:
    assert RoundBytes(3_000_000_000, 1_000_000_000).floor_ms(4e12) == pytest.approx(1.0)
