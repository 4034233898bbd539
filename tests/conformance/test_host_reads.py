"""What makes the host wait is refused where it stands, on a CPU too; what does not, runs."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from outrider._torch import int_rows
from outrider.conformance import forbid_host_reads
from outrider.errors import ConformanceError

X = torch.arange(6).view(2, 3)
COUNTS = torch.tensor([1, 2])

WAITS: dict[str, Callable[[], object]] = {
    "item": lambda: X[0, 0].item(),
    "int": lambda: int(X[0, 0]),
    "float": lambda: float(X[0, 0]),
    "bool": lambda: bool(X[0, 0]),
    "index": lambda: [1, 2, 3][X[0, 1]],
    "tolist": lambda: int_rows(X),
    "numpy": lambda: X.numpy(),
    "cpu": lambda: X.cpu(),
    "repr": lambda: repr(X),
    "in": lambda: 3 in X,
    "equal": lambda: torch.equal(X, X),
    "allclose": lambda: torch.allclose(X, X),
    "nonzero": lambda: torch.nonzero(X),
    "nonzero as tuple": lambda: torch.nonzero(X, as_tuple=True),
    "argwhere": lambda: torch.argwhere(X),
    "unique": lambda: torch.ops.aten._unique2(X),
    "is_nonzero": lambda: torch.is_nonzero(X[0, 0]),
    "if": lambda: 1 if X[0, 0] else 2,
    "where": lambda: torch.where(X > 1),
    "mask": lambda: X[X > 1],
    "mask assignment": lambda: X.clone().__setitem__(X > 1, 0),
    "masked_select": lambda: torch.masked_select(X, X > 1),
    "bincount": lambda: torch.bincount(X.flatten()),
    "repeats": lambda: X.repeat_interleave(COUNTS, dim=0),
}

RUNS: dict[str, Callable[[], Tensor]] = {
    "arithmetic": lambda: (X + 1).float().softmax(dim=-1),
    "where": lambda: torch.where(X > 1, X, 0),
    "masked_fill": lambda: X.masked_fill(X > 1, 0),
    "index": lambda: X[:, COUNTS],
    "gather": lambda: X.gather(1, X.remainder(3)),
    "topk": lambda: X.topk(2).indices,
    "sort": lambda: X.sort(dim=1, descending=True, stable=True).values,
    "repeats of known size": lambda: X.repeat_interleave(COUNTS, dim=0, output_size=3),
    "repeats of one number": lambda: X.repeat_interleave(2, dim=0),
    "new": lambda: torch.tensor([1, 2, 3]),
}


@pytest.mark.parametrize("inference", [False, True], ids=["plain", "inference mode"])
@pytest.mark.parametrize("name", WAITS)
def test_host_reads_are_refused(name: str, inference: bool) -> None:
    """Operators come composite in inference mode, and taken apart outside of it."""
    WAITS[name]()
    with (
        torch.inference_mode(inference),
        pytest.raises(ConformanceError, match="makes the host wait"),
        forbid_host_reads(),
    ):
        WAITS[name]()


@pytest.mark.parametrize("name", RUNS)
def test_everything_else_runs_and_gives_the_same(name: str) -> None:
    expected = RUNS[name]()
    with forbid_host_reads():
        found = RUNS[name]()
        with torch.inference_mode():
            assert RUNS[name]().shape == expected.shape
    assert torch.equal(found, expected)
