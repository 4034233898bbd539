"""The noise kernel against torch's operators on a CPU, bit for bit.

It runs in Triton's interpreter, and as Triton compiles it where there is a card.
"""

from __future__ import annotations

import pytest
import torch
from attrs import evolve
from torch import Tensor

from outrider.sampling._noise_torch import DTYPES, NoiseKey, NoiseKind, draw

pytest.importorskip("triton", reason="the noise kernel needs Triton")

# Below what needs Triton, since it imports it.
from outrider.sampling._noise_launch import launch_noise, launch_sum

# The interpreter is built on numpy, which warns of infinities and NaN.
pytestmark = (
    pytest.mark.gpu if torch.cuda.is_available() else pytest.mark.filterwarnings("ignore::RuntimeWarning:triton.*")
)

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
EDGES = [0, 1, 2**16, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**63 - 1]
WIDTH = 1500
KINDS = list(DTYPES)


def integers(most: int, count: int, seed: int) -> Tensor:
    return torch.randint(0, most, (count,), generator=torch.Generator().manual_seed(seed))


def key_of(word: int = 0) -> NoiseKey:
    """Edges of both words beside each other, and some of anything."""
    seeds = torch.tensor(EDGES + EDGES)
    positions = torch.tensor((EDGES[:6] + EDGES[:6])[::-1] + EDGES[2:6])
    return NoiseKey(torch.cat([seeds, integers(2**62, 4, 0)]), torch.cat([positions, integers(2**31, 4, 1)]), word)


IDS = torch.cat([torch.tensor(EDGES[:6]), integers(2**18, 100, 2)])
SCORES = torch.randn(9, 2, WIDTH, generator=torch.Generator().manual_seed(3))
GREEDY = torch.arange(9) % 4 == 1


def there(key: NoiseKey) -> NoiseKey:
    return evolve(key, seeds=key.seeds.to(DEVICE), positions=key.positions.to(DEVICE))


def launched(kind: NoiseKind, key: NoiseKey, width: int, ids: Tensor | None) -> Tensor:
    return launch_noise(kind, there(key), width, None if ids is None else ids.to(DEVICE)).cpu()


@pytest.mark.parametrize("word", [0, 3 + 8 * 7, 2**31 - 1])
@pytest.mark.parametrize("kind", KINDS)
def test_words_and_values_are_those_of_torch(kind: NoiseKind, word: int) -> None:
    found = launched(kind, key_of(word), len(IDS), IDS)
    assert found.dtype == DTYPES[kind]
    assert torch.equal(found, draw(kind, key_of(word), len(IDS), IDS))


@pytest.mark.parametrize("width", [1, 512, WIDTH])
@pytest.mark.parametrize("kind", KINDS)
def test_without_ids_columns_count_across_blocks(kind: NoiseKind, width: int) -> None:
    key = NoiseKey(integers(2**62, 3, 4), integers(2**20, 3, 5), 1)
    assert torch.equal(launched(kind, key, width, None), draw(kind, key, width, None))


@pytest.mark.parametrize("argument", ["seeds", "high seeds", "positions", "word", "ids"])
def test_no_word_of_the_counter_is_overlooked(argument: str) -> None:
    """Values that differ from the kernel's in one word are others, in every row."""
    key, ids = key_of(), IDS
    match argument:
        case "seeds":
            key = evolve(key, seeds=key.seeds ^ 1)
        case "high seeds":
            key = evolve(key, seeds=key.seeds ^ 2**32)
        case "positions":
            key = evolve(key, positions=key.positions ^ 1)
        case "word":
            key = evolve(key, word=1)
        case _:
            ids = ids ^ 1
    differs = launched("gumbel", key_of(), len(IDS), IDS) != draw("gumbel", key, len(IDS), ids)
    assert float(differs.double().mean(dim=1).min()) > 0.99


@pytest.mark.parametrize("greedy", [None, GREEDY])
@pytest.mark.parametrize("shared", [False, True])
def test_sums_are_scores_plus_noise(shared: bool, greedy: Tensor | None) -> None:
    """Also where a block of columns, a row or a whole request is filtered out, or is NaN."""
    scores = SCORES.clone()
    scores[0, :, 1024:] = scores[2, :, :1024] = scores[3, 1] = scores[4] = -torch.inf
    scores[6, 1], scores[7, 0, 5], scores[8, 0, :1030] = torch.nan, torch.inf, -0.0
    batch, nodes, _ = scores.shape
    seeds, positions = integers(2**62, batch, 6), integers(2**20, batch * (1 if shared else nodes), 7)
    each = positions.repeat_interleave(nodes) if shared else positions
    noise = draw("gumbel", NoiseKey(seeds.repeat_interleave(nodes), each, 2), WIDTH, None).view(scores.shape)
    if greedy is not None:
        noise[greedy] = 0.0
    found = launch_sum(
        scores.to(DEVICE),
        there(NoiseKey(seeds, positions, 2)),
        None,
        None if greedy is None else greedy.to(DEVICE),
        nodes_per_position=nodes if shared else 1,
    ).cpu()
    torch.testing.assert_close(found, scores + noise, rtol=0.0, atol=0.0, equal_nan=True)


def test_scores_may_be_a_view_and_are_left_as_they_are() -> None:
    wide = torch.randn(2, 3, 80, generator=torch.Generator().manual_seed(8)).to(DEVICE)
    before = wide.clone()
    key, ids = there(NoiseKey(integers(2**62, 2, 9), integers(2**20, 6, 10), 0)), IDS[:40].to(DEVICE)
    found = launch_sum(wide[:, :, ::2], key, ids, None, nodes_per_position=1)
    assert torch.equal(found, launch_sum(wide[:, :, ::2].clone(), key, ids, None, nodes_per_position=1))
    assert torch.equal(wide, before)


@pytest.mark.parametrize("shape", [(0, 3, 7), (2, 0, 7), (2, 3, 0)])
def test_nothing_is_launched_for_nothing(shape: tuple[int, int, int]) -> None:
    scores = torch.empty(shape, device=DEVICE)
    key = there(NoiseKey(integers(9, shape[0], 0), integers(9, shape[0] * shape[1], 0), 0))
    assert launch_sum(scores, key, None, None, nodes_per_position=1).shape == shape
