"""EAGLE drafts: EAGLE-1, EAGLE-2 and HASS heads, and EAGLE-3 in the forms in which it is published."""

from __future__ import annotations

from outrider_adapters.eagle.eagle1 import BoundEagle1, Eagle1Draft
from outrider_adapters.eagle.eagle3 import BoundEagle3, Eagle3Draft
from outrider_adapters.eagle.loader import Eagle3Loader, EagleLoader, eagle3_loader, eagle_loader

__all__ = [
    "BoundEagle1",
    "BoundEagle3",
    "Eagle1Draft",
    "Eagle3Draft",
    "Eagle3Loader",
    "EagleLoader",
    "eagle3_loader",
    "eagle_loader",
]
