from __future__ import annotations

import pytest
import torch
from attrs import evolve

from outrider.binding import check_attention
from outrider.types import AttentionSpec, AttnCapabilities, CaptureSupport

CPU = torch.device("cpu")
NARROW = AttnCapabilities(
    name="narrow",
    devices=frozenset({"cuda"}),
    dtypes=frozenset({torch.float16, torch.bfloat16}),
    page_sizes=frozenset({32, 16}),
    head_dims=frozenset({128, 64}),
    tree_masks=False,
    windows=False,
    soft_cap=False,
    sinks=False,
    capture=CaptureSupport.NONE,
)
PLAIN = AttentionSpec(4, 2, 64, 0.125)
WIDE = AttentionSpec(4, 2, 96, 0.125, window=5, soft_cap=2.0, sinks=torch.zeros(4))
CUDA = torch.device("cuda", 0)


def test_what_fits_has_no_problems() -> None:
    assert check_attention(NARROW, [PLAIN, evolve(PLAIN, head_dim=128)], torch.float16, CUDA, 16, False) == []


def test_every_problem_at_once_and_both_sides_named() -> None:
    problems = check_attention(NARROW, [PLAIN, WIDE, PLAIN, WIDE], torch.float32, CPU, 4, True)
    expected = [
        ("is on cpu", "runs on cuda"),
        ("torch.float32", "torch.bfloat16, torch.float16"),
        ("page size is 4", "16, 32"),
        ("proposes trees", "no tree masks"),
        ("layers 1, 3: head_dim 96", "64, 128"),
        ("layers 1, 3: a sliding window", "has none"),
        ("layers 1, 3: a soft cap", "has none"),
        ("layers 1, 3: attention sinks", "has none"),
    ]
    assert len(problems) == len(expected)
    for problem, (asked, has) in zip(problems, expected, strict=True):
        assert asked in problem
        assert has in problem
        assert "'narrow'" in problem


@pytest.mark.parametrize(
    ("change", "spec"),
    [
        ({"windows": True}, evolve(PLAIN, window=5)),
        ({"soft_cap": True}, evolve(PLAIN, soft_cap=1.0)),
        ({"sinks": True}, evolve(PLAIN, sinks=torch.zeros(4))),
        ({"head_dims": None}, evolve(PLAIN, head_dim=48)),
    ],
    ids=["windows", "soft_cap", "sinks", "head_dims"],
)
def test_one_declared_capability_lifts_one_problem(change: dict[str, bool | None], spec: AttentionSpec) -> None:
    assert len(check_attention(NARROW, [PLAIN, spec], torch.float16, CUDA, 16, False)) == 1
    able = AttnCapabilities(
        name="able",
        devices=NARROW.devices,
        dtypes=NARROW.dtypes,
        page_sizes=NARROW.page_sizes,
        head_dims=None if "head_dims" in change else NARROW.head_dims,
        tree_masks=False,
        windows="windows" in change,
        soft_cap="soft_cap" in change,
        sinks="sinks" in change,
        capture=CaptureSupport.NONE,
    )
    assert check_attention(able, [PLAIN, spec], torch.float16, CUDA, 16, False) == []


def test_layers_are_named_briefly() -> None:
    windowed = evolve(PLAIN, window=7)
    (every,) = check_attention(NARROW, [windowed] * 40, torch.float16, CUDA, 16, False)
    assert every.startswith("every layer: ")
    (many,) = check_attention(NARROW, [PLAIN, *[windowed] * 12], torch.float16, CUDA, 16, False)
    assert many.startswith("layers 1, 2, 3, 4, 5, 6, 7, 8 and 4 more: ")
    (one,) = check_attention(NARROW, [PLAIN, windowed], torch.float16, CUDA, 16, False)
    assert one.startswith("layer 1: ")


def test_query_heads_must_share_kv_heads_evenly() -> None:
    (problem,) = check_attention(NARROW, [evolve(PLAIN, num_heads=5)], torch.float16, CUDA, 16, False)
    assert "5 query heads over 2 kv heads" in problem
