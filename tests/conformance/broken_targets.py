"""Targets that break their contract in one way each, by the check that must notice."""

from __future__ import annotations

from collections.abc import Callable

import torch
from attrs import evolve
from torch import Tensor

from outrider.interfaces import Target
from outrider.types import HiddenTap, LogitScaling, ModelSpec, StackInputs, StackOutput
from tests.support.toy_target import ToyStack, ToyWeights, rms_norm

__all__ = ["BROKEN_TARGETS"]


class OddHeads(ToyStack):
    @property
    def spec(self) -> ModelSpec:
        spec = super().spec
        return evolve(spec, layers=tuple(evolve(layer, scale=0.0) for layer in spec.layers))


class OtherDtype(ToyStack):
    def embed(self, token_ids: Tensor) -> Tensor:
        return super().embed(token_ids).double()


class PlaceInBatch(ToyStack):
    def embed(self, token_ids: Tensor) -> Tensor:
        return super().embed(token_ids) + torch.arange(len(token_ids))[:, None]


class NarrowLogits(ToyStack):
    def logits(self, hidden: Tensor) -> Tensor:
        return super().logits(hidden)[:, :-1]


class NormedAcrossRows(ToyStack):
    def logits(self, hidden: Tensor) -> Tensor:
        return super().logits(hidden / hidden.std())


class AttendTwice(ToyStack):
    def run_layers(self, hidden: Tensor, inputs: StackInputs) -> StackOutput:
        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            inputs.attend(layer, q, k, v)
            return inputs.attend(layer, q, k, v)

        return super().run_layers(hidden, evolve(inputs, attend=attend))


class WrongHeads(ToyStack):
    """Attends with keys repeated for every query head: right numbers, another shape than its spec says."""

    def run_layers(self, hidden: Tensor, inputs: StackInputs) -> StackOutput:
        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return inputs.attend(layer, q, k.repeat_interleave(2, dim=1), v.repeat_interleave(2, dim=1))

        return super().run_layers(hidden, evolve(inputs, attend=attend))


class InPlace(ToyStack):
    def run_layers(self, hidden: Tensor, inputs: StackInputs) -> StackOutput:
        output = super().run_layers(hidden, inputs)
        hidden.mul_(0.5)
        return output


class TapsInLayerOrder(ToyStack):
    def run_layers(self, hidden: Tensor, inputs: StackInputs) -> StackOutput:
        ordered = sorted(inputs.taps, key=lambda tap: 99 if tap.boundary is None else tap.boundary)
        return super().run_layers(hidden, evolve(inputs, taps=tuple(ordered)))


class EachTapOnce(ToyStack):
    def run_layers(self, hidden: Tensor, inputs: StackInputs) -> StackOutput:
        return super().run_layers(hidden, evolve(inputs, taps=tuple(dict.fromkeys(inputs.taps))))


class FinalNormMissing(ToyStack):
    """Hands out boundary N where the tap after the final norm is asked."""

    def run_layers(self, hidden: Tensor, inputs: StackInputs) -> StackOutput:
        last = HiddenTap(self.sizes.layers)
        taps = tuple(last if tap.boundary is None else tap for tap in inputs.taps)
        return super().run_layers(hidden, evolve(inputs, taps=taps))


class LayerOutputs(ToyStack):
    """Counts layer outputs where boundaries are asked, but for the first and the last."""

    def run_layers(self, hidden: Tensor, inputs: StackInputs) -> StackOutput:
        def shifted(tap: HiddenTap) -> HiddenTap:
            inner = tap.boundary is not None and 0 < tap.boundary < self.sizes.layers
            return HiddenTap(tap.boundary + 1) if inner and tap.boundary is not None else tap

        return super().run_layers(hidden, evolve(inputs, taps=tuple(map(shifted, inputs.taps))))


