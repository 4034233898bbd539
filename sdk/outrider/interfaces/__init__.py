"""The seams of Outrider, as Protocols: one file each."""

from __future__ import annotations

from outrider.interfaces.attention import AttnBackend, AttnPlan, AttnPlanner
from outrider.interfaces.constraint import ConstraintFactory, ConstraintLoader, GrammarSpec, TokenConstraint
from outrider.interfaces.draft import BoundDraft, UnboundDraft
from outrider.interfaces.drafter import Drafter, DrafterBuilder, DrafterParts, ModelFreeDrafter, RoundFeedback
from outrider.interfaces.kv import NULL_PAGE, NUM_RESERVED_PAGES, TRASH_PAGE, KVCache, KVMemory, PageAllocator
from outrider.interfaces.layer_stack import LayerStackProvider, SharedWeights
from outrider.interfaces.loaders import (
    AskedByName,
    Description,
    DraftLoader,
    LoadOptions,
    LoadProgress,
    ModelPair,
    TargetLoader,
)
from outrider.interfaces.medium import Break, Captured, GraphMedium, Work
from outrider.interfaces.runner import CaptureProgress, GraphBody, GraphRunner, MediaBody, RoundStep
from outrider.interfaces.target import (
    ChatMessage,
    MultimodalProvider,
    PreparedPrompt,
    StateRollback,
    Target,
    VideoFrames,
)
from outrider.interfaces.text import TextCodec
from outrider.interfaces.verify import (
    LosslessChoice,
    LosslessVerifier,
    LossyChoice,
    LossyVerifier,
    ProposalKind,
    Verifier,
    VerifierChoice,
)

__all__ = [
    "NULL_PAGE",
    "NUM_RESERVED_PAGES",
    "TRASH_PAGE",
    "AskedByName",
    "AttnBackend",
    "AttnPlan",
    "AttnPlanner",
    "BoundDraft",
    "Break",
    "CaptureProgress",
    "Captured",
    "ChatMessage",
    "ConstraintFactory",
    "ConstraintLoader",
    "Description",
    "DraftLoader",
    "Drafter",
    "DrafterBuilder",
    "DrafterParts",
    "GrammarSpec",
    "GraphBody",
    "GraphMedium",
    "GraphRunner",
    "KVCache",
    "KVMemory",
    "LayerStackProvider",
    "LoadOptions",
    "LoadProgress",
    "LosslessChoice",
    "LosslessVerifier",
    "LossyChoice",
    "LossyVerifier",
    "MediaBody",
    "ModelFreeDrafter",
    "ModelPair",
    "MultimodalProvider",
    "PageAllocator",
    "PreparedPrompt",
    "ProposalKind",
    "RoundFeedback",
    "RoundStep",
    "SharedWeights",
    "StateRollback",
    "Target",
    "TargetLoader",
    "TextCodec",
    "TokenConstraint",
    "UnboundDraft",
    "Verifier",
    "VerifierChoice",
    "VideoFrames",
    "Work",
]
