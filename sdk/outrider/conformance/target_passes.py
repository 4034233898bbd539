"""Passes of a target over random sequences, as its conformance checks need them."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from attrs import evolve
from torch import Tensor

from outrider.binding import check_attention
from outrider.conformance.paged import (
    PagedMemory,
    Rows,
    TreeRows,
    WatchedAttend,
    attend_nothing,
    offset,
    tolerance,
)
from outrider.conformance.report import Faults
from outrider.errors import BindError, Problems
from outrider.interfaces import AttnBackend, Target
from outrider.types import Attend, HiddenTap, StackInputs, StackOutput

__all__ = ["TREE", "TargetPasses"]

TREE = TreeRows((-1, -1, 0, 0, 1, 2))
"""Two branches below the prefix, one of which branches again: siblings at every depth."""


class TargetPasses:
    """A few random sequences of different lengths, and ways to run them through the target."""

    def __init__(self, target: Target, attention: AttnBackend, seed: int) -> None:
        self._stack, self._attention = target.stack, attention
        self._spec = spec = target.stack.spec
        sizes = attention.capabilities.page_sizes
        self._page_size = 4 if sizes is None else min(sizes)  # small: sequences straddle pages
        with Problems(f"attention backend and target '{spec.name}' do not fit", BindError) as problems:
            for problem in check_attention(
                attention.capabilities, spec.layers, spec.dtype, spec.device, self._page_size, needs_tree=False
            ):
                problems.add(problem)
        generator = torch.Generator().manual_seed(seed)
        most = max(spec.max_positions - 4, 1)
        lengths = [max(min(length, most), 1) for length in (11, 6, 4)]
        self._sequences = [self._random(length, generator) for length in lengths]
        self._drafted = self._random(len(TREE.parents), generator)

    # -- passes ----------------------------------------------------------------------------------------------------

    def _random(self, length: int, generator: torch.Generator) -> list[int]:
        return [int(token) for token in torch.randint(self._spec.vocab_size, (length,), generator=generator)]

    def _memory(self, sequences: int, extra: int = 0) -> PagedMemory:
        spec, capacity = self._spec, max(map(len, self._sequences)) + len(TREE.parents) + extra
        return PagedMemory(self._attention, spec.layers, spec.dtype, spec.device, sequences, capacity, self._page_size)

    def _fresh_rows(self, sequences: Sequence[Sequence[int]]) -> Rows:
        return self._memory(len(sequences)).rows([0] * len(sequences), [len(sequence) for sequence in sequences])

    def _embedded(self, sequences: Sequence[Sequence[int]]) -> Tensor:
        ids = torch.tensor([token for sequence in sequences for token in sequence], device=self._spec.device)
        return self._stack.embed(ids)

    def _inputs(self, rows: Rows, taps: tuple[HiddenTap, ...], attend: Attend | None = None) -> StackInputs:
        scheme = self._spec.positions
        positions = rows.positions if scheme.axes == 1 else rows.positions.expand(3, -1)
        lengths = rows.lengths if scheme.needs_lengths else None
        return StackInputs(positions, rows.attend if attend is None else attend, taps, lengths)

    def _run(self, hidden: Tensor, rows: Rows, taps: tuple[HiddenTap, ...] = ()) -> StackOutput:
        return self._stack.run_layers(hidden, self._inputs(rows, taps))

    def _pass(self, rows: Rows, sequences: Sequence[Sequence[int]], taps: tuple[HiddenTap, ...] = ()) -> StackOutput:
        return self._run(self._embedded(sequences), rows, taps)

    def _whole(self, sequences: Sequence[Sequence[int]], taps: tuple[HiddenTap, ...] = ()) -> StackOutput:
        output = self._pass(self._fresh_rows(sequences), sequences, taps)
        # The next call may overwrite what this one returned.
        return StackOutput(output.hidden.clone(), tuple(tap.clone() for tap in output.taps))

    def _shifted(self, taps: tuple[HiddenTap, ...], layer: int) -> StackOutput:
        """All sequences, with another outcome of the attention of ``layer``."""
        rows = self._fresh_rows(self._sequences)
        watched = WatchedAttend(rows.attend, self._spec.layers, self._spec.dtype, shift=layer)
        return self._stack.run_layers(self._embedded(self._sequences), self._inputs(rows, taps, watched))

    def _alone(self, hidden: Tensor, inputs: StackInputs, row: int) -> Tensor:
        """The one tap that ``inputs`` asks, of one row of ``hidden``: at its position, with no others, and no attention."""
        here, lengths = slice(row, row + 1), inputs.lengths
        single = evolve(
            inputs,
            positions=inputs.positions[..., here],
            lengths=None if lengths is None else lengths[here],
            attend=attend_nothing,
        )
        return self._stack.run_layers(hidden[here], single).taps[0].clone()

    def _in_pieces(self, sequences: Sequence[Sequence[int]], size: int) -> list[Tensor]:
        memory, found = self._memory(len(sequences)), [list[Tensor]() for _ in sequences]
        for start in range(0, max(map(len, sequences)), size):
            pieces = [sequence[start : start + size] for sequence in sequences]
            prefixes = [min(start, len(sequence)) for sequence in sequences]
            rows = memory.rows(prefixes, [len(piece) for piece in pieces])
            for rows_of_one, part in zip(found, self._split(self._pass(rows, pieces).hidden, pieces), strict=True):
                rows_of_one.append(part.clone())
        return [torch.cat(parts) for parts in found]

    def _split(self, rows: Tensor, sequences: Sequence[Sequence[int]] | None = None) -> tuple[Tensor, ...]:
        chosen = self._sequences if sequences is None else sequences
        return rows.split_with_sizes([len(sequence) for sequence in chosen])

    # -- findings --------------------------------------------------------------------------------------------------

    def _expect_rows(self, faults: Faults, name: str, rows: Tensor, shape: tuple[int, ...]) -> None:
        spec = self._spec
        faults.expect(
            tuple(rows.shape) == shape and rows.dtype == spec.dtype and rows.device.type == spec.device.type,
            f"{name} gives {list(rows.shape)} {rows.dtype} on {rows.device}, expected {list(shape)} {spec.dtype} on "
            f"{spec.device}; correct it, or the spec",
        )

    def _expect_same(self, faults: Faults, found: Tensor, expected: Tensor, what: str, remedy: str) -> None:
        distance = offset(found, expected)
        faults.expect(
            distance <= tolerance(self._spec.dtype),
            f"{what} differ by {'a shape or NaN' if math.isinf(distance) else f'{distance:.1e}'} of the largest value "
            f"(allowed {tolerance(self._spec.dtype):.0e}); {remedy}",
        )
