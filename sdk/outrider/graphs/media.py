"""`encode_media`: media through a body, in groups of the counts that it names, by a runner or directly."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from outrider.errors import ConformanceError, GraphError, Problems
from outrider.interfaces import GraphRunner, MediaBody
from outrider.types import Axis, BodyCalls, RunOutside, run_directly
from outrider.types.counts import counted

__all__ = ["encode_media", "groups_of", "items_in", "media_calls"]


def encode_media(body: MediaBody, inputs: Mapping[str, Tensor], runner: GraphRunner | None = None) -> dict[str, Tensor]:
    """Outputs of ``body`` for all items of ``inputs``, fresh, item after item.

    Items are cut into groups of `MediaBody.counts`, the same with a runner and without one: so what graphs give is to the
    bit what a direct run gives, no row is padding, and many items are no pass of many. A body that names no counts is run
    once, on all of them.

    Raises:
        ConformanceError: the counts of ``body`` do not ascend from 1.
        GraphError: ``body`` names counts, and ``inputs`` have no items, differ in how many, or are others than it declares.
    """
    if not body.counts:
        return {name: tensor.clone() for name, tensor in _run(body, inputs, runner).items()}
    items = items_in(body, inputs)
    _check_items(body, inputs, items)
    parts: dict[str, list[Tensor]] = {slot.name: [] for slot in body.outputs}
    first = 0
    for count in groups_of(items, body.counts):
        group = {
            slot.name: inputs[slot.name].narrow(len(slot.leading), first, count)
            if slot.axis is Axis.REQUESTS
            else inputs[slot.name]
            for slot in body.inputs
        }
        first += count
        for name, tensor in _run(body, group, runner).items():
            parts[name].append(tensor.clone())  # the next group may be given the same memory
    return {
        slot.name: torch.cat(parts[slot.name], dim=len(slot.leading))
        if slot.axis is Axis.REQUESTS and len(parts[slot.name]) > 1
        else parts[slot.name][-1]
        for slot in body.outputs
    }


def groups_of(items: int, counts: Sequence[int]) -> tuple[int, ...]:
    """``items`` as a sum of ``counts``, the largest first: 13 of 1, 2, 4, 8 are 8, 4, 1.

    Raises:
        ConformanceError: ``counts`` do not ascend from 1.
    """
    if list(counts) != sorted({1, *counts}) or counts[0] < 1:
        raise ConformanceError(
            f"a body of media names the counts {list(counts)}; they must ascend from 1, so that any number of items is a sum "
            "of them"
        )
    groups: list[int] = []
    for count in reversed(counts):
        whole, items = divmod(items, count)
        groups += [count] * whole
    return tuple(groups)


def items_in(body: MediaBody, inputs: Mapping[str, Tensor]) -> int:
    """How many items ``inputs`` are, at least one.

    Raises:
        GraphError: no input that was given counts them, or there are none.
    """
    for slot in body.inputs:
        given, axis = inputs.get(slot.name), len(slot.leading)
        if slot.axis is Axis.REQUESTS and given is not None and given.dim() > axis and given.shape[axis]:
            return given.shape[axis]
    named = ", ".join(f"'{slot.name}' ({slot.axis.value})" for slot in body.inputs)
    raise GraphError(
        f"no input of a body of media has items: given are {', '.join(inputs) or 'none'}, declared are {named or 'none'}; "
        f"declare one that counts {Axis.REQUESTS.value}, and give at least one item"
    )


def media_calls(outside: RunOutside = run_directly) -> BodyCalls:
    """What a body of media is given: there is no KV memory to attend to."""
    return BodyCalls(_no_attention, outside)


def _check_items(body: MediaBody, inputs: Mapping[str, Tensor], items: int) -> None:
    """Refuse inputs that cannot be cut into groups; of what is cut away no runner could tell."""
    slots = {slot.name: slot for slot in body.inputs}
    with Problems("media cannot be cut into groups", GraphError) as problems:
        for name in inputs.keys() - slots.keys():
            problems.add(f"'{name}' was given, declared are {', '.join(slots)}; declare it as well")
        for name, slot in slots.items():
            given, axis = inputs.get(name), len(slot.leading)
            if given is None:
                problems.add(f"'{name}' is declared but was not given; given are {', '.join(inputs)}")
            elif slot.axis is Axis.REQUESTS and (given.dim() <= axis or given.shape[axis] != items):
                problems.add(
                    f"'{name}' is {list(given.shape)}, but there are {counted(items, 'item')}; give as many along axis {axis}"
                )


def _run(body: MediaBody, inputs: Mapping[str, Tensor], runner: GraphRunner | None) -> Mapping[str, Tensor]:
    return body(inputs, media_calls()) if runner is None else runner.run_media(body, inputs)


def _no_attention(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:  # noqa: ARG001 - the signature of `Attend`
    rows = counted(q.shape[0], "row")
    raise ConformanceError(
        f"a body of media attends to KV memory in layer {layer} with {rows}; attend among the rows of an item by itself"
    )
