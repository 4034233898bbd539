"""One round of speculative decoding: propose, verify, accept, commit. Nothing here waits for the device.

Shape suffixes: B requests, M = N + 1 nodes (root and drafted), K depth of the proposal, V vocabulary.
"""

from __future__ import annotations

import torch
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
    verified, logits_BMV = verify(core, state, proposal)
    allowed_BMV = constrain(logits_BMV, proposal, constraints or {})
    acceptance = core.verifier.accept(proposal, allowed_BMV, state)
    packed = commit(core, state, proposal, verified, acceptance)
    hidden_BMH = verified.hidden.view(*logits_BMV.shape[:2], -1)
    return round_result(packed, wants, proposal, acceptance, logits_BMV, hidden_BMH)


def verify(core: DecodeCore, state: DecodeState, proposal: Proposal) -> tuple[TargetPass, Tensor]:
    """The target's pass over root and drafted nodes, with its logits ``[B, N + 1, V]``."""
    nodes = proposal.shape.num_tokens + 1
    rows = state.num_rows
    tokens_BM = torch.cat([state.roots[:, None], proposal.tokens], dim=1)
    indices_BM = state.lengths[:, None] + proposal.depths
    # Node i is written i slots past the prefix; in a chain that is its position, in a tree commit moves it there.
    places_BM = state.lengths[:, None] + torch.arange(nodes, device=indices_BM.device)
    chain = proposal.shape.is_chain
    batch = AttnBatch(
        query_lens=(nodes,) * rows,
        prefix_lens=state.lengths,
        page_table=state.page_table,
        slots=slots_of(state.page_table, places_BM, core.kv.page_size).reshape(-1),
        max_length=state.max_length + nodes - 1,
        tail_mask=None if chain else proposal.ancestors,
        query_depths=None if chain else proposal.depths,
        tail_depths=None if chain else proposal.depths,
    )
    verified = core.run_target(
        Phase.TARGET_VERIFY if nodes > 1 else Phase.TARGET_DECODE,
        core.target.stack.embed(tokens_BM.reshape(-1)),
        core.rope_positions(indices_BM, state.position_offsets[:, None]),
        indices_BM.reshape(-1) + 1,
        batch,
    )
    return verified, core.target.stack.logits(verified.hidden).view(rows, nodes, -1)


def commit(
    core: DecodeCore, state: DecodeState, proposal: Proposal, verified: TargetPass, acceptance: Acceptance
) -> Tensor:
    """Keep the accepted path: KV in place, the drafter extended with its features, lengths and roots moved on."""
    rows, width = acceptance.tokens.shape
    steps_K = torch.arange(width, device=acceptance.path.device)
    indices_BK = state.lengths[:, None] + steps_K
    slots_BK = slots_of(state.page_table, indices_BK, core.kv.page_size)
    if not proposal.shape.is_chain:
        path_BK = torch.where(steps_K <= acceptance.counts[:, None], acceptance.path, steps_K)
        sources_BK = slots_of(state.page_table, state.lengths[:, None] + path_BK, core.kv.page_size)
        core.kv.move(sources_BK[:, 1:].reshape(-1), slots_BK[:, 1:].reshape(-1))
    if core.drafts:
        core.drafter.extend(
            VerifiedRows(
                first_row=0,
                tokens=torch.cat([state.roots[:, None], acceptance.tokens[:, :-1]], dim=1).reshape(-1),
                next_tokens=acceptance.tokens.reshape(-1),
                features=_features_of_path(proposal, verified, acceptance),
                indices=indices_BK.reshape(-1),
                positions=core.rope_positions(indices_BK, state.position_offsets[:, None]),
                slots=slots_BK.reshape(-1),
                last_rows=torch.arange(0, rows * width, width, device=steps_K.device) + acceptance.counts,
                query_lens=(width,) * rows,
                prefix_lens=state.lengths,
                page_table=state.page_table,
                max_length=state.max_length + width - 1,
            )
        )
    return advance(state, acceptance)


def _features_of_path(proposal: Proposal, verified: TargetPass, acceptance: Acceptance) -> Tensor | None:
    """Target features of the accepted path only, ``[B · (K + 1), width]``: never the draft's own."""
    if verified.features is None or proposal.shape.is_chain:
        return verified.features
    rows, nodes = acceptance.path.shape[0], proposal.shape.num_tokens + 1
    first = torch.arange(0, rows * nodes, nodes, device=acceptance.path.device)[:, None]
    return verified.features.index_select(0, (first + acceptance.path).reshape(-1))
