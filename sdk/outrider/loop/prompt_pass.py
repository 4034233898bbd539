"""`PromptPass`: one pass over the prompts of requests that hold rows; what a prompt that is cut keeps until the next one."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from attrs import evolve, frozen
from torch import Tensor

from outrider.loop.core import DecodeCore
from outrider.loop.prefill import Prefilled, prefill
from outrider.loop.prompts import Span, spans_of
from outrider.loop.row_owners import Admission, Batch
from outrider.loop.rows import RowStore
from outrider.types.outputs import CaptureHiddenMode, OutputWants, StepResult

__all__ = ["PromptPass"]


@frozen(eq=False)
class PromptPass:
    """Some prompts in the order of their rows, all but the last to their ends, and the first from where it was cut.

    ``starting``: those whose prompts end, so that they run from now on.
    """

    admissions: Sequence[Admission]
    spans: Sequence[Span]
    starting: Batch

    @classmethod
    def of(cls, admitted: Sequence[Admission], budget: int) -> PromptPass:
        """As many of ``admitted``, as they came, as ``budget`` tokens hold; there must be one."""
        spans = spans_of([admission.prompt for admission in admitted], admitted[0].num_done, budget)
        admissions = admitted[: len(spans)]
        ends = len(spans) if spans[-1].completes else len(spans) - 1
        return cls(admissions, spans, Batch.of(tuple(admission.track for admission in admissions[:ends])))

    @property
    def rows(self) -> range:
        """The rows of its requests."""
        first = self.admissions[0].track.row
        return range(first, first + len(self.admissions))

    def run(self, core: DecodeCore, rows: RowStore) -> StepResult | None:
        """Run it; the first tokens of those that are `starting`, ``None`` where there are none. Does not synchronise."""
        first, last = self.admissions[0], self.admissions[-1]
        ends = len(self.starting.tracks)
        # Rounds run since then may have computed the row along: what the drafter keeps of the prompt stood elsewhere.
        if core.drafts and first.num_done:
            core.drafter.move_row(core.spare_row, first.track.row)
        if ends:
            rows.set_rows(first.track.row, [admission.setup for admission in self.admissions[:ends]])
        prompts = [admission.prompt for admission in self.admissions]
        done = prefill(core, rows, first.track.row, prompts, self.spans, self._wants(), self.starting.constraints)
        if ends < len(self.admissions):
            if core.drafts:
                core.drafter.move_row(last.track.row, core.spare_row)
            self._keep_states(last, done)
            last.num_done = self.spans[-1].end
        return None if done.chosen is None else evolve(done.chosen, hidden=self._hidden(done))

    def _wants(self) -> OutputWants:
        last = self.admissions[-1].track.request.wants
        return self.starting.wants | OutputWants(hidden=last.hidden)

    def _keep_states(self, cut: Admission, done: Prefilled) -> None:
        if cut.track.request.wants.hidden is CaptureHiddenMode.FULL:
            cut.states.append(done.hidden[-1])

    def _hidden(self, done: Prefilled) -> tuple[Tensor, ...] | None:
        """For each that is starting the states of this pass, after those of earlier ones."""
        if not done.hidden:
            return None
        begun = self.admissions[0].states
        first, *others = done.hidden[: len(self.starting.tracks)]
        return (torch.cat([*begun, first]) if begun else first, *others)
