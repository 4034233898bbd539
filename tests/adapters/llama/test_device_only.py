"""A pass reads nothing back to the host and has no shape that depends on data, so that it can be captured."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from outrider.types import HiddenTap, StackInputs
from tests.adapters.llama.reference import HubModel, load

FORBIDDEN = ("_local_scalar_dense", "nonzero", "masked_select", "unique", "is_nonzero", "equal")


class DeviceOnly(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch leaves its __init_subclass__ untyped
    """Notes every operator that synchronises or whose output's shape depends on values."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch leaves its constructor untyped
        self.found: list[str] = []
        self.seen = 0

    def __torch_dispatch__(
        self,
        func: Callable[..., object],
        types: Sequence[type],
        args: Sequence[object] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        self.seen += 1
        name = str(func).split(".")[1]
        if name in FORBIDDEN:
            self.found.append(name)
        if name == "index" and any(_is_mask(index) for argument in args[1:] for index in _flat(argument)):
            self.found.append("index by mask")
        return func(*args, **(kwargs or {}))


def _flat(argument: object) -> list[object]:
    return [*argument] if isinstance(argument, (list, tuple)) else [argument]  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType] - a dispatcher's arguments are objects


def _is_mask(index: object) -> bool:
    return isinstance(index, Tensor) and index.dtype == torch.bool


def echo(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return q


@pytest.mark.parametrize(
    ("model_type", "settings"),
    [
        ("llama", {"attention_bias": True, "mlp_bias": True}),
        ("llama", {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0}, "max_position_embeddings": 4}),
        ("qwen3", {"head_dim": 8, "tie_word_embeddings": True}),
    ],
)
def test_a_pass_is_device_only(model_type: str, settings: dict[str, object], tmp_path: Path) -> None:
    stack = load(HubModel(model_type, **settings).save(tmp_path)).stack
    positions = torch.tensor([1, 2, 6])
    lengths = positions + 1 if stack.spec.positions.needs_lengths else None
    taps = (HiddenTap(1), HiddenTap.final_norm())
    with DeviceOnly() as watch:
        output = stack.run_layers(stack.embed(positions), StackInputs(positions, echo, taps, lengths))
        stack.logits(output.hidden)
    assert watch.seen > 20
    assert watch.found == []


def test_the_watch_sees_a_read_and_a_mask() -> None:
    values = torch.tensor([1.0, -1.0])
    with DeviceOnly() as watch:
        float(values.sum())
        values[values > 0]
    assert watch.found == ["_local_scalar_dense", "index by mask"]
