"""The same model on a CUDA device, which takes other norms, and its passes inside a CUDA graph."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from outrider.types import HiddenTap, StackInputs
from tests.adapters.llama.reference import HubModel, Sequence, load, tokens

pytestmark = pytest.mark.gpu

MODELS: list[tuple[str, dict[str, object]]] = [
    ("llama", {"attention_bias": True, "mlp_bias": True}),
    ("llama", {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0}, "max_position_embeddings": 8}),
    ("qwen3", {"head_dim": 16, "tie_word_embeddings": True}),
]


def echo(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return q


@pytest.mark.parametrize(("model_type", "settings"), MODELS)
def test_logits_equal_those_on_the_cpu(model_type: str, settings: dict[str, object], tmp_path: Path) -> None:
    directory = HubModel(model_type, **settings).save(tmp_path)
    here, there = Sequence(load(directory)), Sequence(load(directory, device=torch.device("cuda")))
    for piece in (tokens(12), tokens(1, seed=1), tokens(5, seed=2)):
        torch.testing.assert_close(there.logits(piece).cpu(), here.logits(piece), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(("model_type", "settings"), MODELS)
def test_a_captured_pass_follows_its_inputs(model_type: str, settings: dict[str, object], tmp_path: Path) -> None:
    stack = load(HubModel(model_type, **settings).save(tmp_path), device=torch.device("cuda")).stack
    ids, positions = torch.tensor([5, 9, 11], device="cuda"), torch.tensor([0, 1, 2], device="cuda")
    lengths = positions + 1
    inputs = StackInputs(positions, echo, (HiddenTap(1),), lengths if stack.spec.positions.needs_lengths else None)

    def run() -> tuple[Tensor, Tensor]:
        output = stack.run_layers(stack.embed(ids), inputs)
        return stack.logits(output.hidden), output.taps[0]

    with torch.inference_mode():
        run()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            captured = run()
        for seed in range(3):
            ids.copy_(torch.tensor(tokens(3, seed)))
            positions.copy_(torch.tensor([seed, 7 + seed, 12 - seed]))
            lengths.copy_(positions + 1)
            graph.replay()
            torch.cuda.synchronize()
            for found, expected in zip(captured, run(), strict=True):
                torch.testing.assert_close(found, expected)
