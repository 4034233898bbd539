from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from outrider import _triton
from outrider.sampling.noise import (
    NoiseStream,
    add_gumbel,
    exponential_noise,
    gumbel_noise,
    is_fused,
    noise_bits,
    uniform_noise,
)
from tests.sampling.toys import chi_square_p, distinct

SEEDS = st.integers(0, 2**63 - 1)
POSITIONS = st.integers(0, 2**31 - 1)
IDS = st.integers(0, 2**20)
KNOWN_BITS = [[4040008268, 2062988911, 4201926804], [2857996348, 2217548774, 3094152002]]


def reference_bits(seed: int, position: int, token: int, stream: int, step: int) -> int:
    """The hash once more, in Python's unbounded integers."""

    def mix(x: int) -> int:
        x ^= x >> 16
        x = x * 0x21F0AAAD % 2**32
        x ^= x >> 15
        x = x * 0x735A2D97 % 2**32
        return x ^ x >> 15

    keys: list[int] = []
    for key in (0x243F6A88, 0x85A308D3):
        for word in (seed % 2**32, seed >> 32, position, stream + 8 * step):
            key = mix(((key ^ word) + 0x9E3779B9) % 2**32)
        keys.append(key)
    return mix((mix(token * 0x5BD1E995 % 2**32) ^ keys[0]) * (keys[1] >> 1 | 1) % 2**32)


@given(SEEDS, POSITIONS, IDS, st.sampled_from(NoiseStream), st.integers(0, 9))
def test_bits_are_those_of_unbounded_integers(
    seed: int, position: int, token: int, stream: NoiseStream, step: int
) -> None:
    bits = noise_bits(torch.tensor([seed]), torch.tensor([position]), torch.tensor([token]), stream=stream, step=step)
    assert int(bits[0, 0]) == reference_bits(seed, position, token, stream, step)


def test_known_bits_never_change() -> None:
    """A seed keeps its text across releases."""
    bits = noise_bits(torch.tensor([0, 42]), torch.tensor([0, 1000]), torch.tensor([0, 1, 128255]))
    assert torch.equal(bits, torch.tensor(KNOWN_BITS))


@given(st.lists(st.tuples(SEEDS, POSITIONS), min_size=2, max_size=5))
def test_a_row_depends_on_nothing_but_its_own_key(rows: list[tuple[int, int]]) -> None:
    seeds, positions = torch.tensor(rows).T
    ids = torch.tensor([3, 99, 4, 1000])
    together = exponential_noise(seeds, positions, 1001)
    for row in range(len(rows)):
        alone = exponential_noise(seeds[row : row + 1], positions[row : row + 1], 1001)
        assert torch.equal(alone[0], together[row])
    reduced = exponential_noise(seeds, positions, len(ids), target_ids=ids)
    assert torch.equal(reduced, together[:, ids])


def test_blocks_do_not_show() -> None:
    seeds = torch.arange(3000)
    noise = exponential_noise(seeds, seeds, 3000)
    for row in (0, 1234, 2999):
        assert torch.equal(noise[row], exponential_noise(seeds[row : row + 1], seeds[row : row + 1], 3000)[0])


def test_gumbel_is_minus_log_of_exponential_and_both_are_finite() -> None:
    seeds, positions = torch.arange(64), torch.arange(64) + 7
    exponential, gumbel = exponential_noise(seeds, positions, 4096), gumbel_noise(seeds, positions, 4096)
    assert bool((exponential > 0).all())
    assert bool(exponential.isfinite().all())
    assert torch.allclose(gumbel, -exponential.log(), atol=1e-6)
    # Small values decide every choice; uniforms of 24 bits would leave no more than 1700 different ones below 1e-4.
    seeds = torch.arange(1000)
    small = exponential_noise(seeds, seeds, 20_000)
    small = small[small < 1e-4]
    assert len(small) > 1700
    assert len(distinct(small)) > 0.99 * len(small)


@pytest.mark.parametrize("places", [1, 3])
def test_sums_are_scores_plus_the_noise_of_each_node(places: int) -> None:
    scores = torch.randn(4, 3, 50, generator=torch.Generator().manual_seed(0))
    before = scores.clone()
    seeds, positions = torch.arange(4) + 7, torch.arange(4 * places).view(4, places) ** 2
    ids, greedy = torch.arange(50) * 31, torch.tensor([False, True, False, False])
    how = NoiseStream.DRAFT
    found = add_gumbel(scores, seeds, positions, stream=how, step=2, target_ids=ids, greedy=greedy)
    everywhere = add_gumbel(scores, seeds, positions, stream=how, step=2, target_ids=ids)
    for row, node in itertools.product(range(4), range(3)):
        place = positions[row, min(node, places - 1)]
        noise = gumbel_noise(seeds[row, None], place[None], 50, stream=how, step=2, target_ids=ids)[0]
        assert torch.equal(everywhere[row, node], scores[row, node] + noise)
        assert torch.equal(found[row, node], scores[row, node] + (0.0 if row == 1 else noise))
    assert torch.equal(scores, before)