class NormedFirst(ToyStack):
    """Hands out boundary 0 as the first layer reads it, after its norm."""

    def run_layers(self, hidden: Tensor, inputs: StackInputs) -> StackOutput:
        output = super().run_layers(hidden, inputs)
        taps = zip(inputs.taps, output.taps, strict=True)
        return StackOutput(output.hidden, tuple(rms_norm(row) if tap.boundary == 0 else row for tap, row in taps))


class CountsRows(ToyStack):
    """Its positions are the places of rows, whatever it is told: right for one whole prompt only."""

    def run_layers(self, hidden: Tensor, inputs: StackInputs) -> StackOutput:
        return super().run_layers(hidden, evolve(inputs, positions=torch.arange(len(hidden))))


class Remembers(ToyStack):
    """Counts positions on from the last call, so a tree of siblings is a chain to it."""

    _next = 0

    def run_layers(self, hidden: Tensor, inputs: StackInputs) -> StackOutput:
        positions = inputs.positions
        siblings = bool((positions.diff() < 1).any()) and bool((positions > 0).all())
        if siblings:
            inputs = evolve(inputs, positions=positions[0] + torch.arange(len(positions)))
        return super().run_layers(hidden, inputs)


class SeesNeighbours(ToyStack):
    def run_layers(self, hidden: Tensor, inputs: StackInputs) -> StackOutput:
        return super().run_layers(hidden + 0.1 * hidden.mean(dim=0), inputs)


class PlacedByRow(ToyStack):
    """Adds an embedding of places, by the order of rows instead of the positions."""

    def run_layers(self, hidden: Tensor, inputs: StackInputs) -> StackOutput:
        return super().run_layers(hidden + torch.arange(len(hidden))[:, None], inputs)


class NoCap(ToyStack):
    @property
    def spec(self) -> ModelSpec:
        return evolve(super().spec, logit_scaling=LogitScaling(cap=0.0))


class ReadsBack(ToyStack):
    def run_layers(self, hidden: Tensor, inputs: StackInputs) -> StackOutput:
        if int(inputs.positions.max()) > self.sizes.max_positions:
            raise ValueError("too long")
        return super().run_layers(hidden, inputs)


class ScaledLogits(ToyStack):
    def logits(self, hidden: Tensor) -> Tensor:
        return super().logits(hidden) / 8.0


class CappedLogits(ToyStack):
    def logits(self, hidden: Tensor) -> Tensor:
        return 30.0 * torch.tanh(super().logits(hidden) / 30.0)


class BiasedLogits(ToyStack):
    def logits(self, hidden: Tensor) -> Tensor:
        return super().logits(hidden) + torch.arange(self.sizes.vocab)


class ScaledEmbedding(ToyStack):
    def embed(self, token_ids: Tensor) -> Tensor:
        return super().embed(token_ids) * 4.0


class Raises(ToyStack):
    def logits(self, hidden: Tensor) -> Tensor:
        raise NotImplementedError("the head is not loaded")


def sharing(change: Callable[[ToyWeights], ToyWeights]) -> Target:
    stack = ToyStack(seed=1)
    return Target(stack, change(stack.weights))


def with_eos(*eos_ids: int) -> Target:
    stack = ToyStack(seed=1)
    return Target(stack, stack.weights, eos_ids=eos_ids)


def target(stack: ToyStack) -> Target:
    return Target(stack, stack.weights)


