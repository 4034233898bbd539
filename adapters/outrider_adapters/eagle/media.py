"""What an EAGLE draft sees where images stand: by its config, else as such drafts are trained and served."""

from __future__ import annotations

from attrs import frozen

from outrider.errors import Problems
from outrider.types import MediaView, WeightSource
from outrider_adapters.eagle.settings import Settings

__all__ = ["MediaChoice", "choose_media"]

_KEY = "media_view"
_VIEWS = {"target_embedding": MediaView.TARGET_EMBEDDING, "placeholder": MediaView.PLACEHOLDER}


@frozen
class MediaChoice:
    """``view``, and the ``note`` that a target which reads images calls for, where the config is silent."""

    view: MediaView
    note: str | None = None


def choose_media(
    settings: Settings, hidden: int, target_hidden: int, embedding: WeightSource, problems: Problems
) -> MediaChoice:
    """The view that ``media_view`` names; without it the target's embedding, where the draft's are as wide.

    Published EAGLE-3 heads of Qwen2.5-VL and LLaVA are trained on the embeddings that the target's layers read, and SGLang
    and vLLM feed them those.
    """
    width = hidden if embedding is WeightSource.OWN else target_hidden
    told = settings.text(_KEY)
    if told is None:
        silent = f"config.json has no '{_KEY}'"
        if width == target_hidden:
            note = f"at images it sees the target's merged embedding, as EAGLE heads are trained: {silent}"
            return MediaChoice(MediaView.TARGET_EMBEDDING, note)
        note = (
            f"at images it sees the placeholder's embedding: {silent}, and its embeddings are {width} wide, the target's "
            f"{target_hidden}"
        )
        return MediaChoice(MediaView.PLACEHOLDER, note)
    if told not in _VIEWS:
        problems.add(f"'{_KEY}' is '{told}' in config.json, expected one of {', '.join(_VIEWS)}")
        return MediaChoice(MediaView.PLACEHOLDER)
    view = _VIEWS[told]
    if view is MediaView.TARGET_EMBEDDING and width != target_hidden:
        problems.add(
            f"'{_KEY}' is '{told}' in config.json, but the draft's embeddings are {width} wide and the target's "
            f"{target_hidden}; only a draft of the same width can be fed them: say 'placeholder'"
        )
    return MediaChoice(view)
