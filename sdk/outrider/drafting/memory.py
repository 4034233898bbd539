"""`DraftMemory`: a bound draft with its KV and the outcome of the newest verified pair of every row."""

from __future__ import annotations

import torch
from torch import Tensor

from outrider._torch import copy_all
from outrider.binding import check_attention, check_draft_target
from outrider.drafting.alignment import token_rows
from outrider.drafting.bodies import DraftExtendBody, DraftStepBody
from outrider.drafting.scratch import PlacedScratch, ScratchLayout
from outrider.errors import BindError, Problems
from outrider.interfaces import AttnBackend, BoundDraft, DrafterParts, GraphRunner, KVCache
from outrider.kv import slots_of
from outrider.planning import PlanCache
from outrider.types import AttnBatch, DraftOutput, DraftSpec, MediaView, Phase, PositionView, RowAlignment
from outrider.types.state import DecodeState, VerifiedRows

__all__ = ["DraftMemory"]


class DraftMemory:
    """What every drafter over a model shares: extending with verified rows, and running drafted rows.

    ``hidden [rows, H]`` and ``state [rows, width]`` hold, per batch row, the draft's output at its newest verified pair:
    the place where the next proposal starts.
    """

    def __init__(
        self, draft: BoundDraft, kv: KVCache, attention: AttnBackend, runner: GraphRunner, num_rows: int
    ) -> None:
        self.draft = draft
        self.spec: DraftSpec = draft.spec
        self._kv = kv
        self._plans = PlanCache(attention, draft.spec.layers, kv)
        self._runner = runner
        self._extend_body = DraftExtendBody(draft)
        self._step_body = DraftStepBody(draft)
        spec = draft.spec
        self._reads_tokens = spec.alignment is RowAlignment.SAME
        self._counts_tokens = self._reads_tokens or spec.positions is PositionView.INDEX
        self.hidden: Tensor = torch.zeros(num_rows, spec.hidden_size, dtype=spec.dtype, device=spec.device)
        self.state: Tensor | None = (
            None
            if spec.state is None
            else torch.zeros(num_rows, spec.state.width, dtype=spec.state.dtype, device=spec.device)
        )
        self._kept = [kept.unbind(0) for kept in (self.hidden, self.state) if kept is not None]

    @classmethod
    def of(cls, parts: DrafterParts, draft: BoundDraft, needs_tree: bool) -> DraftMemory:
        """The memory of ``draft`` for one engine's drafter; ``needs_tree``: whether `step` is called with masks.

        Raises:
            BindError: the draft was bound to another target or is fed what it cannot be, or the attention backend cannot
                serve its layers.
        """
        spec, stack, attention = draft.spec, parts.target.stack, parts.attention
        with Problems(f"draft '{spec.name}' cannot draft for '{stack.spec.name}'", BindError) as problems:
            for problem in check_draft_target(draft, stack):
                problems.add(problem)
        with Problems(f"attention backend and draft '{spec.name}' do not fit", BindError) as problems:
            for problem in check_attention(
                attention.capabilities, spec.layers, spec.dtype, spec.device, parts.kv.pages.page_size, needs_tree
            ):
                problems.add(problem)
        return cls(draft, parts.kv.cache(spec.layers, spec.dtype), attention, parts.runner, parts.num_rows)

    @property
    def max_pairs(self) -> int:
        """Verified and drafted pairs of a sequence that fit the draft's context."""
        return self.spec.max_positions - int(self._reads_tokens)

    def extend(self, rows: VerifiedRows) -> None:
        """Run verified rows and keep the outcome of each request's newest pair."""
        if self._reads_tokens:
            rows = token_rows(rows, self._kv.page_size)
        inputs = {
            "embeds": self._embeds(rows),
            "positions": self._on_axes(self._positions(rows)),
        }
        if self.spec.taps:
            assert rows.features is not None, "the loop feeds features to a drafter that names taps"
            inputs["features"] = rows.features
        if self.spec.needs_lengths:
            inputs["lengths"] = rows.indices + 1 if rows.prefill_lengths is None else rows.prefill_lengths
        batch = AttnBatch(
            query_lens=rows.query_lens,
            prefix_lens=rows.prefix_lens,
            page_table=rows.page_table,
            slots=rows.slots,
            max_length=rows.max_length,
            host_prefix_lens=rows.host_prefix_lens,
        )
        output = self._run(Phase.DRAFT_EXTEND, self._extend_body, inputs, batch, rows.last_rows)
        here = slice(rows.first_row, rows.first_row + len(rows.query_lens))
        into, outcome = [self.hidden[here]], [output.hidden]
        if self.state is not None and output.state is not None:
            into.append(self.state[here])
            outcome.append(output.state)
        copy_all(into, outcome)

    def place(self, state: DecodeState, layout: ScratchLayout) -> PlacedScratch:
        """Where the drafted rows of a proposal stand, for all of its steps. Device only, capture-safe."""
        # The verified rows whose keys the draft holds: one a pair, and the first token where it reads tokens alone.
        verified = state.lengths + 1 if self._reads_tokens else state.lengths
        places_SB = verified + layout.order[:, None]
        indices_SB = places_SB if layout.depths is layout.order else verified + layout.depths[:, None]
        positions_SB = indices_SB if self._counts_tokens else indices_SB + state.position_offsets
        return PlacedScratch(
            verified=verified,
            places=places_SB,
            slots=slots_of(state.page_table, places_SB.t(), self._kv.page_size).t(),
            positions=self._in_range(positions_SB),
            lengths=indices_SB + 1 if self.spec.needs_lengths else None,
        )

    def step(
        self,
        state: DecodeState,
        scratch: PlacedScratch,
        first_slot: int,
        tokens: Tensor,
        carried: Tensor | None,
        tail_mask: Tensor | None = None,
        tail_depths: Tensor | None = None,
    ) -> DraftOutput:
        """Run drafted ``tokens [B, Q]`` in the slots of ``scratch`` from ``first_slot`` on.

        ``carried [B·Q, width]``: state of each row's parent. ``tail_mask [B, Q, M]``: the drafted slots each row sees;
        ``None`` for a chain (Q = 1), whose rows see all that stands before them.
        """
        rows, queries = tokens.shape
        here = slice(first_slot, first_slot + queries)
        inputs = {
            "embeds": self.draft.embed(tokens.reshape(-1)),
            "positions": self._on_axes(_by_request(scratch.positions[here])),
        }
        if carried is not None:
            inputs["state"] = carried
        if scratch.lengths is not None:
            inputs["lengths"] = _by_request(scratch.lengths[here])
        batch = AttnBatch(
            query_lens=(queries,) * rows,
            prefix_lens=scratch.places[first_slot] if tail_mask is None else scratch.verified,
            page_table=state.page_table,
            slots=_by_request(scratch.slots[here]),
            max_length=state.max_length + first_slot + queries,
            tail_mask=tail_mask,
            query_depths=None if tail_depths is None else tail_depths[:, -queries:],
            tail_depths=tail_depths,
        )
        return self._run(Phase.DRAFT_STEP, self._step_body, inputs, batch)

    def move_row(self, source: int, destination: int) -> None:
        """Copy the outcome of row ``source`` to ``destination``."""
        copy_all([kept[destination] for kept in self._kept], [kept[source] for kept in self._kept])

    def _run(
        self,
        phase: Phase,
        body: DraftExtendBody | DraftStepBody,
        inputs: dict[str, Tensor],
        batch: AttnBatch,
        rows: Tensor | None = None,
    ) -> DraftOutput:
        out = self._runner.run(phase, body, inputs, batch, self._plans, rows)
        return DraftOutput(out["hidden"], out.get("state"))

    def _embeds(self, rows: VerifiedRows) -> Tensor:
        """What stands beside each feature: the next token's embedding, or what `MediaView` says where media stand."""
        tokens = rows.next_tokens
        if rows.foreign_ids:
            last = self.spec.vocab.target_size - 1
            known = (tokens >= 0) & (tokens <= last)
            embeds = self.draft.embed(tokens.clamp(0, last)).masked_fill(~known[:, None], 0.0)
        else:
            embeds = self.draft.embed(tokens)
        if self.spec.media is MediaView.PLACEHOLDER or rows.next_media is None or rows.next_embeds is None:
            return embeds
        return torch.where(rows.next_media[:, None], rows.next_embeds.to(embeds.dtype), embeds)

    def _positions(self, rows: VerifiedRows) -> Tensor:
        positions = rows.indices if self._counts_tokens else rows.positions
        if positions is rows.indices and rows.max_length <= self.spec.max_positions:
            return positions  # indices lie below the bound of the batch
        return self._in_range(positions)

    def _in_range(self, positions: Tensor) -> Tensor:
        """``positions`` within the draft's context: rows past it are padding (`draft_lengths` gives them no token)."""
        return positions.clamp(max=self.spec.max_positions - 1)

    def _on_axes(self, positions: Tensor) -> Tensor:
        """``positions [T]`` or ``[3, T]`` on the draft's axes."""
        if self.spec.position_axes == 1:
            return positions if positions.dim() == 1 else positions[0]
        return positions.expand(self.spec.position_axes, -1) if positions.dim() == 1 else positions


def _by_request(values_QB: Tensor) -> Tensor:
    """``[B · Q]``: the rows of a request side by side."""
    return values_QB.t().reshape(-1)
