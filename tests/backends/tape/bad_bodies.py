"""Bodies that a graph cannot hold. The line at fault in each ends with the comment ``# here``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import cast

import torch
from attrs import define, field
from torch import Tensor
from torch.nn import functional as nn

Body = Callable[[Tensor, Tensor], Tensor]
"""Rows ``x [4, 3]`` float32 and ``ids [4]`` int64 in, a tensor out."""


_unique = cast(
    "Callable[[Tensor], Tensor]",
    torch.unique,  # pyright: ignore[reportUnknownMemberType] - not annotated
)


def item(x: Tensor, ids: Tensor) -> Tensor:
    return x * x.sum().item()  # here


def branch(x: Tensor, ids: Tensor) -> Tensor:
    if ids.max() > 2:  # here
        return x + 1
    return x - 1


def as_int(x: Tensor, ids: Tensor) -> Tensor:
    return x[: int(ids[0]) + 1]  # here


def as_index(x: Tensor, ids: Tensor) -> Tensor:
    return x * (1.0, 2.0, 3.0)[ids[0] * 0]  # here


def to_list(x: Tensor, ids: Tensor) -> Tensor:
    return x * len(ids.tolist())  # pyright: ignore[reportUnknownMemberType, reportUnknownArgumentType]  # here


def to_numpy(x: Tensor, ids: Tensor) -> Tensor:
    return x * float(ids.numpy().sum())  # here


def to_cpu(x: Tensor, ids: Tensor) -> Tensor:
    return x * ids.cpu()[:, None]  # here


def equal(x: Tensor, ids: Tensor) -> Tensor:
    return x + torch.equal(x, x * 2)  # here


def allclose(x: Tensor, ids: Tensor) -> Tensor:
    return x + int(torch.allclose(x, x))  # here


def nonzero(x: Tensor, ids: Tensor) -> Tensor:
    return (x == x).nonzero() * 2  # here


def where_alone(x: Tensor, ids: Tensor) -> Tensor:
    return torch.where(x == x)[0] * 2  # here


def mask_index(x: Tensor, ids: Tensor) -> Tensor:
    return x[ids >= 0] * 2  # here


def mask_write(x: Tensor, ids: Tensor) -> Tensor:
    out = x.clone()
    out[ids > 100] = 0.0  # here
    return out


def masked_select(x: Tensor, ids: Tensor) -> Tensor:
    return x.masked_select(x == x)  # here


def unique(x: Tensor, ids: Tensor) -> Tensor:
    return _unique(ids) * 2  # here


def repeated(x: Tensor, ids: Tensor) -> Tensor:
    return x.repeat_interleave(ids * 0 + 1, dim=0)  # here


def bincount(x: Tensor, ids: Tensor) -> Tensor:
    return ids.bincount() * 2  # here


def rand(x: Tensor, ids: Tensor) -> Tensor:
    return x + torch.rand(3)  # here


def rand_like(x: Tensor, ids: Tensor) -> Tensor:
    return x + torch.randn_like(x)  # here


def dropout(x: Tensor, ids: Tensor) -> Tensor:
    return nn.dropout(x, 0.5, training=True)  # here


def multinomial(x: Tensor, ids: Tensor) -> Tensor:
    return torch.multinomial(x.abs() + 1, 2) * 1  # here


def normal(x: Tensor, ids: Tensor) -> Tensor:
    return torch.empty_like(x).normal_()  # here


def bernoulli(x: Tensor, ids: Tensor) -> Tensor:
    return torch.bernoulli(x.sigmoid())  # here


def attention_dropout(x: Tensor, ids: Tensor) -> Tensor:
    return nn.scaled_dot_product_attention(x[None], x[None], x[None], dropout_p=0.5)[0]  # here


OWN_GENERATOR = torch.Generator()


def own_generator(x: Tensor, ids: Tensor) -> Tensor:
    return x + torch.rand(3, generator=OWN_GENERATOR)  # here


def from_list(x: Tensor, ids: Tensor) -> Tensor:
    return x * torch.tensor([1.0, 2.0, 3.0])  # here


def from_number(x: Tensor, ids: Tensor) -> Tensor:
    return x * torch.tensor(2.0)  # here


def list_index(x: Tensor, ids: Tensor) -> Tensor:
    return x[[0, 1]] * 2  # here


def add_in_place(x: Tensor, ids: Tensor) -> Tensor:
    return x.add_(1.0) * 2  # here


def write_through_a_view(x: Tensor, ids: Tensor) -> Tensor:
    x[:, 1:].copy_(x[:, :-1])  # here
    return x * 2


def out_into_an_input(x: Tensor, ids: Tensor) -> Tensor:
    return torch.mul(ids, 2, out=ids) + 1  # here


def resized(x: Tensor, ids: Tensor) -> Tensor:
    return x.new_zeros(2).resize_(3)  # here


def sparse(x: Tensor, ids: Tensor) -> Tensor:
    return x.to_sparse().to_dense() * 2  # here


@define
class Counting:
    """Multiplies by a Python number that goes up."""

    calls: int = 0

    def __call__(self, x: Tensor, ids: Tensor) -> Tensor:
        self.calls += 1
        return x * self.calls  # here


@define
class CountingFill:
    """Fills with a Python number that goes up: it enters as a tensor."""

    calls: float = 0.0

    def __call__(self, x: Tensor, ids: Tensor) -> Tensor:
        self.calls += 1.0
        out = x.clone()
        out[0] = self.calls  # here
        return out


@define
class Growing:
    """Keeps every call's rows."""

    kept: list[Tensor] = field(factory=list[Tensor])

    def __call__(self, x: Tensor, ids: Tensor) -> Tensor:
        self.kept.append(x * 2)
        return torch.cat(self.kept)  # here


