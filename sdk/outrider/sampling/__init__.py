"""Sampling: seeded noise, warped logits and the choice of the next token."""

from __future__ import annotations

from outrider.sampling.checks import check_sampling, check_token_ids
from outrider.sampling.choice import Choice, choose_tokens, perturb
from outrider.sampling.drafting import DrawnChildren, coupled_scores, draw_children, warp_draft_logits
from outrider.sampling.filters import greedy_rows
from outrider.sampling.noise import NoiseStream, exponential_noise, gumbel_noise, uniform_noise
from outrider.sampling.paths import NodePaths
from outrider.sampling.warp import WarpedLogits, warp_logits

__all__ = [
    "Choice",
    "DrawnChildren",
    "NodePaths",
    "NoiseStream",
    "WarpedLogits",
    "check_sampling",
    "check_token_ids",
    "choose_tokens",
    "coupled_scores",
    "draw_children",
    "exponential_noise",
    "greedy_rows",
    "gumbel_noise",
    "perturb",
    "uniform_noise",
    "warp_draft_logits",
    "warp_logits",
]
