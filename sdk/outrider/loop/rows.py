"""`RowStore`: the device tensors of all running requests, and the host's hand on them between rounds."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import torch
from attrs import field, frozen
from torch import Tensor

from outrider._torch import copy_all, int_rows, uploaded
from outrider.interfaces import PageAllocator
from outrider.loop.sampling_rows import SamplingRows
from outrider.types import SamplingParams, SamplingState
from outrider.types.state import DecodeState

__all__ = ["RowSetup", "RowStore"]

_NUM_COLUMNS = 6
_NO_STOP_ID = -1


@frozen
class RowSetup:
    """What a request brings into its row. ``prompt``: all prompt ids; ``max_total``: prompt + generated tokens."""

    prompt: tuple[int, ...]
    max_total: int
    stop_ids: tuple[int, ...]
    draft_cap: int
    position_offset: int = 0
    sampling: SamplingParams = field(factory=SamplingParams)


class RowStore:
    """Device state for ``num_rows`` requests; rows 0..active-1 are kept dense by `move_row`.

    Everything here happens between rounds and enqueues host-to-device copies, never a synchronisation. Graphs read the
    storage, which stays where it is. All integers of a row stand below each other in one tensor whose rows are the columns
    of the state: each of these is contiguous, and yet a row is written or moved by one copy.

    Rounds have a page table of their own, in which only rows that were set have pages. The row of a prompt that is half run is
    thus idle as an empty one is, and may be computed along.
    """

    def __init__(
        self,
        num_rows: int,
        context_length: int,
        slack: int,
        max_stop_ids: int,
        vocab_size: int,
        pages: PageAllocator,
        device: torch.device,
    ) -> None:
        """``slack``: how far past a row's last token a round may write into its history."""
        self._pages = pages
        self._device = device
        self._max_stop_ids = max_stop_ids
        self._context_length = context_length
        self._integers = torch.zeros(_NUM_COLUMNS + max_stop_ids, num_rows, dtype=torch.int64, device=device)
        self._integers[_NUM_COLUMNS:] = _NO_STOP_ID
        self._tokens = torch.zeros(num_rows, context_length + slack, dtype=torch.int64, device=device)
        self._finished = torch.ones(num_rows, dtype=torch.bool, device=device)
        self._page_table = torch.zeros_like(pages.page_table[:num_rows])
        self.sampling: SamplingRows = SamplingRows(num_rows, vocab_size, device)
        # Views of the same rows are asked for round after round; all that can change between rounds is in `sampling`.
        self._views: dict[tuple[int, int], DecodeState] = {}
        # Cutting views takes as long as a copy does.
        self._token_rows = self._tokens.unbind(0)
        self._page_rows = self._page_table.unbind(0)
        self._parts = tuple(zip(self._integers.unbind(1), self._finished.unbind(0), strict=True))
        self._cleared = tuple(self._integers[:2].unbind(1))

    def view(self, first: int, count: int, max_length: int) -> DecodeState:
        """Rows first..first+count-1 as views of the storage; ``max_length`` as in `DecodeState`."""
        view = self._views.get((first, count))
        sampling = self.sampling.view(first, count)
        if view is None or view.sampling is not sampling:
            view = self._view(slice(first, first + count), sampling, max_length)
            self._views[first, count] = view
        return view.bounded(max_length)

    def _view(self, rows: slice, sampling: SamplingState, max_length: int) -> DecodeState:
        integers = self._integers[:, rows]
        lengths, position_offsets, roots, prompt_lens, max_totals, draft_caps = integers[:_NUM_COLUMNS].unbind(0)
        return DecodeState(
            lengths=lengths,
            roots=roots,
            tokens=self._tokens[rows],
            prompt_lens=prompt_lens,
            max_totals=max_totals,
            stop_ids=integers[_NUM_COLUMNS:].t(),
            finished=self._finished[rows],
            draft_caps=draft_caps,
            page_table=self._page_table[rows],
            position_offsets=position_offsets,
            sampling=sampling,
            context_length=self._context_length,
            max_length=max_length,
        )

    def page_table(self, first: int, count: int) -> Tensor:
        """The pages that rows first..first+count-1 hold, whether they were set or not: the allocator's own table."""
        return self._pages.page_table[first : first + count]

    def set_rows(self, first: int, setups: Sequence[RowSetup]) -> None:
        """Prepare rows first.., which hold their pages, for the end of their prompts.

        The last token stands as root, all before it as committed. Enqueues copies to the device, no synchronisation.
        """
        columns = [self._column(setup) for setup in setups]
        integers = array("q", (value for values in zip(*columns, strict=True) for value in values))
        for setup in setups:
            integers.extend(setup.prompt)
        sizes = [len(setup.prompt) for setup in setups]
        state, *prompts = uploaded(integers, self._device).split_with_sizes([len(integers) - sum(sizes), *sizes])
        rows = slice(first, first + len(setups))
        self._integers[:, rows] = state.view(-1, len(setups))
        self._finished[rows].fill_(False)
        histories = [row[:size] for row, size in zip(self._token_rows[rows], sizes, strict=True)]
        held = self._pages.page_table[rows].unbind(0)
        copy_all([*histories, *self._page_rows[rows]], [*prompts, *held])
        self.sampling.set_rows(first, [setup.sampling for setup in setups], sizes)

    def _column(self, setup: RowSetup) -> tuple[int, ...]:
        count = len(setup.prompt)
        padding = (_NO_STOP_ID,) * (self._max_stop_ids - len(setup.stop_ids))
        return (
            count - 1,
            setup.position_offset,
            setup.prompt[-1],
            count,
            setup.max_total,
            setup.draft_cap,
            *setup.stop_ids,
            *padding,
        )

    def standing(self, count: int) -> list[tuple[int, bool]]:
        """Of rows 0..count-1 the length, prompt and root included, and whether they ended. Synchronises."""
        lengths, ended = int_rows(torch.stack([self._integers[0, :count] + 1, self._finished[:count].long()]))
        return [(length, bool(end)) for length, end in zip(lengths, ended, strict=True)]

    def clear_row(self, row: int) -> None:
        """Leave ``row`` empty: it may still be computed along, as padding."""
        self._finished[row].fill_(True)
        # The length, and the offset, or one below 0 would give the idle row a rope position below 0.
        self._cleared[row].zero_()
        self._page_rows[row].zero_()  # the null page
        self.sampling.clear_row(row)

    def move_row(self, source: int, destination: int) -> None:
        """Copy row ``source`` over ``destination``; the allocator moves its pages likewise."""
        for into, part in zip(self._parts[destination], self._parts[source], strict=True):
            into.copy_(part)
        long = (self._token_rows, self._page_rows)
        copy_all([rows[destination] for rows in long], [rows[source] for rows in long])
        self.sampling.move_row(source, destination)