@define
class Alternating:
    """Does something else every other time."""

    odd: bool = False

    def __call__(self, x: Tensor, ids: Tensor) -> Tensor:
        self.odd = not self.odd
        return x * 2 if self.odd else x + x  # here


@define
class Lengthening:
    """Does one thing more each time."""

    calls: int = 0

    def __call__(self, x: Tensor, ids: Tensor) -> Tensor:
        self.calls += 1
        for _ in range(self.calls):
            x = x * 2  # here
        return x


@define(eq=False)
class Remembering:
    """Reads what the call before made."""

    last: Tensor = field(factory=lambda: torch.zeros(4, 3))

    def __call__(self, x: Tensor, ids: Tensor) -> Tensor:
        out = x + self.last  # here
        self.last = out
        return out


@define(eq=False)
class Replacing:
    """Has its buffer replaced between calls."""

    buffers: list[Tensor] = field(factory=lambda: [torch.full((3,), float(i)) for i in range(9)])

    def __call__(self, x: Tensor, ids: Tensor) -> Tensor:
        return x * self.buffers.pop()  # here


@define
class HiddenSlice:
    """A slice whose place moves."""

    calls: int = 0

    def __call__(self, x: Tensor, ids: Tensor) -> Tensor:
        self.calls += 1
        return x[:, self.calls - 1 : self.calls] * 2  # here


HOST_READ = "reads a value on the host"
SHAPE = "whose shape depends on values"
RANDOM = "draws from a random generator"
HOST_DATA = "makes a tensor from Python data"
INPUT = "writes to an input buffer in place"
STALE = "a Python value that differs between two captures"
GROWTH = "is not the same in two captures"
ESCAPED = "memory that differs between two captures"

BAD: Mapping[str, tuple[Callable[[], Body], str]] = {
    "item": (lambda: item, HOST_READ),
    "branch": (lambda: branch, HOST_READ),
    "as_int": (lambda: as_int, HOST_READ),
    "as_index": (lambda: as_index, HOST_READ),
    "to_list": (lambda: to_list, HOST_READ),
    "to_numpy": (lambda: to_numpy, HOST_READ),
    "to_cpu": (lambda: to_cpu, HOST_READ),
    "equal": (lambda: equal, HOST_READ),
    "allclose": (lambda: allclose, HOST_READ),
    "nonzero": (lambda: nonzero, SHAPE),
    "where_alone": (lambda: where_alone, SHAPE),
    "mask_index": (lambda: mask_index, SHAPE),
    "mask_write": (lambda: mask_write, SHAPE),
    "masked_select": (lambda: masked_select, SHAPE),
    "unique": (lambda: unique, SHAPE),
    "repeated": (lambda: repeated, SHAPE),
    "bincount": (lambda: bincount, SHAPE),
    "rand": (lambda: rand, RANDOM),
    "rand_like": (lambda: rand_like, RANDOM),
    "dropout": (lambda: dropout, RANDOM),
    "multinomial": (lambda: multinomial, RANDOM),
    "normal": (lambda: normal, RANDOM),
    "bernoulli": (lambda: bernoulli, RANDOM),
    "attention_dropout": (lambda: attention_dropout, RANDOM),
    "own_generator": (lambda: own_generator, RANDOM),
    "from_list": (lambda: from_list, HOST_DATA),
    "from_number": (lambda: from_number, HOST_DATA),
    "list_index": (lambda: list_index, HOST_DATA),
    "add_in_place": (lambda: add_in_place, INPUT),
    "write_through_a_view": (lambda: write_through_a_view, INPUT),
    "out_into_an_input": (lambda: out_into_an_input, INPUT),
    "resized": (lambda: resized, "changes the memory of a tensor that exists"),
    "sparse": (lambda: sparse, "makes a tensor that is not strided"),
    "Counting": (Counting, STALE),
    "CountingFill": (CountingFill, STALE),
    "HiddenSlice": (HiddenSlice, STALE),
    "Growing": (Growing, GROWTH),
    "Alternating": (Alternating, GROWTH),
    "Lengthening": (Lengthening, GROWTH),
    "Remembering": (Remembering, ESCAPED),
    "Replacing": (Replacing, ESCAPED),
}
"""By name: the body, and what is said of it."""


def faulty_line(name: str) -> str:
    """``file:line`` of the line at fault in the body ``name``."""
    lines = Path(__file__).read_text(encoding="utf-8").splitlines()
    start = next(n for n, line in enumerate(lines) if line.startswith((f"def {name}(", f"class {name}:")))
    return f"{__file__}:{next(n for n in range(start, len(lines)) if lines[n].endswith('# here')) + 1}"
