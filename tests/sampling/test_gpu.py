"""The same noise and choices on a GPU, in captures and in any batch."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from outrider.sampling import choose_tokens
from outrider.sampling.noise import exponential_noise, gumbel_noise, noise_bits
from outrider.types import SamplingFeatures, SamplingParams
from tests.sampling.toys import decode_state, on_device, rows_of

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


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_greedy_choice_is_that_of_the_cpu(dtype: torch.dtype) -> None:
    """Of equal logits the lowest id, and a row with NaN or infinity is told, though the card looks for it otherwise."""
    rows, vocab = 6, 128256
    logits = torch.randn(rows, 1, vocab, generator=torch.Generator().manual_seed(4)).to(dtype)
    logits[1, 0, 5000:] = logits[1].amax()
    logits[2, 0, 77], logits[3, 0, 100000], logits[4, 0, 1:] = torch.nan, torch.inf, -torch.inf
    logits[5] = -torch.inf
    state = decode_state([[1]] * rows, [SamplingParams()] * rows, vocab, features=SamplingFeatures())
    ours, theirs = choose_tokens(logits, state), choose_tokens(logits.cuda(), on_device(state, "cuda"))
    assert torch.equal(theirs.tokens.cpu(), ours.tokens)
    assert torch.equal(theirs.finite.cpu(), ours.finite)
    assert torch.equal(ours.finite.flatten(), torch.tensor([True, True, False, False, True, False]))


def test_captured_noise_is_eager_noise() -> None:
    seeds, positions = keys("cuda")
    gumbel_noise(seeds, positions, 32000)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = gumbel_noise(seeds, positions, 32000)
    positions += 5
    graph.replay()
    assert torch.equal(captured, gumbel_noise(seeds, positions, 32000))


def test_a_seed_gives_the_same_token_in_any_batch_with_a_large_vocabulary() -> None:
    """Sort, softmax and cumulative sums choose their kernels by shape; the token must not notice."""
    vocab, rows = 32000, 24
    params = [
        SamplingParams(temperature=0.9, top_p=0.95, top_k=(0, 40)[r % 2], min_p=0.01, seed=r) for r in range(rows)
    ]
    features = SamplingFeatures(sampled=True, top_k=True, top_p=True, min_p=True)
    state = decode_state([[1, 2]] * rows, params, vocab, features=features)
    logits = torch.randn(rows, 1, vocab, generator=torch.Generator().manual_seed(0)) * 3
    # Coarse logits, as of bfloat16 heads, make ties where a filter ends.
    logits = logits.to(torch.bfloat16).cuda()
    whole = choose_tokens(logits, on_device(state, "cuda")).tokens
    for row in range(rows):
        alone = rows_of(state, [row])
        assert torch.equal(choose_tokens(logits[[row]], on_device(alone, "cuda")).tokens, whole[[row]])
