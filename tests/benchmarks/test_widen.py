"""A widened pair is the pair: number for number, text for text; and each way to get the widening wrong is noticed."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Mapping
from functools import cache, cached_property
from pathlib import Path
from typing import Protocol, cast

import pytest
import torch
from attrs import evolve
from torch import Tensor, nn
from transformers import LlamaForCausalLM

from benchmarks._bandwidth import weight_bytes_per_round
from benchmarks._cases import chain_lengths, greedy_cases
from benchmarks._widen_check import Differences, chain, compare, texts_and_lengths
from benchmarks._widen_files import WideCheckpoint, WideFiles
from benchmarks.widen import LLAMA_8B, SMALL, WidenSpec, build, checkpoints, load, main, write
from outrider.checkpoint import Checkpoint, TensorFiles
from outrider.errors import CheckpointError, ConfigurationError
from outrider.interfaces import BoundDraft, LoadOptions, ModelPair, Target
from outrider.types import HiddenTap
from outrider_adapters.pairs import tiny

CPU = torch.device("cpu")
CASES = greedy_cases()
TEXTS = [case.prompt + case.continuation for case in CASES[2:4]]

SAME = WidenSpec("same", 256, 8, 4, 2, 64, 704, 4096, 1536, 704)
ODD = WidenSpec("odd", 301, 13, 12, 3, 192, 705, 4097, 1537, 706)
"""Nothing is a power of two; heads three times as wide, of four a kv head."""
FULL_DRAFT = evolve(SAME, name="full draft", draft_vocab=4096, layers=16, q_heads=6, kv_heads=3)


@cache
def small_pair() -> tuple[Target, BoundDraft]:
    """The pair itself, in float64."""
    return load(Checkpoint(tiny().target), Checkpoint(tiny().drafts[0]), LoadOptions(CPU, torch.float64))


def is_the_pair(found: Differences) -> bool:
    """Whether float64 differences are those of rounding, and padding never wins."""
    same = max(found.logits, found.draft_logits) < 1e-10 and found.stray == 0.0
    return same and min(found.margin, found.draft_margin) > 0


@pytest.mark.parametrize("spec", [SMALL, SAME, ODD, FULL_DRAFT], ids=lambda spec: spec.name)
def test_every_number_is_that_of_the_pair(spec: WidenSpec) -> None:
    found = compare(small_pair(), build(spec, CPU, torch.float64), TEXTS)
    assert is_the_pair(found), found
    if spec.vocab > SAME.vocab:
        assert found.padding_share > 0.0


Change = Callable[[str, Tensor], Tensor]


class AlteredFiles(TensorFiles):
    """The tensors of another checkpoint, each changed when it is read."""

    def __init__(self, inner: WideFiles, change: Change) -> None:
        self._inner, self._change = inner, change
        self.infos = inner.infos

    def read(self, name: str) -> Tensor:
        return self._change(name, self._inner.read(name))


class Altered(Checkpoint):
    """A widened checkpoint with something wrong."""

    def __init__(self, inner: WideCheckpoint, change: Change, settings: Mapping[str, object]) -> None:
        super().__init__(inner.directory)
        self._altered = AlteredFiles(inner.files, change)
        self.config = evolve(inner.config, values={**inner.config.values, **settings})

    @cached_property
    def files(self) -> TensorFiles:
        return self._altered


def only(ending: str, change: Callable[[Tensor], Tensor]) -> Change:
    """``change`` for tensors whose names end so."""
    return lambda name, tensor: change(tensor) if name.endswith(ending) else tensor


def neighbouring_pairs(weight: Tensor) -> Tensor:
    """Rotary pairs one beside the other, as they lie in the small heads."""
    heads = weight.view(-1, 2, SMALL.head_dim // 4, 2, weight.shape[1])
    return torch.cat((heads[:, :, :, 0], torch.zeros_like(heads[:, :, :, 0])), dim=2).reshape(weight.shape)


def next_head(name: str, tensor: Tensor) -> Tensor:
    """Each query head one further, so that every second one reads the keys of another."""
    if name.endswith("q_proj.weight"):
        return tensor.roll(SMALL.head_dim, 0)
    return tensor.roll(SMALL.head_dim, 1) if name.endswith("o_proj.weight") else tensor


def taps_side_by_side(fc: Tensor) -> Tensor:
    """Columns of ``fc`` as if the features were as narrow as the small ones."""
    parts = [fc[:, place * SMALL.hidden : place * SMALL.hidden + 256] for place in range(3)]
    return torch.cat((*parts, torch.zeros(SMALL.hidden, fc.shape[1] - 768, dtype=fc.dtype)), dim=1)


def noisy_identity(name: str, tensor: Tensor) -> Tensor:
    """A layer between real ones that adds to the stream."""
    return torch.full_like(tensor, 1e-3) if name == "model.layers.4.mlp.down_proj.weight" else tensor


def head_with_real_rows(head: Tensor) -> Tensor:
    """Padding rows that repeat rows of real tokens."""
    padded = head.clone()
    padded[4096:] = head[100 : 100 + len(head) - 4096]
    return padded


def unchanged(name: str, tensor: Tensor) -> Tensor:
    return tensor


def unscaled(ending: str, factor: float) -> Change:
    return only(ending, lambda tensor: tensor * factor)


NORM = math.sqrt(SMALL.hidden / 256)
TARGET_FAULTS: dict[str, tuple[Change, dict[str, object]]] = {
    "queries not rescaled": (unscaled("q_proj.weight", math.sqrt(0.5)), {}),
    "norms not rescaled": (unscaled("norm.weight", NORM), {}),
    "epsilon not rescaled": (unchanged, {"rms_norm_eps": 1e-5}),
    "rotary pairs side by side": (
        lambda name, t: neighbouring_pairs(t) if name.endswith(("q_proj.weight", "k_proj.weight")) else t,
        {},
    ),
    "heads in the wrong group": (next_head, {}),
    "an identity layer that is none": (noisy_identity, {}),
    "padding rows of real tokens": (only("lm_head.weight", head_with_real_rows), {}),
    "another rope": (unchanged, {"rope_parameters": {"rope_theta": 500000.0, "rope_type": "default"}}),
}
DRAFT_FAULTS: dict[str, tuple[Change, dict[str, object]]] = {
    "taps of the small target": (
        unchanged,
        {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [2, 4, 5], "use_aux_hidden_state": True}},
    ),
    "fc columns side by side": (only("fc.weight", taps_side_by_side), {}),
    "embedding and hidden state swapped": (only("k_proj.weight", lambda w: w.roll(SMALL.hidden, 1)), {}),
    "norms not rescaled": (unscaled("hidden_norm.weight", NORM), {}),
    "epsilon not rescaled": (unchanged, {"rms_norm_eps": 1e-5}),
    "padding rows of real tokens": (only("lm_head.weight", lambda w: torch.cat((w[:1536], w[: len(w) - 1536]))), {}),
}


def altered(part: str, fault: str, dtype: torch.dtype) -> tuple[Target, BoundDraft]:
    """The widened pair with one fault."""
    target, draft = checkpoints(SMALL, dtype, CPU)
    options = LoadOptions(CPU, dtype)
    if part == "target":
        return load(Altered(target, *TARGET_FAULTS[fault]), draft, options)
    return load(target, Altered(draft, *DRAFT_FAULTS[fault]), options)


@pytest.mark.parametrize(
    ("part", "fault"),
    [*(("target", fault) for fault in TARGET_FAULTS), *(("draft", fault) for fault in DRAFT_FAULTS)],
)
def test_each_mistake_is_noticed(part: str, fault: str) -> None:
    assert not is_the_pair(compare(small_pair(), altered(part, fault, torch.float64), TEXTS[:1]))


def test_the_script_finds_the_text_and_the_acceptance_of_the_pair(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--check", "--spec", "small", "--device", "cpu", "--prompts", "4"]) == 0
    shown = capsys.readouterr().out
    assert "WRONG" not in shown
    rounds = [length for lengths in chain_lengths("eagle3-chain5")[:4] for length in lengths]
    assert f"chain of 5: acceptance {sum(rounds) / len(rounds):.2f}" in shown


def test_a_faulty_draft_loses_acceptance_and_a_faulty_target_the_text() -> None:
    lengths, cases = chain_lengths("eagle3-chain5"), CASES[:2]
    target, draft = altered("draft", "taps of the small target", torch.float32)
    (found,) = texts_and_lengths(target, cases, [chain(draft, 5, lengths)])
    assert (found.num_wrong_texts, found.num_wrong_rounds) == (0, 2)
    target, draft = altered("target", "queries not rescaled", torch.float32)
    (found,) = texts_and_lengths(target, cases, [("plain", None, ())])
    assert found.num_wrong_texts == 2


class Forward(Protocol):
    """What is used of transformers' model, whose own annotations are partial."""

    @abstractmethod
    def forward(self, input_ids: Tensor) -> Logits: ...


