"""Small models to draft with: random ones, and targets that differ in one thing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from attrs import evolve
from torch import Tensor

from outrider.interfaces import LayerStackProvider, Target, TextCodec
from outrider.types import ModelSpec, StackInputs, StackOutput
from tests.adapters.llama.reference import HubModel, load

__all__ = ["CappedStack", "WordCodec", "random_model"]


def random_model(directory: Path, model_type: str = "llama", **settings: object) -> Target:
    """A random model of 97 ids, as it is loaded from ``directory``."""
    return load(HubModel(model_type, **settings).save(directory))


class CappedStack(LayerStackProvider):
    """A model whose logits are capped after its head."""

    def __init__(self, inner: LayerStackProvider, axes: bool = False) -> None:
        self._inner = inner
        self._axes = axes
        self.position_shapes: list[tuple[int, ...]] = []

    @property
    def spec(self) -> ModelSpec:
        spec = self._inner.spec
        return evolve(spec, positions=evolve(spec.positions, axes=3)) if self._axes else spec

    def embed(self, token_ids: Tensor) -> Tensor:
        return self._inner.embed(token_ids)

    def run_layers(self, hidden: Tensor, inputs: StackInputs) -> StackOutput:
        self.position_shapes.append(tuple(inputs.positions.shape))
        if self._axes:
            inputs = evolve(inputs, positions=inputs.positions[0])
        return self._inner.run_layers(hidden, inputs)

    def logits(self, hidden: Tensor) -> Tensor:
        return self._inner.logits(hidden).div(0.5).tanh().mul(0.5)


class WordCodec(TextCodec):
    """One id a character, 97 of them, the ``swapped`` two exchanged; ``prefix`` goes in front of every prompt."""

    def __init__(self, swapped: tuple[int, int] | None = None, prefix: Sequence[int] = ()) -> None:
        self._order = list(range(97))
        self._prefix = list(prefix)
        if swapped is not None:
            first, second = swapped
            self._order[first], self._order[second] = second, first

    def encode(self, text: str) -> list[int]:
        return self._prefix + [
            self._order.index(ord(letter) - 32 if 32 <= ord(letter) < 127 else 95) for letter in text
        ]

    def decode(self, token_ids: Sequence[int]) -> str:
        return "".join(chr(32 + self._order[token]) for token in token_ids if token != 96)

    def render_chat(self, messages: Sequence[Mapping[str, str]]) -> str | None:
        return None
