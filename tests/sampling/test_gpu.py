"""The same noise, choices and captures on a GPU. Imports nothing that a machine for GPU tests alone would lack."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from outrider.sampling.noise import exponential_noise, gumbel_noise, noise_bits

pytestmark = pytest.mark.gpu


def keys(device: str) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    seeds = torch.randint(0, 2**62, (32,), generator=generator)
    positions = torch.randint(0, 2**20, (32,), generator=generator)
    return seeds.to(device), positions.to(device)


def test_bits_and_noise_are_those_of_the_cpu() -> None:
    ids = torch.arange(128256)
    host, device = noise_bits(*keys("cpu"), ids), noise_bits(*keys("cuda"), ids.cuda())
    assert torch.equal(host, device.cpu())
    for noise in (exponential_noise, gumbel_noise):
        ours, theirs = noise(*keys("cpu"), 128256), noise(*keys("cuda"), 128256).cpu()
        # float64 logarithms may differ in their last bit; that survives rounding about once in 2**29 values.
        assert int((ours != theirs).sum()) <= 2


def test_captured_noise_is_eager_noise() -> None:
    seeds, positions = keys("cuda")
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        gumbel_noise(seeds, positions, 32000)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = gumbel_noise(seeds, positions, 32000)
    positions += 5
    graph.replay()
    assert torch.equal(captured, gumbel_noise(seeds, positions, 32000))