class Logits(Protocol):
    logits: Tensor


@pytest.fixture
def small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.widen._SHARD_BYTES", 6_000_000)


@pytest.mark.usefixtures("small_shards")
def test_written_checkpoints_hold_what_is_built_and_transformers_reads_them(tmp_path: Path) -> None:
    spec = evolve(ODD, hidden=312, head_dim=64, layers=9)  # transformers wants a multiple of the heads
    pair = write(spec, tmp_path, torch.float32)
    made = checkpoints(spec, torch.float32, CPU)
    assert len(list(pair.target.glob("*.safetensors"))) > 3
    for directory, checkpoint in zip((pair.target, *pair.drafts), made, strict=True):
        written = Checkpoint(directory)
        assert dict(written.config.values) == dict(checkpoint.config.values)
        assert written.tensors.keys() == checkpoint.tensors.keys()
        for name, tensor in checkpoint.files.tensors():
            stored = written.files.read(name)
            assert torch.equal(stored, tensor)
            assert (stored.dtype, tuple(stored.shape)) == (tensor.dtype, checkpoint.tensors[name].shape)
    target, draft = load(Checkpoint(pair.target), Checkpoint(pair.drafts[0]), LoadOptions(CPU, torch.float64))
    assert compare(small_pair(), (target, draft), TEXTS[:1]).logits < 1e-4
    assert target.codec is not None
    assert target.codec.decode(CASES[0].prompt) == read_text(tiny(), CASES[0].prompt)

    loaded: object = LlamaForCausalLM.from_pretrained(pair.target, dtype=torch.float64)  # pyright: ignore[reportUnknownMemberType] - transformers leaves it unannotated
    reference: object = LlamaForCausalLM.from_pretrained(tiny().target, dtype=torch.float64)  # pyright: ignore[reportUnknownMemberType] - the same
    ids = torch.tensor([TEXTS[0]])
    with torch.inference_mode():
        wide, small = (cast("Forward", cast("nn.Module", model)).forward(ids).logits for model in (loaded, reference))
    torch.testing.assert_close(wide[..., :4096], small, rtol=0, atol=1e-4)
    with pytest.raises(ConfigurationError, match="exist already"):
        write(spec, tmp_path, torch.float32)


