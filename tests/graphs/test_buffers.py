"""Buffers hold the rows of this call and padding, nothing else; what does not fit is refused with both sides named."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from outrider.conformance import forbid_host_reads
from outrider.errors import GraphError
from outrider.graphs import BufferSet, rows_of, shape_of
from outrider.types import Axis, BufferSlot, PhaseShape, RequestCount, TokenCount

CPU = torch.device("cpu")
SLOTS = (
    BufferSlot("hidden", Axis.TOKENS, (3,), torch.float32),
    BufferSlot("positions", Axis.TOKENS, (), torch.int64, padding=7, leading=(3,)),
    BufferSlot("lengths", Axis.REQUESTS, (), torch.int64, padding=1),
    BufferSlot("mask", Axis.REQUESTS, (2, 2), torch.bool, padding=True),
    BufferSlot("table", Axis.NONE, (5,), torch.float64),
)
CAPACITY = PhaseShape(TokenCount(8), RequestCount(4))


def call(tokens: int, requests: int) -> PhaseShape:
    return PhaseShape(TokenCount(tokens), RequestCount(requests))


def values(slot: BufferSlot, shape: PhaseShape) -> Tensor:
    size = shape_of(slot, shape)
    return (
        torch.randn(size, dtype=slot.dtype)
        if slot.dtype.is_floating_point
        else torch.randint(0, 2, size).to(slot.dtype)
    )


def inputs_for(shape: PhaseShape) -> dict[str, Tensor]:
    return {slot.name: values(slot, shape) for slot in SLOTS}


def padding_of(slot: BufferSlot, tensor: Tensor, shape: PhaseShape) -> Tensor:
    count = {Axis.TOKENS: shape.tokens, Axis.REQUESTS: shape.requests, Axis.NONE: 5}[slot.axis]
    axis = len(slot.leading)
    return tensor.narrow(axis, count, tensor.shape[axis] - count)


@given(calls=st.lists(st.tuples(st.integers(0, 8), st.integers(1, 4)), min_size=1, max_size=5))
def test_real_rows_then_padding_whatever_came_before(calls: list[tuple[int, int]]) -> None:
    buffers = BufferSet(SLOTS, CAPACITY, CPU)
    addresses = {name: tensor.data_ptr() for name, tensor in buffers.tensors.items()}
    for tokens, requests in calls:
        shape = call(tokens, requests)
        inputs = inputs_for(shape)
        buffers.fill(inputs, shape)
        for slot in SLOTS:
            assert torch.equal(buffers.view(slot.name, shape), inputs[slot.name])
            rest = padding_of(slot, buffers.tensors[slot.name], shape)
            assert torch.equal(rest, torch.full_like(rest, slot.padding))
    assert addresses == {name: tensor.data_ptr() for name, tensor in buffers.tensors.items()}


def test_tokens_and_requests_are_counted_apart() -> None:
    buffers = BufferSet(SLOTS, CAPACITY, CPU)
    shape = call(6, 2)
    assert buffers.view("hidden", shape).shape == (6, 3)
    assert buffers.view("lengths", shape).shape == (2,)
    assert buffers.view("positions", shape).shape == (3, 6)
    assert buffers.view("table", shape).shape == (5,)


def test_fresh_buffers_hold_padding() -> None:
    buffers = BufferSet(SLOTS, CAPACITY, CPU)
    for slot in SLOTS:
        assert torch.equal(buffers.tensors[slot.name], torch.full_like(buffers.tensors[slot.name], slot.padding))


def test_poisoned_padding_is_nothing_a_row_may_hold() -> None:
    buffers = BufferSet(SLOTS, CAPACITY, CPU, poison=True)
    shape = call(3, 1)
    inputs = inputs_for(shape)
    buffers.fill(inputs, shape)
    assert torch.equal(buffers.view("hidden", shape), inputs["hidden"])
    assert buffers.tensors["hidden"][3:].isnan().all()
    assert (buffers.tensors["positions"][:, 3:] > 1 << 60).all()
    assert (buffers.tensors["lengths"][1:] > 1 << 60).all()


def test_varied_contents_are_never_padding() -> None:
    buffers = BufferSet(SLOTS, CAPACITY, CPU)
    before = {name: tensor.clone() for name, tensor in buffers.tensors.items()}
    buffers.vary()
    assert all((before[name] != tensor).all() for name, tensor in buffers.tensors.items())


def test_an_output_of_the_call_before_may_be_the_input_of_this_one() -> None:
    slot = BufferSlot("state", Axis.TOKENS, (2,), torch.float32)
    buffers = BufferSet([slot], CAPACITY, CPU)
    state = torch.randn(4, 2)
    buffers.fill({"state": state}, call(4, 1))
    buffers.fill({"state": buffers.view("state", call(4, 1))}, call(4, 1))
    assert torch.equal(rows_of(slot, buffers.tensors["state"], call(4, 1)), state)


def test_filling_asks_the_host_for_nothing() -> None:
    buffers = BufferSet(SLOTS, CAPACITY, CPU)
    inputs = inputs_for(call(5, 3))
    with forbid_host_reads():
        buffers.fill(inputs, call(5, 3))


@pytest.mark.parametrize(
    ("changes", "shape", "says"),
    [
        ({"hidden": None}, call(2, 1), "'hidden' is declared but was not given; given are positions"),
        ({"extra": torch.zeros(2)}, call(2, 1), "'extra' was given, declared are hidden, positions"),
        (
            {"hidden": torch.zeros(3, 3)},
            call(2, 1),
            r"'hidden' is \[3, 3\] torch.float32, declared is \[2, 3\] torch.float32 for 2 tokens of 1 request \(tokens\)",
        ),
        ({"lengths": torch.zeros(2, dtype=torch.int64)}, call(2, 1), r"'lengths' is \[2\].*\(requests\)"),
        ({"positions": torch.zeros(2, dtype=torch.int64)}, call(2, 1), r"declared is \[3, 2\]"),
        ({"hidden": torch.zeros(2, 3, dtype=torch.float64)}, call(2, 1), "torch.float64, declared is .* torch.float32"),
        ({"hidden": torch.zeros(2, 3, device="meta")}, call(2, 1), "'hidden' is on meta, the call on cpu"),
        ({}, call(9, 1), "a call of 9 tokens, the buffers hold 8"),
        ({}, call(8, 5), "a call of 5 requests, the buffers hold 4"),
    ],
)
def test_what_does_not_fit_is_refused(changes: dict[str, Tensor | None], shape: PhaseShape, says: str) -> None:
    buffers = BufferSet(SLOTS, CAPACITY, CPU)
    merged: dict[str, Tensor | None] = {**inputs_for(shape), **changes}
    inputs = {name: tensor for name, tensor in merged.items() if tensor is not None}
    before = {name: tensor.clone() for name, tensor in buffers.tensors.items()}
    with pytest.raises(GraphError, match=says):
        buffers.fill(inputs, shape)
    assert all(torch.equal(before[name], tensor) for name, tensor in buffers.tensors.items())


def test_all_that_does_not_fit_at_once() -> None:
    with pytest.raises(GraphError, match="6 problems"):
        BufferSet(SLOTS, CAPACITY, CPU).fill({"other": torch.zeros(1)}, call(1, 1))


def test_names_are_declared_once_and_known() -> None:
    with pytest.raises(GraphError, match="hidden are declared more than once"):
        BufferSet((*SLOTS, SLOTS[0]), CAPACITY, CPU)
    with pytest.raises(GraphError, match="buffer 'logits' was asked, declared are hidden"):
        BufferSet(SLOTS, CAPACITY, CPU).view("logits", CAPACITY)
