"""Drafts that break their contract in one way each, by the check that must notice."""

from __future__ import annotations

from collections.abc import Callable

import torch
from attrs import evolve
from torch import Tensor

from outrider.interfaces import BoundDraft, Target
from outrider.types import (
    DraftOutput,
    DraftSpec,
    DraftVocab,
    HiddenTap,
    MediaView,
    RecurrentState,
    RopeSpec,
    RowAlignment,
    StackInputs,
    WeightSource,
)
from tests.support.toy_drafts import SelfDraft, ToyDraft
from tests.support.toy_target import ToyStack, toy_target

__all__ = ["BROKEN_DRAFTS", "STACK", "TARGET"]

STACK = ToyStack(seed=1)
TARGET = Target(STACK, STACK.weights)
TAPS = (HiddenTap.at(0), HiddenTap.final_norm())
IDS = (40, 3, 17, 21, 5, 9)


class Declares(ToyDraft):
    """Says something else of itself than it is."""

    change: Callable[[DraftSpec], DraftSpec]

    @property
    def spec(self) -> DraftSpec:
        return self.change(super().spec)


class PlaceInBatch(ToyDraft):
    def embed(self, token_ids: Tensor) -> Tensor:
        return super().embed(token_ids) + torch.arange(len(token_ids))[:, None]


class NoStateOnExtend(ToyDraft):
    def extend(self, embeds: Tensor, features: Tensor | None, inputs: StackInputs) -> DraftOutput:
        return DraftOutput(super().extend(embeds, features, inputs).hidden, None)


class NarrowState(ToyDraft):
    def step(self, embeds: Tensor, state: Tensor | None, inputs: StackInputs) -> DraftOutput:
        output = super().step(embeds, state, inputs)
        return DraftOutput(output.hidden, None if output.state is None else output.state[:, :-1])


class TargetWideLogits(ToyDraft):
    def logits(self, hidden: Tensor) -> Tensor:
        return self.spec.vocab.scatter(super().logits(hidden), float("-inf"))


class SkipsAttention(ToyDraft):
    def step(self, embeds: Tensor, state: Tensor | None, inputs: StackInputs) -> DraftOutput:
        rows = embeds if state is None else embeds + state @ self.carry.T
        return DraftOutput(rows, None if state is None else rows @ self.widen.T)


class InPlace(ToyDraft):
    def extend(self, embeds: Tensor, features: Tensor | None, inputs: StackInputs) -> DraftOutput:
        output = super().extend(embeds, features, inputs)
        if features is not None:
            features.zero_()
        return output


class IgnoresTokens(ToyDraft):
    def step(self, embeds: Tensor, state: Tensor | None, inputs: StackInputs) -> DraftOutput:
        return super().step(torch.ones_like(embeds), state, inputs)


class FirstTapOnly(ToyDraft):
    """Reads the first tap and leaves the rest: a wrong acceptance length, and no error."""

    def extend(self, embeds: Tensor, features: Tensor | None, inputs: StackInputs) -> DraftOutput:
        assert features is not None, "it asks for taps"
        return super().extend(embeds, features * (torch.arange(features.shape[1]) < 16), inputs)


class IgnoresState(ToyDraft):
    def step(self, embeds: Tensor, state: Tensor | None, inputs: StackInputs) -> DraftOutput:
        return super().step(embeds, None, inputs)


class CountsRows(ToyDraft):
    def extend(self, embeds: Tensor, features: Tensor | None, inputs: StackInputs) -> DraftOutput:
        return super().extend(embeds, features, evolve(inputs, positions=torch.arange(len(embeds))))


class SeesNeighbours(ToyDraft):
    def extend(self, embeds: Tensor, features: Tensor | None, inputs: StackInputs) -> DraftOutput:
        return super().extend(embeds + 0.1 * embeds.mean(dim=0), features, inputs)


class OrderForPosition(ToyDraft):
    def step(self, embeds: Tensor, state: Tensor | None, inputs: StackInputs) -> DraftOutput:
        return super().step(embeds, state, evolve(inputs, positions=inputs.positions + torch.arange(len(embeds))))


class ReadsBack(ToyDraft):
    def step(self, embeds: Tensor, state: Tensor | None, inputs: StackInputs) -> DraftOutput:
        if bool(inputs.positions.max() < 0):
            raise ValueError("no such position")
        return super().step(embeds, state, inputs)


class Sharing(SelfDraft):
    """Shares with the target, or says so."""

    def embed(self, token_ids: Tensor) -> Tensor:
        return self.copied.index_select(0, token_ids)

    @property
    def copied(self) -> Tensor:
        return COPIED


class CopiedHead(SelfDraft):
    def logits(self, hidden: Tensor) -> Tensor:
        return hidden @ COPIED_HEAD.T


class LouderEmbedding(SelfDraft):
    """Scales the target's rows, which the target takes as they are."""

    def embed(self, token_ids: Tensor) -> Tensor:
        return super().embed(token_ids) * 4.0


class CappedHead(SelfDraft):
    """Caps logits of the target's head, which the target does not."""

    def logits(self, hidden: Tensor) -> Tensor:
        return super().logits(hidden).div(2.0).tanh() * 2.0


class SlicedInOrder(SelfDraft):
    """Slices the head by sorted ids, while its map keeps an order of its own."""

    def logits(self, hidden: Tensor) -> Tensor:
        return hidden @ STACK.weights.head[sorted(IDS)].T


COPIED = STACK.weights.embedding.clone()
COPIED_HEAD = STACK.weights.head.clone()