def read_text(pair: ModelPair, ids: tuple[int, ...]) -> str:
    codec = load(Checkpoint(pair.target), Checkpoint(pair.drafts[0]), LoadOptions(CPU, torch.float32))[0].codec
    assert codec is not None
    return codec.decode(ids)


def test_sizes_that_stay_keep_the_very_weights() -> None:
    target, draft = checkpoints(SAME, torch.bfloat16, CPU)
    for wide, directory in ((target, tiny().target), (draft, tiny().drafts[0])):
        small = Checkpoint(directory)
        for name in small.tensors:
            assert torch.equal(wide.files.read(name), small.files.read(name))
    assert torch.equal(target.files.read("lm_head.weight"), target.files.read("model.embed_tokens.weight"))


def test_draft_ids_keep_their_targets_and_added_ones_have_their_own() -> None:
    own = small_pair()[1].spec.vocab.target_ids
    assert own is not None
    for spec in (ODD, SMALL, evolve(SAME, draft_vocab=2000), evolve(SMALL, draft_vocab=3000)):
        offsets, marks = (checkpoints(spec, torch.float32, CPU)[1].files.read(name) for name in ("d2t", "t2d"))
        ids = torch.arange(spec.draft_vocab) + offsets
        assert torch.equal(ids[:1536], own)
        assert len(set(map(int, ids))) == spec.draft_vocab
        assert torch.equal(marks.nonzero().flatten(), ids.sort().values)
        padding = min(spec.draft_vocab - 1536, spec.vocab - 4096)
        assert int((ids[1536:] >= 4096).sum()) == padding


