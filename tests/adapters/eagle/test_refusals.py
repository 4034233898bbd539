"""Faulty checkpoints: refused, with both sides, all faults at once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from attrs import evolve

from outrider.checkpoint import Checkpoint
from outrider.errors import CheckpointError
from outrider.interfaces import DraftLoader, LoadOptions
from outrider.types import DraftOverrides
from outrider_adapters.eagle import Eagle3Loader, EagleLoader
from tests.adapters.eagle import checkpoints
from tests.adapters.eagle.checkpoints import DRAFT_VOCAB, HIDDEN, VOCAB, Sample, authors_eagle3, eagle1, random_tensor
from tests.adapters.eagle.targets import CPU

EAGLE3, EAGLE1 = Eagle3Loader(), EagleLoader()
OPTIONS = LoadOptions(CPU)


def load(loader: DraftLoader, sample: Sample, directory: Path, overrides: DraftOverrides | None = None) -> None:
    options = evolve(OPTIONS, overrides=overrides or DraftOverrides())
    loader.load(Checkpoint(sample.write(directory)), options)


def full() -> Sample:
    return checkpoints.full_vocabulary(authors_eagle3())


FAULTS: dict[str, tuple[DraftLoader, Callable[[], Sample], str]] = {
    "no d2t": (EAGLE3, lambda: authors_eagle3().without("d2t"), r"has 20 of 48 ids, but there is no 'd2t'"),
    "zero d2t": (
        EAGLE3,
        lambda: authors_eagle3().storing(d2t=torch.zeros(DRAFT_VOCAB, dtype=torch.int64)),
        r"'d2t' is all zero, though the draft vocabulary has only 20 of 48",
    ),
    "no head": (
        EAGLE3,
        lambda: authors_eagle3().without("lm_head.weight"),
        r"'lm_head.weight' is missing, and no rule supplies it: the draft vocabulary has 20 ids, the target's head 48",
    ),
    "tied without head": (
        EAGLE3,
        lambda: (
            authors_eagle3()
            .without("lm_head.weight")
            .storing(embed_tokens__weight=random_tensor("e", VOCAB, HIDDEN))
            .configured(tie_word_embeddings=True)
        ),
        r"no rule supplies it: the draft vocabulary has 20 ids, .* tied embeddings cannot be cut",
    ),
    "no head, full vocabulary": (EAGLE3, lambda: full().without("lm_head.weight"), r"DraftOverrides\(target_head=True"),
    "head of the target's size": (
        EAGLE3,
        lambda: authors_eagle3().storing(lm_head__weight=random_tensor("h", VOCAB, HIDDEN)),
        r"'lm_head.weight' is \[48, 32\], expected \[20, 32\]",
    ),
    "unused tensor": (
        EAGLE3,
        lambda: authors_eagle3().storing(midlayer__extra_norm__weight=torch.ones(HIDDEN)),
        r"1 tensors have no place in this kind of draft: 'midlayer.extra_norm.weight'",
    ),
    "fc width": (
        EAGLE3,
        lambda: authors_eagle3().storing(fc__weight=random_tensor("fc", HIDDEN, 90)),
        r"'fc.weight' takes 90 columns, but 3 taps .* x target hidden size 32 are 96",
    ),
    "fc rows": (
        EAGLE3,
        lambda: authors_eagle3().storing(fc__weight=random_tensor("fc", 16, 96)),
        r"'fc.weight' is \[16, 96\], expected \[32, 96\]",
    ),
    "no fc": (EAGLE3, lambda: authors_eagle3().without("fc.weight"), r"'fc.weight' is missing, expected \[32, 96\]"),
    "hidden width": (
        EAGLE3,
        lambda: authors_eagle3().configured(hidden_size=30),
        r"'midlayer.self_attn.q_proj.weight' is \[32, 64\], expected \[32, 60\]",
    ),
    "head count": (
        EAGLE3,
        lambda: authors_eagle3().configured(num_attention_heads=6),
        r"q_proj.weight' is \[32, 64\], expected \[48, 64\]",
    ),
    "vocabulary sizes": (
        EAGLE3,
        lambda: authors_eagle3().configured(truncated_vocab_size=21),
        r"'draft_vocab_size' is 20 and 'truncated_vocab_size' is 21",
    ),
    "vocabulary above the target's": (
        EAGLE3,
        lambda: authors_eagle3().configured(draft_vocab_size=49),
        r"has 49 ids, the target's 48",
    ),
    "embedding of another size": (
        EAGLE3,
        lambda: authors_eagle3().storing(embed_tokens__weight=random_tensor("e", 50, HIDDEN)),
        r"'embed_tokens.weight' is \[50, 32\], expected \[48, 32\]",
    ),
    "two names": (
        EAGLE3,
        lambda: authors_eagle3().storing(model__fc__weight=random_tensor("fc", HIDDEN, 96)),
        r"are the same weight under two names",
    ),
    "layers with a gap": (
        EAGLE3,
        lambda: authors_eagle3().renamed(lambda name: name.replace("midlayer.", "layers.1.")),
        r"hold layers \[1\], expected 0 to 0",
    ),
    "norms before fc exclude each other": (
        EAGLE3,
        lambda: authors_eagle3().configured(fc_norm=True, norm_before_fc=True),
        "exclude each other",
    ),
    "norm denied": (
        EAGLE3,
        lambda: (
            authors_eagle3()
            .storing(input_norm__weight=torch.ones(96))
            .configured(eagle_config={"norm_before_fc": False})
        ),
        r"'norm_before_fc' is false in config.json, yet",
    ),
    "flags that disagree": (
        EAGLE3,
        lambda: authors_eagle3().configured(norm_output=True, eagle_config={"return_hidden_post_norm": False}),
        r"'norm_output' is True and 'eagle_config.return_hidden_post_norm' is False",
    ),
    "attention bias denied": (
        EAGLE3,
        lambda: (
            authors_eagle3().storing(midlayer__self_attn__q_proj__bias=torch.ones(32)).configured(attention_bias=False)
        ),
        "no place in this kind of draft: 'midlayer.self_attn.q_proj.bias'",
    ),
    "attention bias missing": (
        EAGLE3,
        lambda: authors_eagle3().configured(attention_bias=True),
        r"'layers.0.self_attn.q_proj.bias' is missing, expected \[32\]",
    ),
    "unknown rope": (
        EAGLE3,
        lambda: authors_eagle3().configured(rope_scaling={"type": "spiral", "factor": 2.0}),
        "spiral",
    ),
    "unknown activation": (EAGLE3, lambda: authors_eagle3().configured(hidden_act="sine"), "sine"),
    "quantized": (EAGLE3, lambda: authors_eagle3().configured(quantization_config={"bits": 4}), "quantized"),
    "missing size": (EAGLE3, lambda: authors_eagle3().configured(hidden_size=None), "'hidden_size' is missing"),
    "width without fc": (
        EAGLE3,
        lambda: (
            authors_eagle3()
            .without("fc.weight")
            .configured(target_hidden_size=64, eagle_config={"use_aux_hidden_state": False})
        ),
        r"the draft is 32 wide and the target 64",
    ),
    "fc where there should be none": (
        EAGLE3,
        lambda: authors_eagle3().configured(eagle_config={"use_aux_hidden_state": False}),
        "no place in this kind of draft: 'fc.weight'",
    ),
    "eagle-1 without its bias": (EAGLE1, lambda: eagle1().without("fc.bias"), r"without 'bias' means it has one"),
    "eagle-1 bias denied": (EAGLE1, lambda: eagle1().configured(bias=False), "yet 'fc.bias' is among the tensors"),
    "eagle-1 biases disagree": (
        EAGLE1,
        lambda: eagle1().configured(bias=True, eagle_fc_bias=False),
        "'bias' is True and 'eagle_fc_bias' is False",
    ),
    "eagle-1 with a final norm": (
        EAGLE1,
        lambda: eagle1().storing(norm__weight=torch.ones(HIDDEN)),
        "no place in this kind of draft: 'norm.weight'",
    ),
    "eagle-1 with an input norm": (
        EAGLE1,
        lambda: eagle1().storing(layers__0__input_layernorm__weight=torch.ones(HIDDEN)),
        "'layers.0.input_layernorm.weight'",
    ),
    "eagle-1 reduced": (
        EAGLE1,
        lambda: eagle1().configured(truncated_vocab_size=20),
        r"20 of 48 ids, but an EAGLE-1 checkpoint carries no map",
    ),
    "eagle-1 of another width": (
        EAGLE1,
        lambda: eagle1().configured(target_hidden_size=64),
        r"the draft is 32 wide and its target 64",
    ),
    "eagle-1 fc": (
        EAGLE1,
        lambda: eagle1().storing(fc__weight=random_tensor("fc", HIDDEN, 96)),
        r"'fc.weight' is \[32, 96\], expected \[32, 64\]",
    ),
}


@pytest.mark.parametrize(("loader", "make", "message"), FAULTS.values(), ids=FAULTS.keys())
def test_faulty_checkpoint_is_refused(
    loader: DraftLoader, make: Callable[[], Sample], message: str, tmp_path: Path
) -> None:
    with pytest.raises(CheckpointError, match=message) as caught:
        load(loader, make(), tmp_path)
    description = loader.describe(Checkpoint(tmp_path))
    assert description.problems, "inspect must show what loading refuses"
    assert all(problem in str(caught.value) for problem in description.problems)


def test_all_faults_are_told_at_once(tmp_path: Path) -> None:
    sample = (
        authors_eagle3()
        .without("d2t", "norm.weight", "midlayer.mlp.up_proj.weight")
        .storing(fc__weight=random_tensor("fc", HIDDEN, 90), surprise=torch.ones(3))
    )
    with pytest.raises(CheckpointError) as caught:
        load(EAGLE3, sample, tmp_path)
    for part in ("5 problems", "no 'd2t'", "'norm.weight'", "up_proj", "90 columns", "'surprise'"):
        assert part in str(caught.value)


OVERRIDES: dict[str, tuple[DraftLoader, Callable[[], Sample], DraftOverrides, str]] = {
    "hot tokens beside a head": (EAGLE3, full, DraftOverrides(hot_tokens=(1, 2)), "brings its own head of 48 ids"),
    "target head beside a head": (EAGLE3, full, DraftOverrides(target_head=True), "brings its own head of 48 ids"),
    "hot tokens of another size": (
        EAGLE3,
        lambda: authors_eagle3().without("lm_head.weight", "d2t", "t2d"),
        DraftOverrides(hot_tokens=(1, 2)),
        r"has 20 ids by config.json, the hot-token list 2 distinct ones",
    ),
    "target head for a reduced vocabulary": (
        EAGLE3,
        lambda: authors_eagle3().without("lm_head.weight"),
        DraftOverrides(target_head=True),
        "no rule supplies it",
    ),
    "hot tokens outside": (EAGLE1, eagle1, DraftOverrides(hot_tokens=(1, 48)), r"1 hot tokens are outside .* 0 to 47"),
    "hot tokens beside an eagle-1 head": (
        EAGLE1,
        lambda: eagle1().storing(lm_head__weight=random_tensor("h", VOCAB, HIDDEN)),
        DraftOverrides(hot_tokens=(1, 2)),
        "brings its own head",
    ),
}


@pytest.mark.parametrize(("loader", "make", "overrides", "message"), OVERRIDES.values(), ids=OVERRIDES.keys())
def test_override_that_cannot_be_honoured_is_refused(
    loader: DraftLoader, make: Callable[[], Sample], overrides: DraftOverrides, message: str, tmp_path: Path
) -> None:
    with pytest.raises(CheckpointError, match=message):
        load(loader, make(), tmp_path, overrides)
