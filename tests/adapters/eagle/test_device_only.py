"""A pass of a bound draft reads nothing back to the host, so a graph can capture it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from outrider.checkpoint import Checkpoint
from outrider.interfaces import BoundDraft, LoadOptions
from outrider.types import StackInputs
from outrider_adapters.eagle import Eagle3Loader, EagleLoader
from tests.adapters.eagle.checkpoints import HIDDEN, eagle1, specforge_eagle3
from tests.adapters.eagle.targets import CPU, make_target

_WAITING = ("_local_scalar_dense", "nonzero", "masked_select", "_unique2", "is_nonzero", "item", "equal")


class NoHostReads(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch leaves its __init_subclass__ untyped
    """Fails on every operator whose result, or whose result's shape, the host must wait for."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch leaves its constructor untyped

    def __torch_dispatch__(
        self,
        func: Callable[..., object],
        types: Sequence[type],
        args: tuple[object, ...] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        name = str(func).split(".")[1]
        assert name not in _WAITING, f"{func} makes the host wait"
        return func(*args, **(kwargs or {}))


def attend_to_self(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return v.repeat_interleave(q.shape[1] // v.shape[1], dim=1)


@pytest.fixture(params=["eagle-3", "eagle-1"])
def draft(request: pytest.FixtureRequest, tmp_path: Path) -> BoundDraft:
    third = request.param == "eagle-3"
    checkpoint = Checkpoint((specforge_eagle3() if third else eagle1()).write(tmp_path))
    loader = Eagle3Loader() if third else EagleLoader()
    return loader.load(checkpoint, LoadOptions(CPU)).bind(make_target())


def test_passes_are_device_only(draft: BoundDraft) -> None:
    tokens, inputs = torch.tensor([3, 9]), StackInputs(torch.tensor([4, 7]), attend_to_self)
    with NoHostReads():
        out = draft.extend(draft.embed(tokens), torch.ones(2, draft.spec.feature_width), inputs)
        out = draft.step(draft.embed(tokens), out.state, inputs)
        ids = draft.spec.vocab.to_target(draft.logits(out.hidden).argmax(dim=-1))
    assert ids.shape == (2,)


def test_watcher_notices_a_host_read() -> None:
    with pytest.raises(AssertionError, match="host wait"), NoHostReads():
        torch.ones(1).item()


def test_rows_do_not_depend_on_their_neighbours(draft: BoundDraft) -> None:
    tokens, features = torch.tensor([3, 9, 3]), torch.randn(3, draft.spec.feature_width)
    positions = torch.tensor([4, 7, 1])

    def run(rows: Sequence[int]) -> Tensor:
        inputs = StackInputs(positions[rows], attend_to_self)
        out = draft.extend(draft.embed(tokens[rows]), features[rows], inputs)
        return draft.logits(draft.step(out.hidden.new_ones(len(rows), HIDDEN), out.state, inputs).hidden)

    together = run([0, 1, 2])
    for row in range(3):
        torch.testing.assert_close(run([row])[0], together[row])
