"""A replay is the body, bit for bit, on whatever the buffers hold by then, and runs none of its Python."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import FunctionType

import pytest
import torch
from attrs import define
from torch import Tensor
from torch.nn import functional as nn

from outrider.interfaces import Break
from outrider_backends.tape import Tape
from tests.support.toy_target import CPU

Body = Callable[[Tensor, Tensor], Tensor]

WEIGHT = torch.randn(6, 6, generator=torch.Generator().manual_seed(0))
HALF = WEIGHT.bfloat16()
SPARSE = WEIGHT.relu().to_sparse()
INDEX = torch.tensor([2, 0, 1])


def views(x: Tensor, ids: Tensor) -> Tensor:
    heads = x.view(4, 2, 3).transpose(0, 1)
    first, second = heads.unbind(0)
    return torch.cat([first[:, 1:], second.flip(1)], dim=1).unsqueeze(0).expand(2, -1, -1) * 2


def reshape_that_copies(x: Tensor, ids: Tensor) -> Tensor:
    return x.t().reshape(-1) + x.reshape(-1)


def contiguous_both_ways(x: Tensor, ids: Tensor) -> Tensor:
    return x.t().contiguous() + x.contiguous().t()


def dtypes(x: Tensor, ids: Tensor) -> Tensor:
    return (x.to(torch.bfloat16) @ HALF).float() + x.float() + ids.to(torch.float32)[:, None]


def in_place(x: Tensor, ids: Tensor) -> Tensor:
    out = torch.mul(x, 2).add_(1.0)
    out[:, 1:].mul_(ids[:, None])
    out[0] = 3.0
    out[1:3, 0] = out[2:4, 1]
    return out.clamp_(min=-4)


def preallocated(x: Tensor, ids: Tensor) -> Tensor:
    out = torch.empty(4, 6)
    torch.matmul(x, WEIGHT, out=out)
    more = x.new_zeros(4, 6).index_copy_(0, INDEX, x[1:])
    return torch.add(out, more, alpha=0.5)


def projections(x: Tensor, ids: Tensor) -> Tensor:
    return torch.addmm(nn.linear(x, WEIGHT, WEIGHT[0]), nn.silu(x), WEIGHT.t()) + torch.mm(SPARSE, x.t()).t()


def attention(x: Tensor, ids: Tensor) -> Tensor:
    q = x.view(1, 1, 4, 6)
    mask = torch.ones(4, 4, dtype=torch.bool).triu(1)
    return nn.scaled_dot_product_attention(q, q, q, attn_mask=torch.zeros(4, 4).masked_fill(mask, -1e9)).view(4, 6)


def several_results(x: Tensor, ids: Tensor) -> Tensor:
    values, indices = x.sort(dim=1, descending=True, stable=True)
    best = x.topk(2, dim=1)
    largest = x.max(dim=0)
    parts = torch.split_with_sizes(values, [1, 5], 1)
    return torch.cat([parts[1], best.values, indices[:, :1] * largest.values[0], best.indices], dim=1)


def indexed(x: Tensor, ids: Tensor) -> Tensor:
    return (
        x[INDEX].sum(0) + x.gather(1, ids[:, None].expand(-1, 6)) + nn.embedding(ids, WEIGHT) + x.index_select(0, ids)
    )


def evaluated_dropout(x: Tensor, ids: Tensor) -> Tensor:
    return nn.dropout(x, 0.5, training=False) * 2


def handed_through(x: Tensor, ids: Tensor) -> Tensor:
    return x


def a_view_of_an_input(x: Tensor, ids: Tensor) -> Tensor:
    return x[1:, ::2]


def nothing_at_all(x: Tensor, ids: Tensor) -> Tensor:
    return x[:0] * 2


def python_numbers(x: Tensor, ids: Tensor) -> Tensor:
    return (
        (2 - x) * 3.5 / (x.square() + 1) ** 2
        + torch.where(x > 0, x, 0.0)
        + torch.full((6,), float("nan")).nan_to_num(1)
    )


BODIES: Mapping[str, Body] = {
    "views": views,
    "reshape_that_copies": reshape_that_copies,
    "contiguous_both_ways": contiguous_both_ways,
    "dtypes": dtypes,
    "in_place": in_place,
    "preallocated": preallocated,
    "projections": projections,
    "attention": attention,
    "several_results": several_results,
    "indexed": indexed,
    "evaluated_dropout": evaluated_dropout,
    "handed_through": handed_through,
    "a_view_of_an_input": a_view_of_an_input,
    "nothing_at_all": nothing_at_all,
    "python_numbers": python_numbers,
}


def bits(tensor: Tensor) -> Tensor:
    return tensor.contiguous().view(-1).view(torch.uint8)


def contents(seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(4, 6, generator=generator)
    x[seed % 4, seed % 6] = float("nan") if seed == 3 else -0.0
    return x, torch.randint(4, (4,), generator=generator)


@define
class Captured:
    """A body on buffers of its own, and how often its Python ran."""

    x: Tensor
    ids: Tensor
    body: Body
    calls: int = 0

    def __call__(self, break_: Break) -> dict[str, Tensor]:
        self.calls += 1
        return {"y": self.body(self.x, self.ids)}

    def tape(self) -> Tape:
        def vary() -> None:
            self.x.fill_(1.0)
            self.ids.fill_(1)

        return Tape.capture(self, {"x": self.x, "ids": self.ids}, device=CPU, vary=vary)


@pytest.mark.parametrize("name", BODIES)
@pytest.mark.parametrize("spoiled", [False, True])
def test_a_replay_is_the_body_bit_for_bit(name: str, spoiled: bool) -> None:
    captured = Captured(*contents(0), BODIES[name])
    tape = captured.tape()
    addresses = {key: tensor.data_ptr() for key, tensor in tape.outputs.items()}
    ran = captured.calls
    for seed in (1, 2, 3, 1):
        x, ids = contents(seed)
        captured.x.copy_(x)
        captured.ids.copy_(ids)
        if spoiled:
            tape.spoil()
        tape.replay()
        expected = BODIES[name](x, ids)
        found = tape.outputs["y"]
        assert (found.shape, found.dtype) == (expected.shape, expected.dtype)
        assert torch.equal(bits(found), bits(expected))
        assert torch.equal(bits(captured.x), bits(x)), "inputs are only read"
    assert captured.calls == ran, "a replay runs no Python of the body"
    assert addresses == {key: tensor.data_ptr() for key, tensor in tape.outputs.items()}


def test_outputs_never_share_memory_with_inputs() -> None:
    for body in (handed_through, a_view_of_an_input):
        captured = Captured(*contents(0), body)
        tape = captured.tape()
        tape.replay()
        before = tape.outputs["y"].clone()
        captured.x.fill_(9.0)
        assert torch.equal(bits(tape.outputs["y"]), bits(before))


def test_memory_from_outside_is_read_and_written_where_it_is() -> None:
    cache, step, x = torch.zeros(3, 2), torch.zeros((), dtype=torch.int64), torch.ones(1, 2)

    def body(break_: Break) -> dict[str, Tensor]:
        cache.index_copy_(0, step[None], x)
        return {"total": cache.sum(0)}

    tape = Tape.capture(body, {"x": x}, device=CPU)
    cache.zero_()
    for place in range(3):
        step.fill_(place)
        x.fill_(float(place + 1))
        tape.replay()
    assert torch.equal(cache, torch.tensor([[1.0, 1.0], [2.0, 2.0], [3.0, 3.0]]))
    assert torch.equal(tape.outputs["total"], torch.tensor([6.0, 6.0]))


def test_what_the_warm_up_sets_up_is_kept() -> None:
    """A cache that is filled at the first call is no fault: the warm-up is that call."""
    kept: dict[int, Tensor] = {}
    x = torch.arange(3.0)

    def body(break_: Break) -> dict[str, Tensor]:
        if 3 not in kept:
            kept[3] = torch.arange(3) * 2
        return {"y": x + kept[3]}

    tape = Tape.capture(body, {"x": x}, device=CPU)
    del kept[3]
    x.fill_(1.0)
    tape.replay()
    assert torch.equal(tape.outputs["y"], torch.tensor([1.0, 3.0, 5.0]))
    assert tape.num_operators == 1, "views and what was made before are not run again"


@pytest.mark.parametrize("mode", [torch.no_grad, torch.enable_grad, torch.inference_mode])
def test_captured_in_one_mode_and_replayed_in_any(mode: Callable[[], torch.autograd.grad_mode.no_grad]) -> None:
    with mode():
        captured = Captured(*contents(0), projections)
        tape = captured.tape()
    for other in (torch.no_grad, torch.enable_grad, torch.inference_mode):
        with other():
            tape.replay()
    assert torch.equal(bits(tape.outputs["y"]), bits(projections(captured.x, captured.ids)))


def test_a_tape_that_leaves_out_an_operator_is_found() -> None:
    """The comparison above can fail: without the step that writes in place the outcome differs."""
    captured = Captured(*contents(0), in_place)
    tape = captured.tape()
    captured.x.copy_(contents(1)[0])
    tape.replay()
    whole = tape.outputs["y"].clone()
    tape._steps.pop(1)  # pyright: ignore[reportPrivateUsage] - breaks the tape on purpose
    tape.replay()
    assert not torch.equal(bits(whole), bits(tape.outputs["y"]))


def test_spoiling_shows_what_is_not_written_anew() -> None:
    """Memory that a body only half fills holds what was there: NaN once it is spoiled."""

    def half_filled(x: Tensor, ids: Tensor) -> Tensor:
        out = torch.empty(4, 6)
        out[:2] = x[:2]
        return out * 1

    tape = Captured(*contents(0), half_filled).tape()
    tape.spoil()
    tape.replay()
    assert tape.outputs["y"][2:].isnan().all()


def test_owned_memory_is_counted() -> None:
    captured = Captured(*contents(0), lambda x, ids: (x * 2) + 1)
    assert captured.tape().owned_bytes == 2 * 4 * 6 * 4


def test_a_capture_leaves_memory_as_it_was() -> None:
    """Whatever the work writes, wherever: rows, slices, whole tensors, twice over."""
    cache, total, flags = torch.randn(5, 2), torch.randn(3), torch.tensor([True, False])
    x = torch.ones(2, 2)

    def body(break_: Break) -> dict[str, Tensor]:
        cache.index_copy_(0, torch.arange(1, 3), x)
        cache[3:, 1].fill_(7.0)
        cache.index_copy_(0, torch.arange(2, 4), x * 2)
        torch.add(total, 1.0, out=total)
        total[1:].mul_(cache[1, 0])
        flags.logical_not_()
        return {"total": total * 2}

    before = [tensor.clone() for tensor in (cache, total, flags)]
    tape = Tape.capture(body, {"x": x}, device=CPU, warm=False)
    assert all(torch.equal(one, two) for one, two in zip((cache, total, flags), before, strict=True))
    expected = [tensor.clone() for tensor in before]
    expected[0][1:4], expected[0][3, 1], expected[0][4, 1] = torch.tensor([[1.0, 1], [2, 2], [2, 2]]), 2.0, 7.0
    expected[1] += 1.0
    expected[2] = ~expected[2]
    tape.replay()
    assert all(torch.equal(one, two) for one, two in zip((cache, total, flags), expected, strict=True))


def test_a_capture_that_fails_leaves_memory_as_it_was() -> None:
    cache, x = torch.randn(3), torch.ones(3)

    def body(break_: Break) -> dict[str, Tensor]:
        cache.copy_(x)
        break_(lambda: None)
        cache.mul_(2)
        raise KeyboardInterrupt

    before = cache.clone()
    with pytest.raises(KeyboardInterrupt):
        Tape.capture(body, {"x": x}, device=CPU, warm=False)
    assert torch.equal(cache, before)
    assert torch.equal(x * 2, torch.full((3,), 2.0)), "nothing is recorded any more"


def test_eager_pieces_run_where_the_breaks_were() -> None:
    """Segments of no operators, of one, and a piece at each end; none of them runs in the capture itself."""
    x, between, ran = torch.zeros(3), torch.zeros(3), list[str]()

    def body(break_: Break) -> dict[str, Tensor]:
        break_(lambda: ran.append("first"))
        y = x + 1

        def eager() -> None:
            ran.append("second")
            between.copy_(y.sum().item() * x)  # what no graph could hold

        break_(eager)
        break_(lambda: ran.append("third"))
        z = between * 2
        break_(lambda: ran.append("last"))
        return {"z": z}

    tape = Tape.capture(body, {"x": x}, device=CPU)
    assert ran == []
    for value in (1.0, 5.0):
        x.fill_(value)
        tape.replay()
        assert torch.equal(tape.outputs["z"], torch.full((3,), 2 * value * 3 * (value + 1)))
    assert ran == ["first", "second", "third", "last"] * 2


def test_a_medium_that_forgets_an_eager_piece_is_found() -> None:
    """The comparison above can fail: without the piece the segment after it reads what was there before."""
    x, between = torch.zeros(3), torch.zeros(3)

    def body(break_: Break) -> dict[str, Tensor]:
        y = x + 1

        def eager() -> None:
            between.copy_(y)

        break_(eager)
        return {"z": between * 2}

    tape = Tape.capture(body, {"x": x}, device=CPU)
    steps = tape._steps  # pyright: ignore[reportPrivateUsage] - breaks the tape on purpose
    steps.pop(next(place for place, step in enumerate(steps) if isinstance(step, FunctionType)))
    x.fill_(4.0)
    tape.replay()
    assert not torch.equal(tape.outputs["z"], torch.full((3,), 10.0))


def test_what_an_eager_piece_raises_comes_as_it_is_and_the_next_replay_is_whole() -> None:
    x, between, fail = torch.zeros(3), torch.zeros(3), [True]

    def body(break_: Break) -> dict[str, Tensor]:
        y = x + 1

        def eager() -> None:
            if fail[0]:
                raise ValueError("the piece failed")
            between.copy_(y)

        break_(eager)
        return {"z": between * 2}

    tape = Tape.capture(body, {"x": x}, device=CPU)
    with pytest.raises(ValueError, match="the piece failed"):
        tape.replay()
    fail[0] = False
    tape.replay()
    assert torch.equal(tape.outputs["z"], torch.full((3,), 2.0))
