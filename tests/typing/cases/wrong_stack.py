"""Stacks that do not fit `LayerStackProvider`. Each marked line must be rejected, with the code it states."""

from __future__ import annotations

import torch
from torch import Tensor

from outrider.interfaces import LayerStackProvider, Target
from outrider.types import ModelSpec, StackInputs, StackOutput


class _Base:
    @property
    def spec(self) -> ModelSpec:
        return ModelSpec("wrong", 8, 16, (), 32, torch.float32, torch.device("cpu"))

    def embed(self, token_ids: Tensor) -> Tensor:
        return token_ids

    def logits(self, hidden: Tensor) -> Tensor:
        return hidden


class NoRunLayers(_Base):
    """``run_layers`` is missing."""


class ReturnsTensor(_Base):
    def run_layers(self, hidden: Tensor, inputs: StackInputs) -> Tensor:
        return hidden


class TakesIds(_Base):
    def run_layers(self, hidden: list[int], inputs: StackInputs) -> StackOutput:
        return StackOutput(torch.tensor(hidden))


class NeedsMore(_Base):
    def run_layers(self, hidden: Tensor, inputs: StackInputs, page_table: Tensor) -> StackOutput:
        return StackOutput(hidden + page_table)


class OptionalLogits(_Base):
    def run_layers(self, hidden: Tensor, inputs: StackInputs) -> StackOutput:
        return StackOutput(hidden)

    def logits(self, hidden: Tensor) -> Tensor | None:  # error: [override]
        return None


class SpecIsAMethod:
    def spec(self) -> ModelSpec:
        return _Base().spec

    def embed(self, token_ids: Tensor) -> Tensor:
        return token_ids

    def run_layers(self, hidden: Tensor, inputs: StackInputs) -> StackOutput:
        return StackOutput(hidden)

    def logits(self, hidden: Tensor) -> Tensor:
        return hidden


class InheritsWithoutLogits(LayerStackProvider):
    @property
    def spec(self) -> ModelSpec:
        return _Base().spec

    def embed(self, token_ids: Tensor) -> Tensor:
        return token_ids

    def run_layers(self, hidden: Tensor, inputs: StackInputs) -> StackOutput:
        return StackOutput(hidden)


class InheritsWrongly(LayerStackProvider):
    @property
    def spec(self) -> ModelSpec:
        return _Base().spec

    def embed(self, token_ids: list[int]) -> Tensor:  # error: [override]
        return torch.tensor(token_ids)

    def run_layers(self, hidden: Tensor, inputs: StackInputs) -> Tensor:  # error: [override]
        return hidden

    def logits(self, hidden: Tensor) -> Tensor:
        return hidden


no_run_layers: LayerStackProvider = NoRunLayers()  # error: [assignment]
returns_tensor: LayerStackProvider = ReturnsTensor()  # error: [assignment]
takes_ids: LayerStackProvider = TakesIds()  # error: [assignment]
needs_more: LayerStackProvider = NeedsMore()  # error: [assignment]
spec_is_a_method: LayerStackProvider = SpecIsAMethod()  # error: [assignment]
inherits: LayerStackProvider = InheritsWithoutLogits()  # error: [abstract]
as_target = Target(stack=NoRunLayers())  # error: [arg-type]
