"""Passes of a bound draft over random pairs, as its conformance checks need them."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from attrs import frozen
from torch import Tensor

from outrider.binding import check_attention
from outrider.conformance.paged import PagedMemory, Rows, offset, tolerance
from outrider.conformance.report import Faults
from outrider.conformance.target_passes import TREE
from outrider.errors import BindError, Problems
from outrider.interfaces import AttnBackend, BoundDraft, Target
from outrider.types import Attend, DraftOutput, StackInputs

__all__ = ["DraftPasses", "Fed", "last_row"]


@frozen(eq=False)
class Fed:
    """What some rows are fed: embeddings ``[T, E]`` and, by the spec, features or states ``[T, width]``."""

    embeds: Tensor
    given: Tensor | None


class DraftPasses:
    """Verified pairs of a few sequences, drafted rows below them, and ways to run them through the draft."""

    def __init__(self, draft: BoundDraft, target: Target, attention: AttnBackend, seed: int) -> None:
        self._draft, self._attention = draft, attention
        self._spec = spec = draft.spec
        sizes = attention.capabilities.page_sizes
        self._page_size = 4 if sizes is None else min(sizes)
        with Problems(f"attention backend and draft '{spec.name}' do not fit", BindError) as problems:
            for problem in check_attention(
                attention.capabilities, spec.layers, spec.dtype, spec.device, self._page_size, needs_tree=False
            ):
                problems.add(problem)
        self._generator = torch.Generator().manual_seed(seed)
        self._lengths = [max(min(length, spec.max_positions - 4), 1) for length in (9, 5, 4)]
        self._ids = self._random_ids(sum(self._lengths), target.stack.spec.vocab_size)
        self._drafted_ids = self._random_ids(len(TREE.parents) * len(self._lengths), target.stack.spec.vocab_size)
        self._features = self._random(sum(self._lengths), spec.feature_width) if spec.taps else None
        self._states = self._random_states(len(self._drafted_ids))

    # -- passes ----------------------------------------------------------------------------------------------------

    def _random_ids(self, count: int, vocab_size: int) -> Tensor:
        return torch.randint(vocab_size, (count,), generator=self._generator).to(self._spec.device)

    def _random(self, rows: int, width: int) -> Tensor:
        return torch.randn(rows, width, generator=self._generator).to(self._spec.device, self._spec.dtype)

    def _random_states(self, rows: int) -> Tensor | None:
        state = self._spec.state
        return None if state is None else self._random(rows, state.width).to(state.dtype)

    def _verified(self) -> Fed:
        """All verified pairs of all sequences."""
        return Fed(self._draft.embed(self._ids), None if self._features is None else self._features.clone())

    def _drafted(self) -> Fed:
        """One drafted row below each sequence."""
        rows = len(self._lengths)
        return Fed(
            self._draft.embed(self._drafted_ids[:rows]), None if self._states is None else self._states[:rows].clone()
        )

    def _pick(self, fed: Fed, rows: Sequence[int]) -> Fed:
        index = torch.tensor(list(rows), device=fed.embeds.device)
        given = None if fed.given is None else fed.given.index_select(0, index)
        return Fed(fed.embeds.index_select(0, index), given)

    def _starts(self) -> list[int]:
        return [sum(self._lengths[:place]) for place in range(len(self._lengths))]

    def _memory(self, sequences: int | None = None) -> PagedMemory:
        spec, capacity = self._spec, max(self._lengths) + len(TREE.parents)
        count = len(self._lengths) if sequences is None else sequences
        return PagedMemory(self._attention, spec.layers, spec.dtype, spec.device, count, capacity, self._page_size)

    def _rows(self) -> Rows:
        return self._memory().rows([0] * len(self._lengths), self._lengths)

    def _rows_below(self, memory: PagedMemory) -> Rows:
        return memory.rows(self._lengths, [1] * len(self._lengths))

    def _inputs(self, rows: Rows, attend: Attend | None = None) -> StackInputs:
        lengths = rows.lengths if self._spec.needs_lengths else None
        positions = rows.positions if self._spec.position_axes == 1 else rows.positions.expand(3, -1)
        return StackInputs(positions, rows.attend if attend is None else attend, (), lengths)

    def _run_extend(self, fed: Fed, rows: Rows, attend: Attend | None = None) -> DraftOutput:
        return _kept(self._draft.extend(fed.embeds, fed.given, self._inputs(rows, attend)))

    def _run_step(self, fed: Fed, rows: Rows, attend: Attend | None = None) -> DraftOutput:
        return _kept(self._draft.step(fed.embeds, fed.given, self._inputs(rows, attend)))

    def _extended(self, fed: Fed, attend: Attend | None = None) -> DraftOutput:
        return self._run_extend(fed, self._rows(), attend)

    def _stepped(self, fed: Fed, attend: Attend | None = None) -> DraftOutput:
        memory = self._memory()
        if attend is None:
            self._run_extend(self._verified(), memory.rows([0] * len(self._lengths), self._lengths))
        return self._run_step(fed, self._rows_below(memory), attend)

    # -- findings --------------------------------------------------------------------------------------------------

    def _expect_rows(self, faults: Faults, name: str, rows: Tensor, width: int, dtype: torch.dtype) -> bool:
        spec = self._spec
        return faults.expect(
            rows.dim() == 2 and rows.shape[1] == width and rows.dtype == dtype and rows.device.type == spec.device.type,
            f"{name} gives {list(rows.shape)} {rows.dtype} on {rows.device}, expected [rows, {width}] {dtype} on "
            f"{spec.device}; correct it, or the spec",
        )

    def _expect_output(self, faults: Faults, name: str, output: DraftOutput, count: int) -> None:
        spec = self._spec
        self._expect_rows(faults, f"{name}'s hidden", output.hidden, spec.hidden_size, spec.dtype)
        rows = output.hidden.shape[0]
        faults.expect(rows == count, f"{name} gives {rows} rows for {count}; one for each row given")
        if (output.state is None) != (spec.state is None):
            gives, says = ("no state", "has one") if output.state is None else ("a state", "is None")
            faults.add(f"{name} gives {gives}, spec.state {says}; they must agree in extend and step alike")
        if output.state is not None and spec.state is not None:
            self._expect_rows(faults, f"{name}'s state", output.state, spec.state.width, spec.state.dtype)

    def _expect_same_output(
        self, faults: Faults, found: DraftOutput, whole: DraftOutput, rows: Sequence[int], what: str, remedy: str
    ) -> None:
        self._expect_same(faults, found.hidden, whole.hidden[list(rows)], f"hidden of {what}", remedy)
        if found.state is not None and whole.state is not None:
            self._expect_same(faults, found.state, whole.state[list(rows)], f"state of {what}", remedy)

    def _expect_same(self, faults: Faults, found: Tensor, expected: Tensor, what: str, remedy: str) -> None:
        distance = offset(found, expected)
        faults.expect(
            distance <= tolerance(self._spec.dtype),
            f"{what} differ by {'a shape or NaN' if math.isinf(distance) else f'{distance:.1e}'} of the largest value "
            f"(allowed {tolerance(self._spec.dtype):.0e}); {remedy}",
        )


def _kept(output: DraftOutput) -> DraftOutput:
    """``output`` in storage of its own: the next call may overwrite what this one returned."""
    return DraftOutput(output.hidden.clone(), None if output.state is None else output.state.clone())


def last_row(output: DraftOutput) -> DraftOutput:
    """The last row of ``output`` alone, as views."""
    return DraftOutput(output.hidden[-1:], None if output.state is None else output.state[-1:])
