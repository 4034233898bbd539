"""What graphs of one kind refuse is remembered for whom it holds, and for nobody else."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch

from outrider.errors import CaptureError
from outrider.graphs.refusals import Refusals
from outrider.types import CaptureHiddenMode, Phase, PhaseShape, RefusalReason, Refused, RequestCount, TokenCount
from tests.support.bodies import Body

VERIFY, DECODE = Phase.TARGET_VERIFY, Phase.TARGET_DECODE


def refusals(**modes: CaptureHiddenMode) -> Refusals:
    return Refusals("kind", {Phase[name]: mode for name, mode in modes.items()})


def shape(hidden: CaptureHiddenMode) -> PhaseShape:
    return PhaseShape(TokenCount(2), RequestCount(1), hidden=hidden)


def test_a_body_is_lost_for_its_phase_alone() -> None:
    kept, body, other = refusals(), Body(), Body()

    def fail() -> Refused:
        raise CaptureError("a line of the body")

    with pytest.raises(CaptureError):
        kept.capturing(VERIFY, body, 4, "verify at 4", fail)
    lost = kept.of_body(VERIFY, body)
    assert lost is not None
    assert (lost.reason, lost.numbers, lost.by) == (RefusalReason.BODY, "a line of the body", "kind")
    assert kept.of_body(VERIFY, other) is kept.of_body(DECODE, body) is kept.of_phase(DECODE) is kept.of_size(4) is None
    newest = kept.lose(VERIFY, other, Refused(RefusalReason.DEVICE, "no card", "take one"))
    assert kept.of_phase(VERIFY) is newest
    assert kept.of_body(VERIFY, body) is lost


def test_a_lost_body_lives_until_all_are_let_go() -> None:
    """Else another one could come to its id, and be refused for it."""
    kept, body = refusals(), Body()
    gone = weakref.ref(body)
    kept.lose(VERIFY, body, Refused(RefusalReason.DEVICE, "no card", "take one"))
    del body
    gc.collect()
    assert gone() is not None
    kept.clear()
    gc.collect()
    assert gone() is None
    assert kept.of_phase(VERIFY) is None


@pytest.mark.parametrize("raises", [True, False])
def test_memory_that_does_not_suffice_is_a_matter_of_the_size(raises: bool) -> None:
    kept, body = refusals(), Body()
    full = Refused(RefusalReason.MEMORY, "verify at 4: full", "capture less", "kind")

    def capture() -> str | Refused:
        if raises:
            raise torch.OutOfMemoryError("full")
        return full

    found = kept.capturing(VERIFY, body, 4, "verify at 4", capture)
    assert isinstance(found, Refused)
    assert (found.reason, found.numbers) == (full.reason, full.numbers)
    assert kept.of_size(4) is found
    assert kept.of_size(2) is kept.of_body(VERIFY, body) is None
    assert kept.capturing(VERIFY, body, 2, "verify at 2", lambda: "a graph") == "a graph"
    assert kept.of_size(2) is None


def test_hidden_states() -> None:
    kept = refusals(DRAFT_EXTEND=CaptureHiddenMode.LAST)
    assert kept.mode(VERIFY) is CaptureHiddenMode.FULL
    for hidden in CaptureHiddenMode:
        assert kept.of_hidden(VERIFY, shape(hidden)) is None
        refused = kept.of_hidden(Phase.DRAFT_EXTEND, shape(hidden))
        assert (refused is None) == (hidden is not CaptureHiddenMode.FULL)
        if refused is not None:
            assert refused.reason is RefusalReason.HIDDEN_MODE
            assert "captured with hidden states LAST, asked is FULL" in refused.numbers
