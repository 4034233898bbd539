"""`LlavaLoader`: recognises, explains and loads LLaVA checkpoints."""

from __future__ import annotations

from outrider.checkpoint import Checkpoint
from outrider.interfaces import TargetLoader
from outrider_adapters.llava.plan import LlavaPlan
from outrider_adapters.media import VisionLanguageLoader

__all__ = ["LlavaLoader", "loader"]


def loader() -> TargetLoader:
    """The loader of LLaVA targets (entry point ``outrider.targets``)."""
    return LlavaLoader()


class LlavaLoader(VisionLanguageLoader):
    """Loads LLaVA 1.5 and its like (``LlavaForConditionalGeneration``), under the tensor names of any transformers version."""

    kind = "llava"
    architecture = "LlavaForConditionalGeneration"
    image_token = "<image>"

    def plan(self, checkpoint: Checkpoint) -> LlavaPlan:
        """The checkpoint, read and checked without its weights."""
        return LlavaPlan.read(checkpoint)
