"""`RowStore`: the device tensors of all running requests, and the host's hand on them between rounds."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from attrs import field, frozen
from torch import Tensor

from outrider.interfaces import PageAllocator
from outrider.loop.sampling_rows import SamplingRows
from outrider.types import SamplingParams, SamplingState
from outrider.types.state import DecodeState

__all__ = ["RowSetup", "RowStore"]


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

    Everything here happens between rounds and enqueues host-to-device copies, never a synchronisation.
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
        self._history = context_length + slack
        self._context_length = context_length
        self._lengths = self._zeros(num_rows)
        self._roots = self._zeros(num_rows)
        self._tokens = self._zeros(num_rows, self._history)
        self._prompt_lens = self._zeros(num_rows)
        self._max_totals = self._zeros(num_rows)
        self._stop_ids = self._zeros(num_rows, max_stop_ids) - 1
        self._finished = torch.ones(num_rows, dtype=torch.bool, device=device)
        self._draft_caps = self._zeros(num_rows)
        self._position_offsets = self._zeros(num_rows)
        self.sampling: SamplingRows = SamplingRows(num_rows, vocab_size, device)
        # Views of the same rows are asked for round after round; all that can change between rounds is in `sampling`.
        self._views: dict[tuple[int, int], DecodeState] = {}

    def view(self, first: int, count: int, max_length: int) -> DecodeState:
        """Rows first..first+count-1 as views of the storage; ``max_length`` as in `DecodeState`."""
        view = self._views.get((first, count))
        sampling = self.sampling.view(first, count)
        if view is None or view.sampling is not sampling:
            view = self._view(slice(first, first + count), sampling, max_length)
            self._views[first, count] = view
        return view.bounded(max_length)

    def _view(self, rows: slice, sampling: SamplingState, max_length: int) -> DecodeState:
        return DecodeState(
            lengths=self._lengths[rows],
            roots=self._roots[rows],
            tokens=self._tokens[rows],
            prompt_lens=self._prompt_lens[rows],
            max_totals=self._max_totals[rows],
            stop_ids=self._stop_ids[rows],
            finished=self._finished[rows],
            draft_caps=self._draft_caps[rows],
            page_table=self._pages.page_table[rows],
            position_offsets=self._position_offsets[rows],
            sampling=sampling,
            context_length=self._context_length,
            max_length=max_length,
        )

    def set_row(self, row: int, setup: RowSetup) -> None:
        """Prepare ``row`` for its prefill: the last prompt token stands as root, all before it as committed."""
        prompt = setup.prompt
        stop_ids = [*setup.stop_ids, *[-1] * (self._max_stop_ids - len(setup.stop_ids))]
        count = len(prompt)
        packed = self._upload([*prompt, *stop_ids])
        self._tokens[row, :count] = packed[:count]
        self._stop_ids[row] = packed[count:]
        self._roots[row] = packed[count - 1]
        self._lengths[row].fill_(count - 1)
        self._prompt_lens[row].fill_(count)
        self._max_totals[row].fill_(setup.max_total)
        self._draft_caps[row].fill_(setup.draft_cap)
        self._position_offsets[row].fill_(setup.position_offset)
        self._finished[row].fill_(False)
        self.sampling.set_row(row, setup.sampling, prompt_length=count)

    def clear_row(self, row: int) -> None:
        """Leave ``row`` empty: it may still be computed along, as padding."""
        self._finished[row].fill_(True)
        self._lengths[row].fill_(0)
        # Or an offset below 0 would give the idle row a rope position below 0.
        self._position_offsets[row].fill_(0)
        self.sampling.clear_row(row)

    def move_row(self, source: int, destination: int) -> None:
        """Copy row ``source`` over ``destination`` (its pages are moved by the allocator)."""
        for tensor in self._per_row():
            tensor[destination] = tensor[source]
        self.sampling.move_row(source, destination)

    def _per_row(self) -> tuple[Tensor, ...]:
        return (
            self._lengths,
            self._roots,
            self._tokens,
            self._prompt_lens,
            self._max_totals,
            self._stop_ids,
            self._finished,
            self._draft_caps,
            self._position_offsets,
        )

    def _zeros(self, *shape: int) -> Tensor:
        return torch.zeros(*shape, dtype=torch.int64, device=self._device)

    def _upload(self, values: Sequence[int]) -> Tensor:
        host = torch.tensor(values, dtype=torch.int64)
        if self._device.type == "cuda":
            return host.pin_memory().to(self._device, non_blocking=True)
        return host
