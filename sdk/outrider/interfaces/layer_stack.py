"""`LayerStackProvider`: a model as the loop sees it."""

from __future__ import annotations

from abc import abstractmethod
from typing import Protocol

from torch import Tensor

from outrider.types import ModelSpec, StackInputs, StackOutput

__all__ = ["LayerStackProvider", "SharedWeights"]


class LayerStackProvider(Protocol):
    """A transformer cut at the seams that speculative decoding needs: embed, run the layers, read logits.

    ``run_layers`` takes *embedded* input and has no head. So a captured graph can never re-embed token ids and lose
    an image, and no captured shape depends on the number of requests.
    """

    @property
    @abstractmethod
    def spec(self) -> ModelSpec:
        """Sizes, per-layer attention, positions, dtype and device; constant."""
        ...

    @abstractmethod
    def embed(self, token_ids: Tensor) -> Tensor:
        """Embeddings ``[T, H]`` in `ModelSpec.dtype` of ``token_ids [T]`` int64, `ModelSpec.embedding_scale` applied."""
        ...

    @abstractmethod
    def run_layers(self, hidden: Tensor, inputs: StackInputs) -> StackOutput:
        """Final-norm hidden state ``[T, H]`` and the taps asked, for embedded input ``hidden [T, H]``.

        Calls ``inputs.attend`` exactly once for each layer, in order. Knows nothing of caches, masks, pages, batches or
        graphs; never synchronises; never changes ``hidden`` in place. Tap tensors may be views that the caller must use
        before the next call.
        """
        ...

    @abstractmethod
    def logits(self, hidden: Tensor) -> Tensor:
        """Logits ``[R, V]`` of final-norm rows ``hidden [R, H]``, `ModelSpec.logit_scaling` applied."""
        ...


class SharedWeights(Protocol):
    """The target's embedding and head as tensors, for drafts that share or slice them.

    What the stack does to their rows and products besides is data in `ModelSpec`.
    """

    @property
    @abstractmethod
    def embedding(self) -> Tensor:
        """``[V, H]``, the very storage the target uses."""
        ...

    @property
    @abstractmethod
    def head(self) -> Tensor:
        """``[V, H]``, the very storage the target uses (the embedding's where they are tied)."""
        ...
