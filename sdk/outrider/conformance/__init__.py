"""Checks that an implementation of `LayerStackProvider` or `BoundDraft` keeps the contract of its Protocol.

In the tests of an adapter::

    def test_my_model() -> None:
        check_target(load_my_model(), attention=registry.attention("sdpa"))
"""

from __future__ import annotations

from outrider.conformance.draft import check_draft
from outrider.conformance.host_reads import forbid_host_reads
from outrider.conformance.report import CheckResult, ConformanceReport
from outrider.conformance.target import check_target

__all__ = ["CheckResult", "ConformanceReport", "check_draft", "check_target", "forbid_host_reads"]
