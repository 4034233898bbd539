"""Blocks and whole models with the kernels compute what they do without, and leave alone what they are given."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from outrider.checkpoint import Checkpoint
from outrider.interfaces import LoadOptions, ModelPair
from outrider.types import AttentionSpec, HiddenTap, RopeSpec, StackInputs
from outrider_adapters.eagle import Eagle3Loader, EagleLoader
from outrider_adapters.eagle.layer import DraftLayer
from outrider_adapters.llama import LlamaLoader
from outrider_adapters.nn import ACTIVATIONS, FusedAttention, GatedMlp, HeadNorms, JoinedNorms, RmsNorm, Rope
from tests.adapters.nn.fused.common import DEVICE, HERE, values

pytestmark = HERE  # which is mark.gpu where there is a device

ROWS, HIDDEN, INNER = 4, 24, 40
SPEC = AttentionSpec(num_heads=4, num_kv_heads=2, head_dim=8, scale=0.5)
F32 = torch.float32


def mix(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """No attention, but each of the three counts."""
    return q + (0.5 * k - v).repeat_interleave(q.shape[1] // k.shape[1], dim=1)


def rotation(rows: int, dim: int = 8) -> tuple[Tensor, Tensor]:
    return Rope(RopeSpec("default", 100.0, dim), 64, DEVICE, F32).rotation(torch.arange(rows, device=DEVICE), None)


@pytest.fixture
def choose(monkeypatch: pytest.MonkeyPatch) -> Callable[[bool], None]:
    """Says whether what is built from now on has kernels, wherever it is."""

    def set_to(fused: bool) -> None:
        def serves(weight: Tensor) -> bool:
            return fused

        monkeypatch.setattr("outrider_adapters.nn.fused.choice.serves", serves)

    return set_to


def assert_equal_sums(found: tuple[Tensor, Tensor], expected: tuple[Tensor, Tensor]) -> None:
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("rows", [1, ROWS])
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("normed", [False, True])
def test_attention_with_kernels(normed: bool, biased: bool, rows: int, choose: Callable[[bool], None]) -> None:
    x, residual = values(F32, rows, HIDDEN), values(F32, rows, 12, seed=1)
    before = x.clone(), residual.clone()
    cos, sin = rotation(rows, 4)

    def run() -> tuple[Tensor, Tensor]:
        head_norms = HeadNorms(values(F32, 8), values(F32, 8, seed=1), 4, 2, 1e-6) if normed else None
        qkv_bias, o_bias = (values(F32, 64), values(F32, 12)) if biased else (None, None)
        block = FusedAttention(SPEC, values(F32, 64, HIDDEN), values(F32, 12, 32), qkv_bias, o_bias, head_norms)
        total, norm = block.forward_and_norm(x, 3, cos, sin, mix, residual, RmsNorm(values(F32, 12, seed=5), 1e-6))
        torch.testing.assert_close(total, block.forward(x, 3, cos, sin, mix, residual))
        torch.testing.assert_close(total, block.forward(x, 3, cos, sin, mix) + residual)
        return total, norm

    choose(False)
    expected = run()
    choose(True)
    assert_equal_sums(run(), expected)
    assert torch.equal(x, before[0])
    assert torch.equal(residual, before[1])


@pytest.mark.parametrize("rows", [1, ROWS])
@pytest.mark.parametrize("name", ["silu", "gelu", "gelu_new", "quick_gelu", "relu"])
def test_feed_forward_with_kernels(name: str, rows: int, choose: Callable[[bool], None]) -> None:
    x, residual = values(F32, rows, HIDDEN), values(F32, rows, HIDDEN, seed=1)
    before = x.clone(), residual.clone()

    def run() -> tuple[Tensor, Tensor]:
        block = GatedMlp(ACTIVATIONS[name], values(F32, 2 * INNER, HIDDEN), values(F32, HIDDEN, INNER))
        total, norm = block.forward_and_norm(x, residual, RmsNorm(values(F32, HIDDEN), 1e-6))
        torch.testing.assert_close(total, block.forward(x, residual))
        torch.testing.assert_close(total, block.forward(x) + residual, atol=1e-5, rtol=1e-5)
        return total, norm

    choose(False)
    total, norm = run()
    choose(True)
    found = run()
    torch.testing.assert_close(found[0], total, atol=1e-4, rtol=1e-5)
    torch.testing.assert_close(found[1], norm, atol=1e-5, rtol=1e-5)
    assert torch.equal(x, before[0])
    assert torch.equal(residual, before[1])


def test_norms_side_by_side_with_kernels(choose: Callable[[bool], None]) -> None:
    wide = values(F32, ROWS, 30)
    parts = wide[:, 4:12], wide[:, 12:30]

    def run() -> Tensor:
        return JoinedNorms([RmsNorm(values(F32, 8), 1e-6), RmsNorm(values(F32, 18), 1e-2)])(*parts)

    choose(False)
    expected = run()
    choose(True)
    torch.testing.assert_close(run(), expected)


@pytest.mark.parametrize("normed_residual", [False, True])
@pytest.mark.parametrize("form", ["joined", "ordinary", "without input norm"])
def test_draft_layers_with_kernels(form: str, normed_residual: bool, choose: Callable[[bool], None]) -> None:
    embeds, hidden = values(F32, ROWS, HIDDEN), values(F32, ROWS, HIDDEN, seed=1)
    before = embeds.clone(), hidden.clone()
    cos, sin = rotation(ROWS)
    width = 2 * HIDDEN if form == "joined" else HIDDEN

    def norm(seed: int) -> RmsNorm:
        return RmsNorm(values(F32, HIDDEN, seed=seed), 1e-6)

    def run() -> tuple[Tensor, Tensor]:
        layer = DraftLayer(
            0,
            FusedAttention(SPEC, values(F32, 64, width), values(F32, HIDDEN, 32)),
            GatedMlp(ACTIVATIONS["silu"], values(F32, 2 * INNER, HIDDEN), values(F32, HIDDEN, INNER)),
            norm(2),
            None if form == "without input norm" else norm(3),
            norm(4) if form == "joined" else None,
            normed_residual,
        )
        total, normed = layer.forward_and_norm(embeds, hidden, cos, sin, mix, norm(5))
        torch.testing.assert_close(total, layer.forward(embeds, hidden, cos, sin, mix))
        return total, normed

    choose(False)
    total, normed = run()
    choose(True)
    found = run()
    torch.testing.assert_close(found[0], total, atol=1e-3, rtol=1e-5)
    torch.testing.assert_close(found[1], normed, atol=1e-4, rtol=1e-5)
    assert torch.equal(embeds, before[0])
    assert torch.equal(hidden, before[1])


def test_the_trained_models_with_kernels(tiny_pair: ModelPair, choose: Callable[[bool], None]) -> None:
    """Logits, taps and drafts of the small pair; no tap is changed after it was taken."""
    ids, positions = torch.tensor([5, 901], device=DEVICE), torch.arange(2, device=DEVICE)
    options = LoadOptions(DEVICE, F32)

    def run() -> list[Tensor]:
        target = LlamaLoader().load(Checkpoint(tiny_pair.target), options)
        taps = tuple(HiddenTap(boundary) for boundary in (0, 2, 5, 8, None))
        hidden = target.stack.embed(ids)
        before = hidden.clone()
        output = target.stack.run_layers(hidden, StackInputs(positions, mix, taps))
        assert output.taps[0] is hidden
        assert torch.equal(hidden, before)
        results = [target.stack.logits(output.hidden), *output.taps]
        for loader, directory in zip((Eagle3Loader(), EagleLoader()), tiny_pair.drafts, strict=True):
            draft = loader.load(Checkpoint(directory), options).bind(target)
            fed = values(F32, 2, draft.spec.feature_width)
            extended = draft.extend(draft.embed(ids), fed, StackInputs(positions, mix))
            stepped = draft.step(draft.embed(ids), extended.state, StackInputs(positions + 1, mix))
            results += [draft.logits(extended.hidden), draft.logits(stepped.hidden)]
        return results

    with torch.inference_mode():
        choose(False)
        expected = run()
        choose(True)
        for found, wanted in zip(run(), expected, strict=True):
            torch.testing.assert_close(found, wanted, atol=2e-3, rtol=1e-4)
