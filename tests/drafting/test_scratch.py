"""Where drafted rows stand: against counting them out, and once for all steps of a proposal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import pytest
import torch
from attrs import evolve
from torch import Tensor

import outrider.drafting.memory
from outrider.drafting.builders import ChainBuilder, StaticTreeBuilder, TreeBuilder
from outrider.drafting.memory import DraftMemory
from outrider.drafting.scratch import ScratchLayout
from outrider.interfaces import DrafterBuilder
from outrider.kv import PagedKVCache, slots_of
from outrider.types import DecodeState, RowAlignment, SamplingParams
from outrider.types.request import Request
from outrider_backends.eager import EagerRunner
from outrider_backends.sdpa import SdpaBackend
from tests.sampling.toys import decode_state
from tests.support.engines import engine_of, run
from tests.support.toy_drafts import SelfDraft, ToyDraft, self_pair
from tests.support.toy_target import CPU, ToyStack, toy_target

PAGE = 3
OFFSETS = (0, 5, -1)


def state_of(lengths: Sequence[int]) -> DecodeState:
    """Requests of ``lengths`` committed tokens, whose pages are shuffled."""
    rows = len(lengths)
    state = decode_state([[1] * (length + 1) for length in lengths], [SamplingParams()] * rows, 48)
    pages = torch.randperm(rows * 12, generator=torch.Generator().manual_seed(3)) + 2
    return evolve(state, page_table=pages.view(rows, 12), position_offsets=torch.tensor(OFFSETS[:rows]))


def slot_at(state: DecodeState, row: int, place: int) -> int:
    return int(state.page_table[row, place // PAGE]) * PAGE + place % PAGE


@pytest.mark.parametrize("alignment", [RowAlignment.SHIFTED, RowAlignment.SAME])
@pytest.mark.parametrize("depths", [[0, 1, 2], [0, 0, 1, 1], [0, 0, 0, 1, 2, 2], []])
def test_rows_stand_behind_the_verified_ones(depths: list[int], alignment: RowAlignment) -> None:
    """A draft of tokens has one row more behind it, which is the root, and counts on its own."""
    same = alignment is RowAlignment.SAME
    target = toy_target()
    draft = SelfDraft(target, ToyStack(), alignment=alignment) if same else ToyDraft(target)
    kv = PagedKVCache(draft.spec.layers, 60, PAGE, torch.float32, CPU)
    memory = DraftMemory(draft, kv, SdpaBackend(), EagerRunner(), 3)
    state = state_of([4, 9, 17])
    chain = depths == list(range(len(depths)))
    placed = memory.place(state, ScratchLayout.chain(len(depths), CPU) if chain else ScratchLayout.tree(depths, CPU))
    for row, length in enumerate((4, 9, 17)):
        verified = length + int(same)
        assert int(placed.verified[row]) == verified
        for slot, depth in enumerate(depths):
            assert int(placed.places[slot, row]) == verified + slot
            assert int(placed.slots[slot, row]) == slot_at(state, row, verified + slot)
            assert int(placed.positions[slot, row]) == verified + depth + (0 if same else OFFSETS[row])


def test_rows_of_a_step_lie_side_by_side() -> None:
    """So that plans can copy them, and kernels read them, without gathering: a row of each is contiguous."""
    target = toy_target()
    draft = ToyDraft(target)
    kv = PagedKVCache(draft.spec.layers, 60, PAGE, torch.float32, CPU)
    placed = DraftMemory(draft, kv, SdpaBackend(), EagerRunner(), 3).place(
        state_of([4, 9, 17]), ScratchLayout.chain(4, CPU)
    )
    assert all(each.is_contiguous() for each in (placed.places, placed.slots, placed.positions))


@pytest.mark.parametrize("which", ["chain", "tree", "static"])
def test_slots_are_looked_up_once_for_a_proposal(
    which: Literal["chain", "tree", "static"], monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many steps it takes: on a device each look-up is eight kernels."""
    calls: list[int] = []

    def counted(page_table: Tensor, indices: Tensor, page_size: int) -> Tensor:
        calls.append(indices.shape[1])
        return slots_of(page_table, indices, page_size)

    monkeypatch.setattr(outrider.drafting.memory, "slots_of", counted)
    target, draft = self_pair()
    builders: dict[str, tuple[DrafterBuilder, int]] = {
        "chain": (ChainBuilder(draft, 5), 4),
        "tree": (TreeBuilder(draft, 2, 4, 6), 6),
        "static": (StaticTreeBuilder(draft, (0, 0, 1, 2, 3, 5)), 4),
    }
    builder, scratch = builders[which]
    (outcome,) = run(engine_of(target, builder), [Request((0, 3, 5), 12)])
    assert calls == [scratch] * len(outcome.accept_lengths)
