"""Qwen2.5-VL: a tower of dynamic resolution before a Qwen2 decoder with multi-axis rope."""

from __future__ import annotations

from outrider_adapters.qwen_vl.encoder import QwenVlEncoder, QwenVlTower, QwenVlVideos
from outrider_adapters.qwen_vl.loader import QwenVlLoader, loader
from outrider_adapters.qwen_vl.plan import QwenVlPlan
from outrider_adapters.qwen_vl.positions import multi_axis_positions

__all__ = [
    "QwenVlEncoder",
    "QwenVlLoader",
    "QwenVlPlan",
    "QwenVlTower",
    "QwenVlVideos",
    "loader",
    "multi_axis_positions",
]
