"""`TreeDrafter`: EAGLE-2's dynamic draft tree, grown from the draft's own confidence.

Source: Li et al. 2024, "EAGLE-2: Faster Inference of Language Models with Dynamic Draft Trees", section 4.

Shape suffixes: B requests, k width, S stored candidates = k + k²(depth - 1), N drafted tokens, D draft vocabulary.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from outrider.drafting.ancestors import ancestors_of
from outrider.drafting.choosing import ProposalMode, draft_scores, level_paths
from outrider.drafting.limits import draft_lengths
from outrider.drafting.memory import DraftMemory
from outrider.drafting.scratch import ScratchLayout
from outrider.types import HiddenTap, Proposal, TreeShape
from outrider.types.state import DecodeState, VerifiedRows

__all__ = ["TreeDrafter", "num_candidates"]


def num_candidates(width: int, depth: int) -> int:
    """How many candidates a dynamic tree stores: the most drafted tokens it can propose."""
    return width + width * width * (depth - 1)


class TreeDrafter:
    """Grows ``width`` nodes a level for ``depth`` levels and proposes the best ``num_tokens`` of all candidates.

    A candidate's score is the sum of the draft's log-probabilities along its path; for coupled drafts those of its scores
    with the noise, which say how sure the seeded choice is. Equal scores are ordered by level, then by place, so that a
    parent never loses to its child and every chosen node's parent is chosen.

    Which candidates are kept depends on their scores, so they must not be drawn from the draft's distribution: rejection
    sampling would not be lossless. ``mode`` is greedy or coupled.
    """

    def __init__(
        self,
        memory: DraftMemory,
        width: int,
        depth: int,
        num_tokens: int,
        num_rows: int,
        mode: ProposalMode = ProposalMode.COUPLED,
    ) -> None:
        assert mode is not ProposalMode.SAMPLED, "builders refuse to prune what was drawn"
        self._mode = mode
        self._memory = memory
        self._width = width
        self._num_rows = num_rows
        self._shape = TreeShape(
            num_tokens=num_tokens,
            depth=min(depth, num_tokens),
            is_chain=False,
            scratch_slots=width * (depth - 1),
        )
        device = memory.spec.device
        per_level = torch.tensor([width, *[width * width] * (depth - 1)], device=device)
        self._depth_S = torch.arange(1, depth + 1, device=device).repeat_interleave(per_level)
        self._scratch = ScratchLayout.tree([level for level in range(depth - 1) for _ in range(width)], device)
        self._self_mask = torch.eye(width, dtype=torch.bool, device=device)
        self._depth = depth

    @property
    def shape(self) -> TreeShape:
        """Static sizes of every proposal."""
        return self._shape

    @property
    def taps(self) -> tuple[HiddenTap, ...]:
        """The taps of the draft's spec."""
        return self._memory.spec.taps

    @property
    def runs_on_host(self) -> bool:
        """No: device only."""
        return False

    def extend(self, rows: VerifiedRows) -> None:
        """Run the verified rows through the draft."""
        self._memory.extend(rows)

    def propose(self, state: DecodeState) -> Proposal:
        """The best N candidates of each row's tree, parents before children."""
        tokens_BS, scores_BS, parents_BS = self._grow(state)
        drafted = self._shape.num_tokens
        order_BS = scores_BS.sort(dim=1, descending=True, stable=True).indices
        chosen_BN = order_BS[:, :drafted].sort(dim=1).values
        # Node ids: 0 is the root (candidate -1), chosen candidates count from 1 in their order.
        parents_BN = torch.searchsorted(chosen_BN, parents_BS.gather(1, chosen_BN), right=True)
        depths_BN = self._depth_S[chosen_BN]
        return Proposal(
            tokens=tokens_BS.gather(1, chosen_BN),
            parents=parents_BN,
            depths=torch.cat([torch.zeros_like(depths_BN[:, :1]), depths_BN], dim=1),
            ancestors=ancestors_of(parents_BN, self._shape.depth),
            draft_lens=draft_lengths(state, self._shape, self._memory.max_pairs),
            shape=self._shape,
        )

    def move_row(self, source: int, destination: int) -> None:
        """Copy what is kept for a row."""
        self._memory.move_row(source, destination)

    def _grow(self, state: DecodeState) -> tuple[Tensor, Tensor, Tensor]:
        """All candidates in level order: target tokens ``[B, S]``, scores ``[B, S]``, parent candidate (-1: root)."""
        memory, width, rows = self._memory, self._width, state.num_rows
        vocab = memory.spec.vocab
        path_tokens = torch.empty(rows, 1, 0, dtype=torch.int64, device=state.lengths.device)
        scores, ids = self._best(memory.hidden[:rows], state, path_tokens)
        all_scores, all_tokens = [scores], [vocab.to_target(ids)]
        all_parents = [torch.full_like(ids, -1)]
        frontier_tokens, frontier_scores = all_tokens[0], scores
        frontier_ids = torch.arange(width, device=ids.device).expand(rows, -1)
        path_tokens = frontier_tokens[:, :, None]
        carried = None if memory.state is None else memory.state[:rows].repeat_interleave(width, dim=0)
        mask = self._self_mask.expand(rows, -1, -1)
        scratch = memory.place(state, self._scratch)
        stored = width
        for level in range(1, self._depth):
            output = memory.step(
                state,
                scratch,
                (level - 1) * width,
                frontier_tokens,
                carried,
                tail_mask=mask,
                tail_depths=self._scratch.depths[: level * width].expand(rows, -1),
            )
            scores, ids = self._best(output.hidden, state, path_tokens)
            scores = (frontier_scores[:, :, None] + scores.view(rows, width, width)).view(rows, -1)
            tokens = vocab.to_target(ids).view(rows, -1)
            all_scores.append(scores)
            all_tokens.append(tokens)
            all_parents.append(frontier_ids.repeat_interleave(width, dim=1))
            if level == self._depth - 1:
                break
            best = scores.sort(dim=1, descending=True, stable=True)
            picked = best.indices[:, :width]
            parent = picked.div(width, rounding_mode="floor")
            frontier_scores, frontier_tokens = best.values[:, :width], tokens.gather(1, picked)
            path_tokens = torch.cat([_rows_of(path_tokens, parent), frontier_tokens[:, :, None]], dim=2)
            frontier_ids = stored + picked
            stored += width * width
            mask = torch.cat([_rows_of(mask, parent), self._self_mask.expand(rows, -1, -1)], dim=2)
            if output.state is not None:
                carried = _rows_of(output.state.view(rows, width, -1), parent).reshape(rows * width, -1)
        return torch.cat(all_tokens, dim=1), torch.cat(all_scores, dim=1), torch.cat(all_parents, dim=1)

    def _best(self, hidden: Tensor, state: DecodeState, path_tokens_BWL: Tensor) -> tuple[Tensor, Tensor]:
        """The k best log-probabilities over the draft vocabulary after each of W nodes, and their draft ids: ``[B, W · k]``.

        ``hidden [B · W, H]``: draft output at the nodes; ``path_tokens_BWL``: tokens on the way to each.
        """
        vocab = self._memory.spec.vocab
        rows, nodes, _ = path_tokens_BWL.shape
        scores = self._memory.draft.logits(hidden)
        if state.sampling.features.active:
            paths = level_paths(path_tokens_BWL)
            scores = draft_scores(scores.view(rows, nodes, -1), state, paths, vocab, self._mode)
        scores = scores.float().log_softmax(dim=-1)
        # NaN (nothing of the draft's vocabulary is allowed, or the draft overflows) would sort above everything, and a
        # child be chosen without its parent.
        best = scores.nan_to_num(nan=-math.inf, neginf=-math.inf).topk(self._width, dim=-1)
        return best.values.view(rows, -1), best.indices.view(rows, -1)


def _rows_of(values: Tensor, index: Tensor) -> Tensor:
    """Rows ``index [B, k]`` of ``values [B, n, W]``: ``[B, k, W]``."""
    return values.gather(1, index[:, :, None].expand(-1, -1, values.shape[2]))
