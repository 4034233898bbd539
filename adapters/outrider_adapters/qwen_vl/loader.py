"""`QwenVlLoader`: recognises, explains and loads Qwen2.5-VL checkpoints."""

from __future__ import annotations

from outrider.checkpoint import Checkpoint
from outrider.interfaces import TargetLoader
from outrider_adapters.media import VisionLanguageLoader
from outrider_adapters.qwen_vl.plan import QwenVlPlan

__all__ = ["QwenVlLoader", "loader"]


def loader() -> TargetLoader:
    """The loader of Qwen2.5-VL targets (entry point ``outrider.targets``)."""
    return QwenVlLoader()


class QwenVlLoader(VisionLanguageLoader):
    """Loads Qwen2.5-VL, published or saved anew, under the tensor names of any transformers version."""

    kind = "qwen2_5_vl"
    architecture = "Qwen2_5_VLForConditionalGeneration"
    image_token = "<|image_pad|>"
    video_token: str | None = "<|video_pad|>"

    def plan(self, checkpoint: Checkpoint) -> QwenVlPlan:
        """The checkpoint, read and checked without its weights."""
        return QwenVlPlan.read(checkpoint)