def made(kind: type[ToyDraft]) -> Callable[[], BoundDraft]:
    return lambda: kind(TARGET, taps=TAPS, recurrent=True, ids=IDS)


def declared(change: Callable[[DraftSpec], DraftSpec], kind: type[Declares] = Declares) -> Callable[[], BoundDraft]:
    def make() -> BoundDraft:
        draft = kind(TARGET, taps=TAPS, recurrent=True, ids=IDS)
        draft.change = change
        return draft

    return make


def with_ids(*ids: int, size: int = len(IDS)) -> Callable[[DraftSpec], DraftSpec]:
    return lambda spec: evolve(spec, vocab=DraftVocab(size, 48, torch.tensor(ids)))


BROKEN_DRAFTS: dict[str, tuple[Callable[[], BoundDraft], str, str]] = {
    "a tap the target lacks": (
        declared(lambda spec: evolve(spec, taps=(HiddenTap.at(0), HiddenTap.at(3)))),
        "spec",
        "asks for boundary 3; 'toy' has boundaries 0 to 2",
    ),
    "trained for another width": (
        declared(lambda spec: evolve(spec, embedding=WeightSource.TARGET, target_hidden_size=32, taps=())),
        "spec",
        "target_hidden_size is 32, 'toy' is 16 wide",
    ),
    "bound to another target of the same sizes": (
        lambda: ToyDraft(toy_target(seed=1)),
        "spec",
        "it was bound to 'toy' (48 ids, hidden size 16, 2 layers), and this target is 'toy' (48 ids",
    ),
    "features for rows of tokens alone": (
        declared(lambda spec: evolve(spec, alignment=RowAlignment.SAME)),
        "spec",
        "declare RowAlignment.SHIFTED, or no taps",
    ),
    "images wider than it reads": (
        declared(lambda spec: evolve(spec, media=MediaView.TARGET_EMBEDDING)),
        "spec",
        "which is 16 wide, but its own embeddings are 12 wide",
    ),
    "sections of a rope without axes": (
        declared(lambda spec: evolve(spec, rope=RopeSpec("default", 10000.0, 6, sections=(1, 1, 1)))),
        "spec",
        "spec.position_axes is 1; declare 3",
    ),
    "a state of no width": (
        declared(lambda spec: evolve(spec, state=RecurrentState(0, torch.float32))),
        "spec",
        "state.width is 0",
    ),
    "an id twice": (declared(with_ids(40, 3, 17, 3, 5, 9)), "vocabulary", "1 of vocab.target_ids repeat"),
    "ids out of range": (
        declared(with_ids(40, 3, 48, 21, -5, 9)),
        "vocabulary",
        "2 of vocab.target_ids are outside 0..47",
    ),
    "too few ids": (declared(with_ids(40, 3, 17)), "vocabulary", "has 3 ids, vocab.size is 6"),
    "another vocabulary": (
        declared(lambda spec: evolve(spec, vocab=DraftVocab(6, 50, torch.tensor(IDS)))),
        "spec",
        "target_size is 50, 'toy' has 48 ids",
    ),
    "a reduced vocabulary without a map": (
        declared(lambda spec: evolve(spec, vocab=DraftVocab(6, 48))),
        "vocabulary",
        "6 of 48 and vocab.target_ids is None",
    ),
    "embeddings with places": (made(PlaceInBatch), "embed", "at another place in the batch"),
    "no state from verified rows": (made(NoStateOnExtend), "extend", "extend gives no state, spec.state has one"),
    "a state that is not declared": (
        declared(lambda spec: evolve(spec, state=None)),
        "extend",
        "extend gives a state, spec.state is None",
    ),
    "a narrow state": (made(NarrowState), "step", "step's state gives [3, 14]"),
    "logits over the target's vocabulary": (
        made(TargetWideLogits),
        "logits",
        "[18, 48] torch.float32, expected [18, 6]",
    ),
    "a step without attention": (
        made(SkipsAttention),
        "attend calls",
        "step called attend for layers [], expected [0]",
    ),
    "features changed in place": (made(InPlace), "input unchanged", "extend changes `features` in place"),
    "tokens ignored": (made(IgnoresTokens), "embeddings used", "step gives the same for other embeddings"),
    "all taps but the first ignored": (made(FirstTapOnly), "features used", "other features of tap 1 (final_norm)"),
    "state ignored": (made(IgnoresState), "state used", "the same for another state"),
    "rows counted for positions": (made(CountsRows), "chunked extend", "in pieces and at once"),
    "a mean over the batch": (made(SeesNeighbours), "batch independence", "alone and in a batch"),
    "order of rows for positions": (made(OrderForPosition), "tree steps", "siblings share positions"),
    "a value read back": (made(ReadsBack), "device only", "makes the host wait"),
    "a copied embedding": (lambda: Sharing(TARGET, STACK), "shared weights", "embed does not follow a change"),
    "an embedding scaled otherwise": (
        lambda: LouderEmbedding(TARGET, STACK),
        "shared weights",
        "multiply rows by the target's embedding_scale, 1.0",
    ),
    "a head capped otherwise": (
        lambda: CappedHead(TARGET, STACK),
        "shared weights",
        "apply the target's LogitScaling(scale=1.0, cap=None)",
    ),
    "a copied head": (lambda: CopiedHead(TARGET, STACK), "shared weights", "logits do not follow a change"),
    "a head sliced in another order": (
        lambda: SlicedInOrder(TARGET, STACK, IDS),
        "shared weights",
        "order of vocab.target_ids",
    ),
}
