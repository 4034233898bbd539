"""`Target`: a loaded model with the optional powers it has, each a typed field instead of a probe."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from attrs import field, frozen
from torch import Tensor

from outrider.errors import InputError, Problems
from outrider.interfaces.layer_stack import LayerStackProvider, SharedWeights
from outrider.interfaces.runner import GraphRunner, MediaBody
from outrider.interfaces.text import TextCodec

__all__ = ["ChatMessage", "MultimodalProvider", "PreparedPrompt", "StateRollback", "Target", "VideoFrames"]

ChatMessage = Mapping[str, str | Sequence[Mapping[str, str]]]
"""``role`` and ``content``: a text, or parts in order: ``{"type": "image"}``, ``{"type": "video"}`` and
``{"type": "text", "text": "…"}``."""


def _rate(value: object) -> float:
    """``value`` as a number; NaN where it is none that a rate could be, which `VideoFrames` refuses."""
    try:
        return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else math.nan
    except OverflowError:  # a whole number of hundreds of digits
        return math.inf


@frozen
class VideoFrames:
    """A video as the files of its frames, encoded images in order, ``frames_per_second`` of them a second.

    Raises:
        InputError: no frame, or a rate that is no positive finite number.
    """

    frames: tuple[bytes, ...]
    frames_per_second: float = field(converter=_rate)

    def __attrs_post_init__(self) -> None:
        """Refuse what no video is."""
        with Problems("it is no video", InputError) as problems:
            if not self.frames:
                problems.add("it has 0 frames, at least 1 is needed")
            if not 0 < self.frames_per_second < math.inf:
                problems.add(
                    f"its frames per second are {self.frames_per_second:g}, allowed are numbers above 0; say how many of the "
                    "frames given are a second"
                )


@frozen(eq=False)
class PreparedPrompt:
    """A prompt with its media placed.

    ``embeds``: ``[P, H]`` the target's merged embeddings. ``positions``: ``[P]`` or ``[3, P]`` int64 rope positions.
    ``position_offset``: what is added to a sequence index to give the rope position of tokens after the prompt.
    ``media``: for each medium the index of its first token and one past its last, in order; ids there may lie outside the
    vocabulary.
    """

    token_ids: tuple[int, ...]
    embeds: Tensor
    positions: Tensor
    position_offset: int
    media: tuple[tuple[int, int], ...]


class MultimodalProvider(Protocol):
    """Places media among token embeddings, once per request."""

    @property
    @abstractmethod
    def bodies(self) -> tuple[MediaBody, ...]:
        """What `prepare` runs through a runner; the same objects every time, so that graphs of them are found again."""
        ...

    @property
    @abstractmethod
    def reads_videos(self) -> bool:
        """Whether `prepare` takes videos."""
        ...

    @abstractmethod
    def prepare(
        self,
        text: str | Sequence[int],
        media: Sequence[bytes],
        max_tokens: int | None = None,
        runner: GraphRunner | None = None,
        videos: Sequence[VideoFrames] = (),
    ) -> PreparedPrompt:
        """Embeddings and positions of a prompt with ``media`` (encoded image files) and ``videos`` at its placeholders.

        Images take the placeholders of images and videos those of videos, each in their order. ``text``, or token ids, hold
        one placeholder for each medium, or one for each of its tokens. ``max_tokens``: the most tokens the prompt may have
        with its media placed; a longer one is refused before anything is encoded. Each call encodes anew: through ``runner``,
        which no other thread may use meanwhile, or directly without one; the result is the same. Allocates its results on the
        target's device, never in memory of the runner; may synchronise.

        Raises:
            InputError: the media cannot be read, or their number differs from the placeholders'; videos without
                `reads_videos`.
            ContextLengthError: more than ``max_tokens``, or media at positions that the model does not have.
        """
        ...

    @abstractmethod
    def count_placeholders(self, text: str | Sequence[int]) -> int:
        """How many placeholders of media ``text``, or token ids, hold; nothing is encoded.

        Raises:
            InputError: ``text`` for a model without a tokenizer.
        """
        ...

    @abstractmethod
    def render_chat(self, messages: Sequence[ChatMessage]) -> str | None:
        """The prompt text of a conversation, with a placeholder for each medium; ``None`` when the model has no template.

        Raises:
            InputError: the template refuses the conversation.
        """
        ...


class StateRollback(Protocol):
    """Recurrent or sliding state that must be undone after drafted tokens are rejected."""

    @abstractmethod
    def checkpoint(self, first_row: int, num_rows: int) -> None:
        """Remember the state of the rows before a verification pass; device only, safe in a capture."""
        ...

    @abstractmethod
    def restore(self, first_row: int, counts: Tensor) -> None:
        """Keep the root and the first ``counts[b]`` accepted tokens of the last pass; ``counts [B]`` int64."""
        ...


@frozen(eq=False)
class Target:
    """A target model ready to be served. Only ``stack`` is needed; every further power is a field, never a guess.

    ``eos_ids``: ids that end a sequence. ``tokenizer_file``: its ``tokenizer.json``, for grammars.
    ``notes``: choices the loader made where the checkpoint is silent.
    """

    stack: LayerStackProvider
    weights: SharedWeights | None = None
    codec: TextCodec | None = None
    media: MultimodalProvider | None = None
    rollback: StateRollback | None = None
    eos_ids: tuple[int, ...] = ()
    tokenizer_file: Path | None = None
    notes: tuple[str, ...] = ()
