"""The account that a weight loader keeps: names, shapes, faults, progress, leftovers."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file  # pyright: ignore[reportUnknownVariableType] - PathLike without its type
from torch import Tensor

from outrider.checkpoint import TensorFiles, TensorReader
from outrider.errors import CheckpointError
from outrider_adapters.nn import WeightLoader

CPU, META = torch.device("cpu"), torch.device("meta")


def reader(directory: Path, **tensors: Tensor) -> TensorReader:
    save_file({name.replace("__", "."): tensor for name, tensor in tensors.items()}, directory / "model.safetensors")
    return TensorReader(TensorFiles(directory))


def test_values_arrive_in_the_wanted_dtype_and_apart_from_the_file(tmp_path: Path) -> None:
    stored = torch.arange(6.0).view(2, 3)
    loader = WeightLoader(reader(tmp_path, a=stored), CPU, torch.bfloat16)
    found = loader.tensor("a", (2, 3))
    assert found.dtype == torch.bfloat16
    assert torch.equal(found.float(), stored)
    loader.finish("t")


def test_whole_numbers_keep_the_dtype_asked(tmp_path: Path) -> None:
    loader = WeightLoader(reader(tmp_path, ids=torch.tensor([3, 1]), mask=torch.tensor([True])), CPU, torch.float32)
    assert torch.equal(loader.tensor("ids", (2,), torch.int64), torch.tensor([3, 1]))
    assert torch.equal(loader.tensor("mask", (1,), torch.bool), torch.tensor([True]))
    loader.finish("t")


@pytest.mark.parametrize("fused", [False, True])
def test_parts_lie_one_below_the_other_in_the_order_asked(fused: bool, tmp_path: Path) -> None:
    q, k = torch.ones(2, 3), torch.full((1, 3), 2.0)
    tensors = {"qk__w": torch.cat((q, k))} if fused else {"k__w": k, "q__w": q}
    loader = WeightLoader(reader(tmp_path, **tensors), CPU, torch.float32)
    found = loader.fused([("q.w", 2), ("k.w", 1)], "qk.w", (3,))
    assert torch.equal(found, torch.cat((q, k)))
    loader.finish("t")


def test_parts_beside_the_fused_tensor_are_left_and_named(tmp_path: Path) -> None:
    loader = WeightLoader(reader(tmp_path, q__w=torch.ones(2), qk__w=torch.ones(3)), CPU, torch.float32)
    loader.fused([("q.w", 2), ("k.w", 1)], "qk.w")
    with pytest.raises(CheckpointError, match=r"not used by this model: 'q\.w'"):
        loader.finish("t")


def test_scopes_try_their_prefixes_in_order_and_share_one_account(tmp_path: Path) -> None:
    loader = WeightLoader(reader(tmp_path, model__mid__0__x=torch.ones(1), y=torch.zeros(1)), CPU, torch.float32)
    layer = loader.scope("model.", "").scope("layers.0.", "mid.0.")
    assert layer.find("x") == "model.mid.0.x"
    assert layer.shape("x") == (1,)
    assert not layer.has("y")
    assert layer.shape("y") is None
    assert layer.optional("y", (1,)) is None
    layer.tensor("x", (1,))
    loader.scope("model.", "").tensor("y", (1,))
    assert loader.num_parameters == 2
    loader.finish("t")


def test_all_faults_are_raised_together_with_both_sides(tmp_path: Path) -> None:
    loader = WeightLoader(
        reader(tmp_path, a=torch.ones(2), b=torch.ones(2, dtype=torch.int8), c=torch.ones(2), d=torch.ones(1)),
        CPU,
        torch.float32,
    )
    loader.tensor("a", (3,))
    loader.tensor("b", (2,))
    loader.tensor("c", (2,), torch.int64)
    loader.scope("x.", "y.").tensor("e", (4, 5))
    loader.problem("something else")
    with pytest.raises(CheckpointError) as caught:
        loader.finish("title")
    for said in (
        "title: 6 problems",
        "'a' has shape [2], expected [3]",
        "'b' is stored as int8, expected one of float32",
        "'c' is stored as float32, expected whole numbers",
        "'x.e' or 'y.e' is missing, expected with shape [4, 5]",
        "something else",
        "1 tensor is in the checkpoint but not used by this model: 'd'",
    ):
        assert said in str(caught.value)


def test_a_rehearsal_finds_the_faults_and_counts_without_reading(tmp_path: Path) -> None:
    seen: list[int] = []
    loader = WeightLoader(
        reader(tmp_path, a=torch.ones(2), b=torch.ones(3)), META, torch.float32, lambda done, total: seen.append(done)
    )
    assert loader.tensor("a", (2,)).is_meta
    assert loader.tensor("b", (4,)).is_meta
    assert loader.problems() == ("tensor 'b' has shape [3], expected [4]",)
    assert loader.num_parameters == 2
    assert seen == []


def test_what_is_ignored_is_no_leftover_and_ends_the_progress(tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    source = reader(tmp_path, a=torch.ones(1), h__w=torch.ones(1), l__inv_freq=torch.ones(1))
    loader = WeightLoader(source, CPU, torch.float32, lambda done, total: seen.append((done, total)))
    loader.ignore_ending("inv_freq")
    loader.scope("h.").ignore("w", "not there")
    loader.tensor("a", (1,))
    loader.finish("t")
    assert seen == [(1, 3), (3, 3)]


def test_a_flood_of_faults_is_cut_with_its_number(tmp_path: Path) -> None:
    loader = WeightLoader(reader(tmp_path, a=torch.ones(1)), CPU, torch.float32)
    for index in range(300):
        loader.tensor(f"missing.{index}", (1,))
    problems = loader.problems()
    assert len(problems) < 30
    assert any("and 280 more tensors" in problem for problem in problems)
