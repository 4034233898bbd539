"""`Target`: a loaded model with the optional powers it has, each a typed field instead of a probe."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from attrs import frozen
from torch import Tensor

from outrider.interfaces.layer_stack import LayerStackProvider, SharedWeights
from outrider.interfaces.text import TextCodec

__all__ = ["MultimodalProvider", "PreparedPrompt", "StateRollback", "Target"]


@frozen(eq=False)
class PreparedPrompt:
    """A prompt with its media placed.

    ``embeds``: ``[P, H]`` the target's merged embeddings. ``positions``: ``[P]`` or ``[3, P]`` int64 rope positions.
    ``position_offset``: what is added to a sequence index to give the rope position of tokens after the prompt.
    """

    token_ids: tuple[int, ...]
    embeds: Tensor
    positions: Tensor
    position_offset: int


class MultimodalProvider(Protocol):
    """Places media among token embeddings, once per request."""

    @abstractmethod
    def prepare(self, text: str | Sequence[int], media: Sequence[bytes]) -> PreparedPrompt:
        """Embeddings and positions of a prompt with ``media`` (encoded image files) at its placeholders.

        Raises:
            InputError: the media cannot be read, or their number differs from the placeholders'.
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
