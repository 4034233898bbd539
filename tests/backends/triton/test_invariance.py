"""A request's output does not depend, to the bit, on anything but itself."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from outrider.types import AttentionSpec
from outrider_backends.triton import create, tiling
from tests.backends.triton.scenes import Scene, make_scene, needs_interpreter, pick, rows_of_request, run, with_padding

pytestmark = needs_interpreter

BACKEND = create()
SPECS = (AttentionSpec(4, 1, 16, 0.25), AttentionSpec(4, 1, 32, 0.2, window=70, soft_cap=4.0))

SCENES: dict[str, Callable[[AttentionSpec, torch.dtype], Scene]] = {
    "decode": lambda spec, dtype: make_scene(spec, (3, 129, 300), (1, 1, 1), dtype=dtype),
    "tree": lambda spec, dtype: make_scene(spec, (150, 0), (7, 7), dtype=dtype, tree=True),
    "ragged": lambda spec, dtype: make_scene(spec, (0, 150, 7), (9, 3, 1), dtype=dtype),
}


def differing(scene: Scene, whole: Tensor, rows: list[int], other: Tensor) -> list[int]:
    """Requests of ``rows`` that ``other`` (which has these alone, in this order) gives otherwise than ``whole``."""
    wanted = [whole[rows_of_request(scene, row)] for row in rows]
    found: list[Tensor] = []
    for each in wanted:
        first = sum(map(len, found))
        found.append(other[first : first + len(each)])
    return [row for row, one, two in zip(rows, wanted, found, strict=True) if not torch.equal(one, two)]


@pytest.mark.parametrize("name", SCENES)
@pytest.mark.parametrize(
    ("spec", "dtype"), [(SPECS[0], torch.float32), (SPECS[1], torch.float16)], ids=("plain", "windowed")
)
def test_neighbours_bounds_and_padding_change_no_bit(name: str, spec: AttentionSpec, dtype: torch.dtype) -> None:
    scene = SCENES[name](spec, dtype)
    whole = run(BACKEND, scene)
    count = len(scene.batch.query_lens)
    for row in range(count):
        assert not differing(scene, whole, [row], run(BACKEND, pick(scene, [row])))
    # Another order, and a bound of the whole context, as a graph is captured with that serves every length.
    assert not differing(scene, whole, [1, 0], run(BACKEND, pick(scene, [1, 0], max_length=32_000, width=2_000)))
    if scene.batch.uniform_queries is not None:
        padded = run(BACKEND, with_padding(scene))
        assert torch.equal(padded[scene.batch.query_lens[0] :], whole)
        assert not padded[: scene.batch.query_lens[0]].any()


def test_other_splits_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bits do depend on where a request is split, so the equalities above are no accident."""
    scene = SCENES["decode"](SPECS[0], torch.float32)
    whole = run(BACKEND, scene)
    monkeypatch.setattr(tiling, "CHUNK_KEYS", 64)
    assert differing(scene, whole, [0, 1, 2], run(BACKEND, scene))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize("window", [None, 1, 100, 5000])
def test_the_grid_holds_every_split_that_a_length_needs(dtype: torch.dtype, window: int | None) -> None:
    """Whatever bound at or above its length a request is planned with, its splits are those that its length gives."""
    for rows, kv_heads in ((4, 8), (64, 8), (40, 1), (1024, 2)):
        size = tiling.tiling_for(rows, None, 128, dtype)
        most = tiling.most_splits(kv_heads, rows, size)
        for length in (0, 1, 127, 128, 129, 1000, 2048, 2049, 5000, 131_072):
            reach = length if window is None else min(length, window - 1 + size.keys - 1)
            tiles = -(-reach // size.keys)
            wanted = split_count(tiles, most, size.keys)
            for bound in (length, length + 1, length + 64, 2 * length, 131_072):
                offered = tiling.num_splits(bound, window, most, size)
                assert offered <= most
                assert split_count(tiles, min(most, offered), size.keys) == wanted


def split_count(tiles: int, most: int, keys: int) -> int:
    """What the kernel computes of a prefix of ``tiles`` tiles."""
    share = max(-(-tiles // most), tiling.CHUNK_KEYS // keys)
    return max(-(-tiles // share), 1)
