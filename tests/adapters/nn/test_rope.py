"""Rope against the definition, written out position by position."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from outrider.checkpoint import Config
from outrider.errors import CheckpointError, ConfigurationError
from outrider.types import RopeSpec
from outrider_adapters.nn import Rope, extended_positions, read_rope, rotate

CPU = torch.device("cpu")


def read(head_dim: int = 8, max_positions: int = 64, **values: object) -> RopeSpec:
    return read_rope(Config("config.json", values), head_dim, max_positions)


def turned(x: Tensor, angles: list[list[float]]) -> Tensor:
    """``x [T, heads, D]`` with dimension pairs (j, j + r/2) turned by ``angles[t][j]``, one pair at a time."""
    result = x.double().clone()
    for row, row_angles in enumerate(angles):
        half = len(row_angles)
        for j, angle in enumerate(row_angles):
            a, b = x[row, :, j].double(), x[row, :, j + half].double()
            result[row, :, j] = a * math.cos(angle) - b * math.sin(angle)
            result[row, :, j + half] = b * math.cos(angle) + a * math.sin(angle)
    return result


@pytest.mark.parametrize("head_dim", [2, 6, 20])
def test_rotation_turns_pairs_by_position_times_frequency(head_dim: int) -> None:
    rope = Rope(read(head_dim), 64, CPU, torch.float32)
    x = torch.randn(4, 3, head_dim, generator=torch.Generator().manual_seed(0))
    positions = [0, 5, 63, 17]
    cos, sin = rope.rotation(torch.tensor(positions), None)
    assert cos.shape == sin.shape == (4, 1, head_dim)
    expected = turned(x, [[p / 10000.0 ** (2 * j / head_dim) for j in range(head_dim // 2)] for p in positions])
    torch.testing.assert_close(rotate(x, cos, sin).double(), expected, atol=1e-5, rtol=1e-5)


def test_partial_rotation_leaves_the_other_dimensions() -> None:
    spec = read(16, partial_rotary_factor=0.5)
    x = torch.randn(3, 2, 16, generator=torch.Generator().manual_seed(1))
    positions = [1, 2, 30]
    found = rotate(x, *Rope(spec, 64, CPU, torch.float32).rotation(torch.tensor(positions), None))
    expected = turned(x, [[p / 10000.0 ** (2 * j / 8) for j in range(4)] for p in positions])
    torch.testing.assert_close(found.double(), expected, atol=1e-5, rtol=1e-5)
    assert torch.equal(found[..., 8:], x[..., 8:])


def test_sections_follow_their_own_axis() -> None:
    spec = read(12, rope_scaling={"type": "mrope", "mrope_section": [1, 2, 3]}, rope_theta=100.0)
    rope = Rope(spec, 64, CPU, torch.float32)
    positions = torch.tensor([[0, 4, 9], [7, 1, 9], [3, 30, 9]])
    x = torch.randn(3, 2, 12, generator=torch.Generator().manual_seed(2))
    axis_of = [0, 1, 1, 2, 2, 2]
    angles = [[int(positions[axis_of[j], t]) / 100.0 ** (2 * j / 12) for j in range(6)] for t in range(3)]
    found = rotate(x, *rope.rotation(positions, None))
    torch.testing.assert_close(found.double(), turned(x, angles), atol=1e-5, rtol=1e-5)
    # A row whose axes agree is turned as plain text is.
    plain = rotate(x, *Rope(read(12, rope_theta=100.0), 64, CPU, torch.float32).rotation(positions[0], None))
    torch.testing.assert_close(found[2], plain[2])


def test_scores_depend_on_distance_alone() -> None:
    rope = Rope(read(16), 128, CPU, torch.float32)
    generator = torch.Generator().manual_seed(3)
    q, k = torch.randn(1, 1, 16, generator=generator), torch.randn(1, 1, 16, generator=generator)

    def score(query_at: int, key_at: int) -> float:
        turned_q = rotate(q, *rope.rotation(torch.tensor([query_at]), None))
        turned_k = rotate(k, *rope.rotation(torch.tensor([key_at]), None))
        return float((turned_q * turned_k).sum())

    assert score(40, 33) == pytest.approx(score(107, 100), abs=1e-4)
    assert abs(score(40, 33) - score(40, 20)) > 1e-2


def test_dynamic_frequencies_follow_each_tokens_own_length() -> None:
    spec = read(8, 16, rope_scaling={"rope_type": "dynamic", "factor": 2.0})
    rope = Rope(spec, 64, CPU, torch.float32)
    x = torch.randn(3, 1, 8, generator=torch.Generator().manual_seed(4))
    positions, lengths = [3, 3, 40], [10, 24, 41]
    angles: list[list[float]] = []
    for position, length in zip(positions, lengths, strict=True):
        base = 10000.0 * (2.0 * max(length, 16) / 16 - 1.0) ** (8 / 6)
        angles.append([position / base ** (2 * j / 8) for j in range(4)])
    found = rotate(x, *rope.rotation(torch.tensor(positions), torch.tensor(lengths)))
    torch.testing.assert_close(found.double(), turned(x, angles), atol=1e-5, rtol=1e-5)


def test_dynamic_without_lengths_is_refused() -> None:
    rope = Rope(read(8, 16, rope_scaling={"rope_type": "dynamic", "factor": 2.0}), 32, CPU, torch.float32)
    with pytest.raises(ConfigurationError, match=r"StackInputs\.lengths"):
        rope.rotation(torch.tensor([1]), None)


def test_padding_positions_outside_the_table_change_no_other_row() -> None:
    rope = Rope(read(8), 32, CPU, torch.float32)
    clean = rope.rotation(torch.tensor([3, 4, 5]), None)
    poisoned = rope.rotation(torch.tensor([3, 2**40, 5, -7]), None)
    for one, other in zip(clean, poisoned, strict=True):
        assert torch.equal(one[[0, 2]], other[[0, 2]])
        assert bool(other.isfinite().all())


def test_a_long_context_without_a_table_gives_the_same_rotation() -> None:
    spec = read(8, rope_theta=1e6)
    positions = torch.tensor([0, 1, 4095, 77])
    short = Rope(spec, 4096, CPU, torch.bfloat16).rotation(positions, None)
    long = Rope(spec, 2**40, CPU, torch.bfloat16).rotation(positions, None)
    assert all(torch.equal(one, other) for one, other in zip(short, long, strict=True))


YARN = {"factor": 4.0, "original_max_position_embeddings": 16, "beta_fast": 8}


@pytest.mark.parametrize(
    "spelling",
    [
        {"rope_theta": 500.0, "rope_scaling": {"type": "yarn", **YARN}},
        {"rope_theta": 500, "rope_scaling": {"rope_type": "yarn", "type": "ignored", **YARN}},
        {"rope_parameters": {"rope_type": "yarn", "rope_theta": 500.0, **YARN}},
        {"rope_theta": 1.0, "rope_parameters": {"rope_type": "yarn", "rope_theta": 500.0, **YARN}},
        {
            "rope_theta": 500.0,
            "original_max_position_embeddings": 16,
            "rope_scaling": {"type": "yarn", "factor": 4.0, "beta_fast": 8},
        },
    ],
)
def test_every_spelling_reads_alike(spelling: dict[str, object]) -> None:
    expected = RopeSpec("yarn", 500.0, 8, factor=4.0, original_max_positions=16, beta_fast=8.0)
    assert read(8, 64, **spelling) == expected


def test_absent_values_take_the_default_theta() -> None:
    assert read_rope(Config("c", {}), 8, 64, default_theta=77.0).theta == 77.0
    assert read_rope(Config("c", {"rope_scaling": None, "rope_theta": 5}), 8, 64).theta == 5.0
    assert read(8, 64, rope_scaling={"type": "yarn", "original_max_position_embeddings": 16}).factor == 4.0


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"rope_scaling": {"type": "longrope", "factor": 2.0}}, "longrope.*allowed are default, linear"),
        ({"rope_scaling": {"type": "linear"}}, "'factor' is missing"),
        ({"rope_scaling": {"type": "linear", "factor": 0}}, "above 0"),
        ({"rope_scaling": {"type": "llama3", "factor": 8.0}}, "low_freq_factor"),
        ({"partial_rotary_factor": 0.4}, "even number from 2 to 8"),
        ({"partial_rotary_factor": 1.5}, "even number from 2 to 8"),
        ({"rope_scaling": {"type": "default"}, "rope_parameters": {"rope_type": "linear"}}, "differ"),
        ({"rope_parameters": {"full_attention": {"rope_type": "default"}}}, "each layer type"),
        ({"rope_scaling": {"type": "mrope", "mrope_section": [1, 1, 1]}}, "sum to 4"),
        ({"rope_scaling": {"mrope_section": [1, 1, 2], "mrope_interleaved": True}}, "mrope_interleaved"),
    ],
)
def test_impossible_ropes_are_refused(values: dict[str, object], said: str) -> None:
    with pytest.raises(CheckpointError, match=said):
        read(8, 64, **values)


def test_stretched_ropes_extend_the_context_and_others_do_not() -> None:
    dynamic = read(8, 16, rope_scaling={"type": "dynamic", "factor": 3.0})
    yarn = read(8, 32, rope_scaling={"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16})
    linear = read(8, 16, rope_scaling={"type": "linear", "factor": 4.0})
    assert [extended_positions(dynamic, 16), extended_positions(yarn, 32), extended_positions(linear, 16)] == [
        48,
        64,
        16,
    ]
