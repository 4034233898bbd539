"""Choices the loaders make where a checkpoint is silent or wrong are told; the rest of the spec comes from it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from outrider.checkpoint import Checkpoint
from outrider.errors import CheckpointError
from outrider.interfaces import LoadOptions
from outrider.types import DraftSpec, WeightSource
from outrider_adapters.eagle import Eagle3Loader, EagleLoader
from tests.adapters.eagle import checkpoints
from tests.adapters.eagle.checkpoints import HIDDEN, VOCAB, Sample, authors_eagle3, base_config, random_tensor
from tests.adapters.eagle.targets import CPU, make_target


def loaded(sample: Sample, directory: Path) -> DraftSpec:
    return Eagle3Loader().load(Checkpoint(sample.write(directory)), LoadOptions(CPU)).spec


def told(spec: DraftSpec, *words: str) -> bool:
    return any(all(word in note for word in words) for note in spec.notes)


def test_tensors_win_over_the_number_of_layers(tmp_path: Path) -> None:
    spec = loaded(authors_eagle3().configured(num_hidden_layers=3), tmp_path)
    assert len(spec.layers) == 1
    assert told(spec, "num_hidden_layers 3", "the tensors hold 1")


@pytest.mark.parametrize("key", ["torch_dtype", "dtype"])
def test_tensors_win_over_the_dtype(key: str, tmp_path: Path) -> None:
    assert told(loaded(authors_eagle3().configured(**{key: "bfloat16"}), tmp_path / "wrong"), "bfloat16", "float32")
    assert not told(loaded(authors_eagle3().configured(**{key: "float32"}), tmp_path / "right"), "dtype")


def test_rope_is_the_drafts_own(tmp_path: Path) -> None:
    silent = loaded(authors_eagle3(), tmp_path / "silent")
    assert silent.rope is not None
    assert silent.rope.theta == 10000.0
    assert told(silent, "rope theta 10000")
    scaled = {"rope_type": "dynamic", "factor": 2.0}
    dynamic = loaded(authors_eagle3().configured(rope_theta=99.0, rope_scaling=scaled), tmp_path / "dynamic")
    assert dynamic.rope is not None
    assert (dynamic.rope.theta, dynamic.rope.kind) == (99.0, "dynamic")
    assert dynamic.needs_lengths
    assert not silent.needs_lengths
    assert not told(dynamic, "rope theta")


def test_own_head_is_kept_where_embeddings_are_said_to_be_tied(tmp_path: Path) -> None:
    spec = loaded(authors_eagle3().configured(tie_word_embeddings=True), tmp_path)
    assert (spec.head, spec.vocab.size) == (WeightSource.OWN, checkpoints.DRAFT_VOCAB)
    assert told(spec, "tie_word_embeddings")


def test_outer_word_on_tied_embeddings_comes_before_the_nested_one(tmp_path: Path) -> None:
    nested = base_config(tie_word_embeddings=True)
    sample = checkpoints.speculators_eagle3().configured(transformer_layer_config=nested).without("lm_head.weight")
    assert loaded(sample, tmp_path / "tied").head is WeightSource.OWN
    with pytest.raises(CheckpointError, match="no rule supplies it"):
        loaded(sample.configured(tie_word_embeddings=False), tmp_path / "untied")


def test_nested_and_outer_sizes_must_agree(tmp_path: Path) -> None:
    sample = checkpoints.speculators_eagle3().configured(hidden_size=16)
    with pytest.raises(CheckpointError, match=r"'hidden_size' is 16 and 'transformer_layer_config.hidden_size' is 32"):
        loaded(sample, tmp_path)


def test_modelopt_draft_without_head_takes_the_targets_and_says_why(tmp_path: Path) -> None:
    nested = {"use_aux_hidden_state": True, "return_hidden_post_norm": False}
    sample = checkpoints.full_vocabulary(authors_eagle3()).configured(eagle_config=nested).without("lm_head.weight")
    spec = loaded(sample, tmp_path)
    assert spec.head is WeightSource.TARGET
    assert told(spec, "ModelOpt", "without lm_head")


def test_windows_follow_layer_types(tmp_path: Path) -> None:
    sample = authors_eagle3().configured(layer_types=["sliding_attention"], sliding_window=12)
    assert loaded(sample, tmp_path / "window").layers[0].window == 12
    unused = authors_eagle3().configured(layer_types=["full_attention"], sliding_window=12)
    assert loaded(unused, tmp_path / "full").layers[0].window is None
    for types, message in ((["chunked"], "names chunked"), (["sliding_attention"], "'sliding_window' is missing")):
        with pytest.raises(CheckpointError, match=message):
            loaded(authors_eagle3().configured(layer_types=types), tmp_path / message[:5])


def test_permuted_full_vocabulary_keeps_its_map(tmp_path: Path) -> None:
    whole = checkpoints.full_vocabulary(authors_eagle3())
    permutation = torch.arange(VOCAB).flip(0)
    spec = loaded(whole.storing(d2t=permutation - torch.arange(VOCAB)), tmp_path)
    assert torch.equal(spec.vocab.to_target(torch.arange(VOCAB)), permutation)


def test_progress_is_told_to_the_last_tensor(tmp_path: Path) -> None:
    told_counts: list[tuple[int, int]] = []

    def progress(done: int, total: int) -> None:
        told_counts.append((done, total))

    checkpoint = Checkpoint(checkpoints.eagle1().write(tmp_path))
    EagleLoader().load(checkpoint, LoadOptions(CPU, progress=progress))
    assert told_counts[-1] == (len(checkpoint.tensors), len(checkpoint.tensors))
    assert [done for done, _ in told_counts] == sorted({done for done, _ in told_counts})


def test_loading_keeps_no_second_copy_of_a_tied_head(tmp_path: Path) -> None:
    sample = checkpoints.full_vocabulary(authors_eagle3()).configured(tie_word_embeddings=True)
    embedded = sample.storing(embed_tokens__weight=random_tensor("tied", VOCAB, HIDDEN)).without("lm_head.weight")
    draft = Eagle3Loader().load(Checkpoint(embedded.write(tmp_path)), LoadOptions(CPU))
    bound = draft.bind(make_target())
    assert bound.head.data_ptr() == bound.embedding.data_ptr()
