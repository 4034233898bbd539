"""Frozen values that cross Outrider's seams."""

from __future__ import annotations

from outrider.types.attention import AttnBatch, AttnCapabilities, AttnShape, CaptureSupport
from outrider.types.counts import RequestCount, RequestId, RowIndex, TokenCount
from outrider.types.draft import DraftSpec, MediaView, RecurrentState, RowAlignment, WeightSource
from outrider.types.model import AttentionSpec, ModelSpec, PositionScheme, RopeKind, RopeSpec
from outrider.types.outputs import CaptureHiddenMode, OutputWants, StepResult, TokenLogprobs
from outrider.types.overrides import DraftOverrides
from outrider.types.proposal import Acceptance, DraftDistribution, Proposal, TreeShape
from outrider.types.request import Emission, FinishReason, Request
from outrider.types.runner import (
    Admitted,
    Axis,
    BufferSlot,
    DispatchReport,
    Phase,
    PhaseShape,
    RefusalReason,
    Refused,
    RoundShape,
)
from outrider.types.sampling import SamplingFeatures, SamplingParams, SamplingState
from outrider.types.stack import Attend, DraftOutput, StackInputs, StackOutput
from outrider.types.state import DecodeState, VerifiedRows
from outrider.types.taps import HiddenTap, TapConvention
from outrider.types.vocab import DraftVocab

__all__ = [
    "Acceptance",
    "Admitted",
    "Attend",
    "AttentionSpec",
    "AttnBatch",
    "AttnCapabilities",
    "AttnShape",
    "Axis",
    "BufferSlot",
    "CaptureHiddenMode",
    "CaptureSupport",
    "DecodeState",
    "DispatchReport",
    "DraftDistribution",
    "DraftOutput",
    "DraftOverrides",
    "DraftSpec",
    "DraftVocab",
    "Emission",
    "FinishReason",
    "HiddenTap",
    "MediaView",
    "ModelSpec",
    "OutputWants",
    "Phase",
    "PhaseShape",
    "PositionScheme",
    "Proposal",
    "RecurrentState",
    "RefusalReason",
    "Refused",
    "Request",
    "RequestCount",
    "RequestId",
    "RopeKind",
    "RopeSpec",
    "RoundShape",
    "RowAlignment",
    "RowIndex",
    "SamplingFeatures",
    "SamplingParams",
    "SamplingState",
    "StackInputs",
    "StackOutput",
    "StepResult",
    "TapConvention",
    "TokenCount",
    "TokenLogprobs",
    "TreeShape",
    "VerifiedRows",
    "WeightSource",
]