def test_padding_rows_are_the_mean_of_the_real_ones() -> None:
    for checkpoint, real in zip(checkpoints(SMALL, torch.float64, CPU), (4096, 1536), strict=True):
        head = checkpoint.files.read("lm_head.weight")
        padding = head[real:]
        torch.testing.assert_close(padding, head[:real].mean(dim=0).expand_as(padding), rtol=0, atol=1e-12)


def test_the_big_preset_has_the_parameters_and_the_cost_of_llama_8b() -> None:
    target, draft = checkpoints(LLAMA_8B, torch.bfloat16, CPU)
    count = sum(math.prod(info.shape) for info in target.tensors.values())
    assert count == 8_030_261_248
    hidden, inner, keys = 4096, 14336, 1024
    layer = 2 * hidden * (hidden + 2 * keys) + hidden * hidden + 3 * hidden * inner + 3 * hidden
    each, fusion = layer + hidden + 32000 * hidden, 3 * hidden * hidden
    read = weight_bytes_per_round(target, draft, 5)
    assert read.target == 2 * (count - 128256 * hidden)
    assert read.draft == 2 * (5 * each + fusion)
    eagle = draft.config.section("eagle_config")
    assert eagle is not None
    assert eagle.get_ints("eagle_aux_hidden_state_layer_ids") == (8, 16, 20)


def test_taps_are_moved_to_where_the_small_stream_is() -> None:
    _, draft = build(SMALL, CPU, torch.float32)
    assert draft.spec.taps == (HiddenTap(2), HiddenTap(5), HiddenTap(6))
    assert SMALL.boundary(8, 8) == SMALL.layers


def test_all_that_is_impossible_is_said_at_once() -> None:
    wrong = WidenSpec("tiny", 128, 4, 3, 2, 96, 100, 4000, 5000, 704)
    with pytest.raises(ConfigurationError) as caught:
        checkpoints(wrong, torch.float32, CPU)
    for told in (
        "target: hidden 128 is below the pair's 256",
        "target: layers 4 is below the pair's 8",
        "target: ffn 100 is below the pair's 704",
        "target: vocab 4000 is below the pair's 4096",
        "draft: hidden 128",
        "3 query heads over 2 kv heads",
        "head_dim 96 is no multiple of the pair's 64",
        "draft_vocab 5000 is above vocab 4000",
    ):
        assert told in str(caught.value)
    with pytest.raises(ConfigurationError, match="1 query heads share a kv head, 2 do in the pair"):
        checkpoints(evolve(SAME, q_heads=4, kv_heads=4), torch.float32, CPU)


def test_a_pair_of_another_kind_is_refused() -> None:
    with pytest.raises(CheckpointError, match="draft_vocab_size"):
        checkpoints(SAME, torch.float32, CPU, ModelPair(tiny().target, (tiny().drafts[1],)))


@pytest.mark.gpu
def test_on_a_card() -> None:
    assert main(["--check", "--floor", "--spec", "small", "--device", "cuda"]) == 0