BROKEN_TARGETS: dict[str, tuple[Callable[[], Target], str, str]] = {
    "a scale of zero": (lambda: target(OddHeads(seed=1)), "spec", "layers[0].scale is 0.0"),
    "an end id past the vocabulary": (lambda: with_eos(48), "spec", "eos_ids [48] are outside the vocabulary 0..47"),
    "another dtype than the spec's": (lambda: target(OtherDtype(seed=1)), "embed", "torch.float64"),
    "embeddings with places": (lambda: target(PlaceInBatch(seed=1)), "embed", "at another place in the batch"),
    "too few logits": (
        lambda: target(NarrowLogits(seed=1)),
        "logits",
        "logits are [21, 47] torch.float32, expected [21, 48]",
    ),
    "logits normed across rows": (lambda: target(NormedAcrossRows(seed=1)), "logits", "look at no other row"),
    "attention twice a layer": (lambda: target(AttendTwice(seed=1)), "attend calls", "[0, 0, 1, 1], expected [0, 1]"),
    "repeated keys": (
        lambda: target(WrongHeads(seed=1)),
        "attend calls",
        "k [21, 2, 8] torch.float32, its spec says [21, 1, 8]",
    ),
    "input changed in place": (lambda: target(InPlace(seed=1)), "input unchanged", "`hidden` in place"),
    "taps in another order": (lambda: target(TapsInLayerOrder(seed=1)), "taps", "in the order asked"),
    "repeated taps dropped": (lambda: target(EachTapOnce(seed=1)), "taps", "6 taps were asked"),
    "no tap after the norm": (lambda: target(FinalNormMissing(seed=1)), "taps", "after the final norm"),
    "layer outputs for boundaries": (
        lambda: target(LayerOutputs(seed=1)),
        "tap boundaries",
        "1 depends on the attention of layer 1",
    ),
    "boundary 0 after the norm": (lambda: target(NormedFirst(seed=1)), "tap boundaries", "as after a norm"),
    "boundary 0 of a batch": (lambda: target(SeesNeighbours(seed=1)), "tap boundaries", "boundary 0 of a row alone"),
    "boundary 0 by the order of rows": (
        lambda: target(PlacedByRow(seed=1)),
        "tap boundaries",
        "no attention, no other row",
    ),
    "a cap of 0": (lambda: target(NoCap(seed=1)), "spec", "spec.logit_scaling.cap is 0.0"),
    "a scale that is not declared": (
        lambda: target(ScaledLogits(seed=1)),
        "shared weights",
        "declare in ModelSpec the scale and soft cap",
    ),
    "a cap that is not declared": (lambda: target(CappedLogits(seed=1)), "shared weights", "(scale 1.0, cap None"),
    "a bias of the head": (lambda: target(BiasedLogits(seed=1)), "shared weights", "are not hidden @ head.T"),
    "an embedding scale that is not declared": (
        lambda: target(ScaledEmbedding(seed=1)),
        "shared weights",
        "times embedding_scale 1.0 (off by 300%",
    ),
    "rows counted for positions": (lambda: target(CountsRows(seed=1)), "cached decode", "use the positions given"),
    "chunks at position 0": (lambda: target(CountsRows(seed=1)), "chunked prefill", "chunks of 1 and whole"),
    "a tree taken for a chain": (lambda: target(Remembers(seed=1)), "tree verification", "siblings share positions"),
    "a mean over the batch": (lambda: target(SeesNeighbours(seed=1)), "batch independence", "alone"),
    "a value read back": (lambda: target(ReadsBack(seed=1)), "device only", "makes the host wait"),
    "an exception": (lambda: target(Raises(seed=1)), "logits", "raised NotImplementedError: the head is not loaded"),
    "a copied head": (
        lambda: sharing(lambda own: ToyWeights(own.embedding, own.head.clone())),
        "shared weights",
        "the shared head is a copy",
    ),
    "a copied embedding": (
        lambda: sharing(lambda own: ToyWeights(own.embedding.clone(), own.head)),
        "shared weights",
        "the shared embedding is a copy",
    ),
    "another head": (
        lambda: sharing(lambda own: ToyWeights(own.embedding, rms_norm(own.head.flip(0)))),
        "shared weights",
        "not hidden @ head.T",
    ),
    "a head the wrong way round": (
        lambda: sharing(lambda own: ToyWeights(own.embedding, own.head.T)),
        "shared weights",
        "the shared head is [16, 48]",
    ),
}
