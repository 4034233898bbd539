"""Targets that fail on cue."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from outrider.interfaces import Target
from outrider.types import StackInputs, StackOutput
from tests.support.toy_target import ToyStack

__all__ = ["PoisonedStack", "RaisingStack", "poisoned_target"]


class PoisonedStack(ToyStack):
    """Turns to NaN from its first layer on in rows of one token: keys, values, features and logits after it."""

    poison = 46

    def embed(self, token_ids: Tensor) -> Tensor:
        return super().embed(token_ids).masked_fill((token_ids == self.poison)[:, None], float("nan"))


def poisoned_target(token: int, seed: int = 0) -> Target:
    """A target that is NaN from ``token`` on."""
    stack = PoisonedStack(seed=seed)
    stack.poison = token
    return Target(stack, stack.weights)


class RaisingStack(ToyStack):
    """Raises what ``fail`` says, in the pass for which it says so (by number of rows)."""

    def __init__(self, seed: int = 0, null_first: bool = False) -> None:
        super().__init__(seed=seed, null_first=null_first)
        self.fail: Callable[[int], BaseException | None] = lambda rows: None

    def run_layers(self, hidden: Tensor, inputs: StackInputs) -> StackOutput:
        error = self.fail(hidden.shape[0])
        if error is not None:
            raise error
        return super().run_layers(hidden, inputs)


def out_of_memory() -> BaseException:
    """What a device raises."""
    return torch.OutOfMemoryError("no memory left on the device")