def test_no_kernel_serves_a_cpu_and_none_without_what_triton_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not is_fused(torch.device("cpu"))
    monkeypatch.setattr(_triton, "missing", lambda: None)
    assert is_fused(torch.device("cuda"))
    monkeypatch.setattr(_triton, "missing", lambda: "a clause")
    assert not is_fused(torch.device("cuda"))


def ks_statistic(uniforms: Tensor) -> float:
    """sqrt(n) times the largest distance to the uniform distribution; above 1.95 in one of 1000 cases."""
    ordered = uniforms.flatten().double().sort().values
    n = len(ordered)
    grid = torch.arange(n, dtype=torch.float64) / n
    return math.sqrt(n) * float(torch.maximum((ordered - grid).abs(), (ordered - grid - 1 / n).abs()).max())


def cells(noise: Callable[[Tensor, Tensor, Tensor], Tensor]) -> dict[str, Tensor]:
    """200k values of a noise in [0, 1) along each of its arguments, the others held."""
    line, zero, one = torch.arange(200_000), torch.zeros(200_000, dtype=torch.int64), torch.zeros(1, dtype=torch.int64)
    return {
        "ids": noise(one + 5, one + 17, line)[0],
        "positions": noise(zero + 5, line, one + 3)[:, 0],
        "seeds": noise(line, zero + 17, one + 3)[:, 0],
        "high seeds": noise(line << 32, zero + 17, one + 3)[:, 0],
    }


def hashed(seeds: Tensor, positions: Tensor, ids: Tensor) -> Tensor:
    return (noise_bits(seeds, positions, ids) + 0.5) / 2**32


def linear(seeds: Tensor, positions: Tensor, ids: Tensor) -> Tensor:
    """A noise that is no good: words added up and multiplied once."""
    return (((seeds + positions)[:, None] + ids) * 0x21F0AAAD & 0xFFFFFFFF) / 2**32


def faults_of(noise: Callable[[Tensor, Tensor, Tensor], Tensor]) -> list[str]:
    """What is wrong with a noise: its distribution along each argument, or neighbours that know of each other."""
    found: list[str] = []
    for name, values in cells(noise).items():
        if ks_statistic(values) > 1.95:
            found.append(f"{name}: not uniform")
        for lag in (1, 2, 8, 64):
            correlation = torch.corrcoef(torch.stack([values[:-lag], values[lag:]]))[0, 1]
            if abs(float(correlation)) * math.sqrt(len(values)) > 4:
                found.append(f"{name}: neighbours at {lag} correlate")
    seeds, positions = (v.flatten() for v in torch.meshgrid(torch.arange(300), torch.arange(300), indexing="ij"))
    winners = noise(seeds, positions, torch.arange(8)).argmin(dim=1).view(300, 300)
    for name, pairs in {
        "positions": winners[:, :-1] * 8 + winners[:, 1:],
        "seeds": winners[:-1] * 8 + winners[1:],
        "diagonal": winners[:-1, 1:] * 8 + winners[1:, :-1],
    }.items():
        counts = torch.bincount(pairs.flatten(), minlength=64)
        if chi_square_p(counts, torch.full((64,), pairs.numel() / 64)) < 1e-4:
            found.append(f"{name}: winners of neighbours depend on each other")
    return found


def test_noise_has_the_right_distribution_and_independent_neighbours() -> None:
    assert faults_of(hashed) == []


def test_the_checks_of_noise_can_fail() -> None:
    found = faults_of(linear)
    assert any("correlate" in fault for fault in found)
    assert any("depend" in fault for fault in found)


def test_streams_steps_and_uniforms_are_independent() -> None:
    seeds = torch.arange(100_000)
    positions = torch.full_like(seeds, 12)
    draws = [uniform_noise(seeds, positions, s, step=k)[:, 0] for s, k in itertools.product(NoiseStream, (0, 1, 2))]
    draws += list(uniform_noise(seeds, positions, NoiseStream.ACCEPT, 4).T[1:])
    correlations = torch.corrcoef(torch.stack(draws)).fill_diagonal_(0.0)
    assert float(correlations.abs().max()) * math.sqrt(len(seeds)) < 4.5
    for draw in draws:
        assert ks_statistic(draw) < 2.2
        assert bool(((draw > 0) & (draw < 1)).all())


@pytest.mark.parametrize("argument", ["seed", "position", "id"])
def test_every_input_bit_reaches_every_output_bit(argument: str) -> None:
    """Avalanche: a flipped bit flips each output bit in half of the cases."""
    generator = torch.Generator().manual_seed(0)
    base = torch.randint(0, 2**31, (3, 4000), generator=generator)
    for bit in range(0, 62 if argument == "seed" else 31, 3):
        flipped = base.clone()
        row = {"seed": 0, "position": 1, "id": 2}[argument]
        flipped[row] ^= 1 << bit
        changed = each(base) ^ each(flipped)
        rates = torch.stack([(changed >> out & 1).double().mean() for out in range(32)])
        assert float((rates - 0.5).abs().max()) < 0.05, (bit, rates)


def each(words: Tensor) -> Tensor:
    """Bits of 4000 (seed, position, id) triples: the diagonal of what `noise_bits` gives, block by block."""
    blocks = [words[:, start : start + 200] for start in range(0, words.shape[1], 200)]
    return torch.cat([noise_bits(*block).diagonal() for block in blocks])
