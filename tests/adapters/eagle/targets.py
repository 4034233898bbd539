"""Targets to bind drafts to: sizes, embedding and head, no layers that run."""

from __future__ import annotations

import torch
from attrs import frozen
from torch import Tensor

from outrider.interfaces import LayerStackProvider, SharedWeights, Target
from outrider.types import AttentionSpec, ModelSpec, StackInputs, StackOutput
from tests.adapters.eagle.checkpoints import HIDDEN, TARGET_LAYERS, VOCAB, random_tensor

CPU = torch.device("cpu")


class EndsOnlyStack(LayerStackProvider):
    """A stack that is asked for its sizes, embeddings and logits only, scaled as its spec says."""

    def __init__(self, spec: ModelSpec, weights: SharedWeights) -> None:
        self._spec, self._weights = spec, weights

    @property
    def spec(self) -> ModelSpec:
        return self._spec

    def embed(self, token_ids: Tensor) -> Tensor:
        return self._weights.embedding.index_select(0, token_ids) * self._spec.embedding_scale

    def run_layers(self, hidden: Tensor, inputs: StackInputs) -> StackOutput:
        raise AssertionError("binding must not run the target's layers")

    def logits(self, hidden: Tensor) -> Tensor:
        return self._spec.logit_scaling.apply(hidden @ self._weights.head.T)


@frozen(eq=False)
class TwoTensors(SharedWeights):
    """The two weights that drafts share."""

    shared_embedding: Tensor
    shared_head: Tensor

    @property
    def embedding(self) -> Tensor:
        return self.shared_embedding

    @property
    def head(self) -> Tensor:
        return self.shared_head


def make_target(
    hidden: int = HIDDEN,
    vocab: int = VOCAB,
    num_layers: int = TARGET_LAYERS,
    dtype: torch.dtype = torch.float32,
    shares: bool = True,
    device: torch.device = CPU,
) -> Target:
    """A target of the given sizes with random embedding and head."""
    attention = AttentionSpec(4, 2, 8, 8**-0.5)
    spec = ModelSpec("sample-target", hidden, vocab, (attention,) * num_layers, 64, dtype, device)
    weights = TwoTensors(
        random_tensor("target embedding", vocab, hidden).to(dtype),
        random_tensor("target head", vocab, hidden).to(dtype),
    )
    return Target(EndsOnlyStack(spec, weights), weights if shares else None)
