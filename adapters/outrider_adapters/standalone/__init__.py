"""Standalone drafts: an ordinary language model of the target's vocabulary drafts on its own."""

from __future__ import annotations

from outrider_adapters.standalone.codecs import first_difference
from outrider_adapters.standalone.draft import BoundStandalone, StandaloneDraft
from outrider_adapters.standalone.loader import StandaloneLoader, load, loader

__all__ = ["BoundStandalone", "StandaloneDraft", "StandaloneLoader", "first_difference", "load", "loader"]
