"""d2t and t2d: maps to target ids, and maps that are refused."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from outrider.errors import CheckpointError, Problems
from outrider_adapters.eagle.vocab import target_ids_from_offsets

VOCAB = 40


def convert(d2t: Tensor | None, t2d: Tensor | None, size: int) -> Tensor | None:
    with Problems("map", CheckpointError) as problems:
        return target_ids_from_offsets(d2t, t2d, size, VOCAB, problems)


def marks(target_ids: list[int]) -> Tensor:
    return torch.tensor([token in target_ids for token in range(VOCAB)])


@given(st.permutations(range(VOCAB)), st.integers(1, VOCAB), st.sampled_from([torch.int64, torch.int32]))
def test_offsets_give_back_the_target_ids_they_were_made_of(
    permutation: list[int], size: int, dtype: torch.dtype
) -> None:
    target_ids = permutation[:size]
    d2t = torch.tensor([token - i for i, token in enumerate(target_ids)], dtype=dtype)
    if not d2t.any():
        return
    found = convert(d2t, marks(target_ids), size)
    assert found is not None
    assert [int(token) for token in found] == target_ids


def test_a_full_vocabulary_needs_no_map() -> None:
    assert convert(None, None, VOCAB) is None
    assert convert(torch.zeros(VOCAB, dtype=torch.int64), torch.ones(VOCAB, dtype=torch.bool), VOCAB) is None


GOOD = [3, 8, 9, 21]
OFFSETS = torch.tensor([3, 7, 7, 18])
REFUSED = {
    "no map": (None, None, r"has 4 of 40 ids, but there is no 'd2t'"),
    "all zero": (torch.zeros(4, dtype=torch.int64), None, r"all zero, though .* only 4 of 40 ids"),
    "wrong length": (torch.tensor([1, 2, 3]), None, r"'d2t' is torch.int64 \[3\], expected whole numbers \[4\]"),
    "fractions": (OFFSETS.float(), None, "is torch.float32"),
    "too high": (torch.tensor([3, 7, 7, 37]), None, r"maps 1 draft ids outside the target's 0 to 39 \(40\)"),
    "too low": (torch.tensor([-1, 7, 7, 18]), None, r"outside the target's 0 to 39 \(-1\)"),
    "repeats": (torch.tensor([3, 2, 7, 18]), None, r"several draft ids to the same target id \(3\)"),
    "disagrees": (OFFSETS, marks([3, 8, 9, 22]), r"reaches 1 .* \(21\), t2d marks 1 that d2t does not reach \(22\)"),
    "marks too many": (OFFSETS, marks([3, 8, 9, 21, 30]), r"t2d marks 1 that d2t does not reach \(30\)"),
    "marks of another size": (OFFSETS, torch.ones(39, dtype=torch.bool), r"'t2d' is \[39\], expected \[40\]"),
    "absolute ids": (torch.tensor(GOOD), marks(GOOD), "look like absolute target ids, but d2t holds offsets"),
}


@pytest.mark.parametrize(("d2t", "t2d", "message"), REFUSED.values(), ids=REFUSED.keys())
def test_wrong_maps_are_refused_with_both_sides(d2t: Tensor | None, t2d: Tensor | None, message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        convert(d2t, t2d, 4)
