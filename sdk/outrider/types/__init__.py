"""Frozen values that cross Outrider's seams."""

from __future__ import annotations

from outrider.types.attention import AttnBatch, AttnCapabilities, AttnShape, CaptureSupport
from outrider.types.capture import CaptureSummary, CaptureTotals, Unserved, totals_by_kind
from outrider.types.counts import RequestCount, RequestId, RowIndex, TokenCount
from outrider.types.draft import DraftSpec, MediaView, PositionView, RecurrentState, RowAlignment, WeightSource
from outrider.types.model import AttentionSpec, LogitScaling, ModelSpec, PositionScheme, RopeKind, RopeSpec
from outrider.types.outcome import RoundOutcome
from outrider.types.outputs import CaptureHiddenMode, OutputWants, StepResult, TokenLogprobs
from outrider.types.overrides import DraftOverrides
from outrider.types.proposal import Acceptance, DraftDistribution, Proposal, TreeShape
from outrider.types.request import Emission, FinishReason, Request
from outrider.types.runner import (
    Admitted,
    Axis,
    BufferSlot,
    CaptureRecord,
    DispatchReport,
    GraphSizes,
    Phase,
    PhaseShape,
    RefusalReason,
    Refused,
    Role,
    RoundShape,
)
from outrider.types.sampling import SamplingFeatures, SamplingParams, SamplingState
from outrider.types.stack import Attend, BodyCalls, DraftOutput, RunOutside, StackInputs, StackOutput, run_directly
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
    "BodyCalls",
    "BufferSlot",
    "CaptureHiddenMode",
    "CaptureRecord",
    "CaptureSummary",
    "CaptureSupport",
    "CaptureTotals",
    "DecodeState",
    "DispatchReport",
    "DraftDistribution",
    "DraftOutput",
    "DraftOverrides",
    "DraftSpec",
    "DraftVocab",
    "Emission",
    "FinishReason",
    "GraphSizes",
    "HiddenTap",
    "LogitScaling",
    "MediaView",
    "ModelSpec",
    "OutputWants",
    "Phase",
    "PhaseShape",
    "PositionScheme",
    "PositionView",
    "Proposal",
    "RecurrentState",
    "RefusalReason",
    "Refused",
    "Request",
    "RequestCount",
    "RequestId",
    "Role",
    "RopeKind",
    "RopeSpec",
    "RoundOutcome",
    "RoundShape",
    "RowAlignment",
    "RowIndex",
    "RunOutside",
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
    "Unserved",
    "VerifiedRows",
    "WeightSource",
    "run_directly",
    "totals_by_kind",
]
