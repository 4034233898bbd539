"""`Target`: a loaded model with the optional powers it has, each a typed field instead of a probe."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from attrs import frozen
from torch import Tensor

from outrider.interfaces.layer_stack import LayerStackProvider, SharedWeights
from outrider.interfaces.text import TextCodec

__all__ = ["ChatMessage", "MultimodalProvider", "PreparedPrompt", "StateRollback", "Target"]

ChatMessage = Mapping[str, str | Sequence[Mapping[str, str]]]
"""``role`` and ``content``: a text, or parts in order: ``{"type": "image"}`` and ``{"type": "text", "text": "…"}``."""


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

    @abstractmethod
    def prepare(
        self, text: str | Sequence[int], media: Sequence[bytes], max_tokens: int | None = None
    ) -> PreparedPrompt:
        """Embeddings and positions of a prompt with ``media`` (encoded image files) at its placeholders, in their order.

        ``text``, or token ids, hold one placeholder for each medium, or one for each of its tokens. ``max_tokens``: the
        most tokens the prompt may have with its media placed; a longer one is refused before anything is encoded. Each
        call encodes anew. Allocates its results on the target's device; may synchronise.

        Raises:
            InputError: the media cannot be read, or their number differs from the placeholders'.
            ContextLengthError: more than ``max_tokens``.
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
        """The prompt text of a conversation, with a placeholder for each image; ``None`` when the model has no template.

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
