"""The same target under other weights: embedding and head stored larger or smaller, and scaled back where they are used."""

from __future__ import annotations

from attrs import evolve, frozen
from torch import Tensor

from outrider.interfaces import LayerStackProvider, SharedWeights, Target
from outrider.types import LogitScaling, ModelSpec, StackInputs, StackOutput

__all__ = ["RescaledStack", "rescaled"]


@frozen(eq=False)
class _Stored(SharedWeights):
    table: Tensor
    matrix: Tensor

    @property
    def embedding(self) -> Tensor:
        return self.table

    @property
    def head(self) -> Tensor:
        return self.matrix


class RescaledStack(LayerStackProvider):
    """``inner`` with the stored ends ``weights``, which it scales as its spec says; ``declares`` false keeps that to itself."""

    def __init__(self, inner: LayerStackProvider, weights: SharedWeights, spec: ModelSpec, declares: bool) -> None:
        self._inner, self._weights, self._scales = inner, weights, spec
        self._declared = spec if declares else inner.spec

    @property
    def spec(self) -> ModelSpec:
        return self._declared

    def embed(self, token_ids: Tensor) -> Tensor:
        return self._weights.embedding.index_select(0, token_ids) * self._scales.embedding_scale

    def run_layers(self, hidden: Tensor, inputs: StackInputs) -> StackOutput:
        return self._inner.run_layers(hidden, inputs)

    def logits(self, hidden: Tensor) -> Tensor:
        return self._scales.logit_scaling.apply(hidden @ self._weights.head.T)


def rescaled(target: Target, embedding_scale: float, scaling: LogitScaling, declares: bool = True) -> Target:
    """``target`` re-expressed: the same embeddings, and the same logits but for a cap. Powers of two change no bit."""
    assert target.weights is not None
    weights = _Stored(target.weights.embedding / embedding_scale, target.weights.head / scaling.scale)
    spec = evolve(target.stack.spec, embedding_scale=embedding_scale, logit_scaling=scaling)
    return evolve(target, stack=RescaledStack(target.stack, weights, spec, declares), weights=weights)
