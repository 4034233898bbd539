"""The same noise and choices on a GPU, in captures and in any batch."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from outrider.sampling import choose_tokens
from outrider.sampling._noise_torch import DTYPES, NoiseKey, draw
from outrider.sampling.noise import (
    NoiseStream,
    add_gumbel,
    exponential_noise,
    gumbel_noise,
    is_fused,
    noise_bits,
    uniform_noise,
)
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


def test_the_kernel_gives_what_torchs_operators_give_on_the_card() -> None:
    assert is_fused(torch.device("cuda"))
    seeds, positions = keys("cuda")
    ids = torch.arange(128256, device="cuda").flip(0)
    key = NoiseKey(seeds, positions, NoiseStream.RESIDUAL + 8 * 3)
    found = {
        "bits": noise_bits(seeds, positions, ids, stream=NoiseStream.RESIDUAL, step=3),
        "uniform": uniform_noise(seeds, positions, NoiseStream.RESIDUAL, 7, step=3),
        "exponential": exponential_noise(seeds, positions, 128256, stream=NoiseStream.RESIDUAL, step=3, target_ids=ids),
        "gumbel": gumbel_noise(seeds, positions, 128256, stream=NoiseStream.RESIDUAL, step=3, target_ids=ids),
    }
    for kind in DTYPES:
        width = found[kind].shape[1]
        expected = draw(kind, key, width, None if kind == "uniform" else ids)
        assert found[kind].dtype == expected.dtype
        assert int((found[kind] != expected).sum()) <= (0 if kind in ("bits", "uniform") else 2)


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


def test_one_run_outside_of_a_capture_serves_other_streams_steps_and_numbers_of_nodes() -> None:
    """What a capture meets for the first time must not be compiled there."""
    seeds, positions = keys("cuda")
    greedy = seeds % 2 == 0
    scores = torch.randn(32, 5, 32000, device="cuda")
    add_gumbel(scores, seeds, positions[:, None] + torch.arange(5, device="cuda"), greedy=greedy)
    torch.cuda.synchronize()

    def later() -> list[Tensor]:
        found = [
            add_gumbel(scores[:, :nodes], seeds, positions[:, None], stream=stream, step=step, greedy=greedy)
            for nodes in (1, 2, 5)
            for stream, step in ((NoiseStream.DRAFT, 0), (NoiseStream.TARGET, 2), (NoiseStream.RESIDUAL, 1))
        ]
        # Rows of an engine's tensors stand where no block of memory begins.
        return [*found, add_gumbel(scores[1:], seeds[1:], positions[1:, None], greedy=greedy[1:])]

    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = later()
    positions += 5
    graph.replay()
    for one, other in zip(captured, later(), strict=True):
        assert torch.equal(one, other)


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
