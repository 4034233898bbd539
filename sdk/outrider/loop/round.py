"""One round of speculative decoding: propose, verify, accept, commit. Nothing here waits for the device.

Shape suffixes: B requests, M = N + 1 nodes (root and drafted), K depth of the proposal, V vocabulary.
"""

from __future__ import annotations

import torch
from attrs import frozen
from torch import Tensor

from outrider.kv import slots_of
from outrider.loop.advance import advance
from outrider.loop.constrain import RowConstraints, constrain
from outrider.loop.core import DecodeCore, TargetPass
from outrider.loop.outputs import round_result
from outrider.types import Acceptance, AttnBatch, Phase, Proposal
from outrider.types.outputs import TOKENS_ONLY, OutputWants, StepResult
from outrider.types.state import DecodeState, VerifiedRows

__all__ = ["run_round"]


def run_round(
    core: DecodeCore, state: DecodeState, wants: OutputWants = TOKENS_ONLY, constraints: RowConstraints | None = None
) -> StepResult:
    """Advance every row of ``state`` by one round; what it gives, on the device.

    Changes ``state``, the KV of target and draft, and what the drafter keeps. No host synchronisation, but for rows with
    token ``constraints``, which are host code.
    """
    proposal = core.drafter.propose(state)
    nodes = nodes_of(core, state, proposal)
    verified, logits_BMV = verify(core, state, proposal, nodes)
    allowed_BMV = constrain(logits_BMV, proposal, constraints or {})
    acceptance = core.verifier.accept(proposal, allowed_BMV, state)
    packed = commit(core, state, proposal, nodes, verified, acceptance)
    hidden_BMH = verified.hidden.view(*logits_BMV.shape[:2], -1)
    return round_result(packed, wants, proposal, acceptance, logits_BMV, hidden_BMH)


@frozen(eq=False)
class PassRows:
    """The rows of one pass: ``tokens``, sequence ``indices`` and cache ``slots`` ``[B, M]``, flat rope ``positions``."""

    tokens: Tensor
    indices: Tensor
    positions: Tensor
    slots: Tensor


def nodes_of(core: DecodeCore, state: DecodeState, proposal: Proposal) -> PassRows:
    """Root and drafted nodes as rows of the target's pass."""
    indices_BM = state.lengths[:, None] + proposal.depths
    # Node i is written i slots past the prefix; in a chain that is its position, in a tree commit moves it there.
    places_BM = indices_BM if proposal.shape.is_chain else _next_indices(state, proposal.depths.shape[1])
    return PassRows(
        tokens=torch.cat([state.roots[:, None], proposal.tokens], dim=1),
        indices=indices_BM,
        positions=core.rope_positions(indices_BM, state.position_offsets[:, None]),
        slots=slots_of(state.page_table, places_BM, core.kv.page_size),
    )


def verify(core: DecodeCore, state: DecodeState, proposal: Proposal, nodes: PassRows) -> tuple[TargetPass, Tensor]:
    """The target's pass over ``nodes``, with its logits ``[B, N + 1, V]``."""
    rows, count = nodes.tokens.shape
    chain = proposal.shape.is_chain
    batch = AttnBatch(
        query_lens=(count,) * rows,
        prefix_lens=state.lengths,
        page_table=state.page_table,
        slots=nodes.slots.reshape(-1),
        max_length=state.max_length + count - 1,
        tail_mask=None if chain else proposal.ancestors,
        query_depths=None if chain else proposal.depths,
        tail_depths=None if chain else proposal.depths,
    )
    verified = core.run_target(
        Phase.TARGET_VERIFY if count > 1 else Phase.TARGET_DECODE,
        core.target.stack.embed(nodes.tokens.reshape(-1)),
        nodes.positions,
        nodes.indices.reshape(-1) + 1,
        batch,
    )
    return verified, core.target.stack.logits(verified.hidden).view(rows, count, -1)


def commit(
    core: DecodeCore,
    state: DecodeState,
    proposal: Proposal,
    nodes: PassRows,
    verified: TargetPass,
    acceptance: Acceptance,
) -> Tensor:
    """Keep the accepted path: KV in place, the drafter extended with its features, lengths and roots moved on."""
    # The nodes of a chain are the path itself; those that were not accepted are padding, whatever stands there.
    path = nodes if proposal.shape.is_chain else _move_path(core, state, nodes, acceptance)
    if core.drafts:
        rows, width = acceptance.tokens.shape
        core.drafter.extend(
            VerifiedRows(
                first_row=0,
                tokens=path.tokens.reshape(-1),
                next_tokens=acceptance.tokens.reshape(-1),
                features=_features_of_path(proposal, verified, acceptance),
                indices=path.indices.reshape(-1),
                positions=path.positions,
                slots=path.slots.reshape(-1),
                last_rows=torch.arange(0, rows * width, width, device=acceptance.counts.device) + acceptance.counts,
                query_lens=(width,) * rows,
                prefix_lens=state.lengths,
                page_table=state.page_table,
                max_length=state.max_length + width - 1,
            )
        )
    return advance(state, acceptance)


def _move_path(core: DecodeCore, state: DecodeState, nodes: PassRows, acceptance: Acceptance) -> PassRows:
    """Copy the KV of a tree's accepted path to the end of the sequence; the path as rows there.

    What stands past the accepted nodes moves along: those slots lie beyond the sequence, and the next round overwrites them.
    """
    width = acceptance.tokens.shape[1]
    indices_BK = _next_indices(state, width)
    slots_BK = nodes.slots[:, :width]
    sources_BK = nodes.slots.gather(1, acceptance.path)
    core.kv.move(sources_BK[:, 1:].reshape(-1), slots_BK[:, 1:].reshape(-1))
    return PassRows(
        tokens=torch.cat([state.roots[:, None], acceptance.tokens[:, :-1]], dim=1),
        indices=indices_BK,
        positions=core.rope_positions(indices_BK, state.position_offsets[:, None]),
        slots=slots_BK,
    )


def _next_indices(state: DecodeState, count: int) -> Tensor:
    """Sequence indices ``[B, count]`` of the root and what follows it."""
    return state.lengths[:, None] + torch.arange(count, device=state.lengths.device)


def _features_of_path(proposal: Proposal, verified: TargetPass, acceptance: Acceptance) -> Tensor | None:
    """Target features of the accepted path only, ``[B · (K + 1), width]``: never the draft's own."""
    if verified.features is None or proposal.shape.is_chain:
        return verified.features
    rows, nodes = acceptance.path.shape[0], proposal.shape.num_tokens + 1
    first = torch.arange(0, rows * nodes, nodes, device=acceptance.path.device)[:, None]
    return verified.features.index_select(0, (first + acceptance.path).reshape(-1))
