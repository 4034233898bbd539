"""Text around the loop: incremental detokenisation, stop rules, and constraints on what may be generated."""

from __future__ import annotations

from outrider.text.automaton import TokenAutomaton
from outrider.text.constraints import advance_path, check_start, walk_tree
from outrider.text.detokenize import IncrementalDetokenizer
from outrider.text.masks import num_mask_words, pack_mask, unpack_mask
from outrider.text.stops import StopMatcher, StopOutcome, StopRules

__all__ = [
    "IncrementalDetokenizer",
    "StopMatcher",
    "StopOutcome",
    "StopRules",
    "TokenAutomaton",
    "advance_path",
    "check_start",
    "num_mask_words",
    "pack_mask",
    "unpack_mask",
    "walk_tree",
]
