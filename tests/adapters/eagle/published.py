"""Every published form of an EAGLE draft, with what a reference must know of it."""

from __future__ import annotations

from collections.abc import Callable

from attrs import evolve, field, frozen
from torch import Tensor

from outrider.types import DraftOverrides, HiddenTap, WeightSource
from tests.adapters.eagle import checkpoints
from tests.adapters.eagle.checkpoints import HIDDEN, VOCAB, Sample, layer_tensors, random_tensor
from tests.adapters.eagle.reference import Form


@frozen(eq=False)
class Case:
    """A sample, what the reference must know of it, and what its spec must say."""

    make: Callable[[], Sample]
    form: Form = field(factory=Form)
    taps: tuple[int | None, ...] = (2, 4, 5)
    embedding: WeightSource = WeightSource.TARGET
    head: WeightSource = WeightSource.OWN
    target_hidden: int = HIDDEN
    num_shards: int = 1
    overrides: DraftOverrides = field(factory=DraftOverrides)


def _with(sample: Sample, **tensors: Tensor) -> Sample:
    """``sample`` with more tensors, in the file and for the reference."""
    added = {name.replace("__", "."): value for name, value in tensors.items()}
    stored = sample.storing(**tensors).stored
    return evolve(sample, tensors={**sample.tensors, **added}, stored=stored)


def _modelopt() -> Sample:
    flags = {
        "eagle_aux_hidden_state_layer_ids": [2, 4, 5],
        "norm_before_fc": True,
        "return_hidden_post_norm": True,
    }
    sample = checkpoints.full_vocabulary(checkpoints.specforge_eagle3()).configured(eagle_config=flags)
    return _with(sample, input_norm__weight=random_tensor("input_norm.weight", 3 * HIDDEN)).without("lm_head.weight")


def _early_projection() -> Sample:
    sample = checkpoints.full_vocabulary(checkpoints.authors_eagle3())
    layer = layer_tensors(0, joined=False, norms=("hidden_norm",))
    kept = {name: value for name, value in sample.tensors.items() if not name.startswith("layers.")}
    tensors = {
        **kept,
        **layer,
        "enorm.weight": random_tensor("enorm.weight", HIDDEN),
        "eh_proj.weight": random_tensor("eh_proj.weight", HIDDEN, 2 * HIDDEN),
    }
    config = {**sample.config, "eagle_config": {"eh_proj_before_attn": True, "use_aux_hidden_state": True}}
    return Sample(config, tensors).without("d2t", "t2d", "lm_head.weight")


def _eagle31() -> Sample:
    """Two taps with a norm each, a target twice as wide, the normed output fed back."""
    sample = checkpoints.speculators_eagle3(
        fc_norm=True,
        norm_output=True,
        num_aux_hidden_states=2,
        target_hidden_size=2 * HIDDEN,
        eagle_aux_hidden_state_layer_ids=[3, 6],
    )
    norms = {f"fc_norm__{i}__weight": random_tensor(f"fc_norm.{i}.weight", 2 * HIDDEN) for i in range(2)}
    return _with(sample, fc__weight=random_tensor("fc.weight", HIDDEN, 4 * HIDDEN), **norms)


def _stacked() -> Sample:
    sample = checkpoints.authors_eagle3()
    second = layer_tensors(1, joined=False, norms=("input_layernorm",))
    tensors = {**sample.tensors, **second}
    return Sample(sample.config, tensors).renamed(lambda name: f"draft_model.{name.replace('layers.', 'midlayer.')}")


def _wide_heads() -> Sample:
    """Heads that are wider than the hidden state together, with biases and norms per head."""
    sample = checkpoints.authors_eagle3().configured(head_dim=10, attention_bias=True)
    layer = layer_tensors(0, True, ("input_layernorm", "hidden_norm"), head_dim=10, bias=True, qk_norm=True)
    return checkpoints.fused(Sample(sample.config, {**sample.tensors, **layer}).renamed(checkpoints.midlayer))


def _no_aux() -> Sample:
    config: dict[str, object] = {"use_aux_hidden_state": False, "eagle_aux_hidden_state_layer_ids": []}
    return checkpoints.specforge_eagle3().configured(eagle_config=config).without("fc.weight")


def _tied() -> Sample:
    sample = checkpoints.full_vocabulary(checkpoints.authors_eagle3()).configured(tie_word_embeddings=True)
    return _with(sample, embed_tokens__weight=random_tensor("tied", VOCAB, HIDDEN)).without("lm_head.weight")


OWN, TARGET, SLICED = WeightSource.OWN, WeightSource.TARGET, WeightSource.TARGET_SLICED

EAGLE3: dict[str, Case] = {
    "authors": Case(checkpoints.authors_eagle3),
    "specforge": Case(checkpoints.specforge_eagle3),
    "prefix": Case(lambda: checkpoints.specforge_eagle3().renamed(lambda name: f"model.{name}"), num_shards=3),
    "modelopt": Case(_modelopt, Form(joint_norm=True, norm_output=True), head=TARGET),
    "early projection": Case(_early_projection, Form(early_projection=True), head=TARGET),
    "speculators": Case(
        lambda: _with(
            checkpoints.speculators_eagle3(norm_before_residual=True, norm_before_fc=True),
            input_norm__weight=random_tensor("input_norm.weight", 3 * HIDDEN),
        ),
        Form(norm_before_residual=True, joint_norm=True, theta=500.0),
        taps=(1, 4, 7),
        embedding=OWN,
    ),
    "eagle-3.1": Case(
        _eagle31,
        Form(norm_output=True, tap_norms=2, theta=500.0),
        taps=(3, 6),
        embedding=OWN,
        target_hidden=2 * HIDDEN,
    ),
    "stacked": Case(_stacked, Form(num_layers=2)),
    "wide heads, fused": Case(_wide_heads, Form(head_dim=10)),
    "fused": Case(lambda: checkpoints.fused(checkpoints.specforge_eagle3())),
    "no aux": Case(_no_aux, Form(fc=False), taps=(None,)),
    "tied, full vocabulary": Case(_tied, embedding=OWN),
    "truncated_vocab_size": Case(
        lambda: checkpoints.specforge_eagle3().configured(draft_vocab_size=None, truncated_vocab_size=20)
    ),
    "rope_parameters": Case(
        lambda: checkpoints.specforge_eagle3().configured(rope_parameters={"rope_type": "default", "rope_theta": 99.0}),
        Form(theta=99.0),
    ),
    "explicit taps": Case(
        checkpoints.specforge_eagle3,
        taps=(0, 8, None),
        overrides=DraftOverrides(taps=(HiddenTap(0), HiddenTap(8), HiddenTap.final_norm())),
    ),
    "explicit target head": Case(
        lambda: checkpoints.full_vocabulary(checkpoints.authors_eagle3()).without("lm_head.weight"),
        head=TARGET,
        overrides=DraftOverrides(target_head=True),
    ),
    "hot tokens": Case(
        lambda: checkpoints.full_vocabulary(checkpoints.authors_eagle3()).without("lm_head.weight"),
        head=SLICED,
        overrides=DraftOverrides(hot_tokens=(40, 3, 7, 3, 12)),
    ),
}


def _nested_eagle1() -> Sample:
    sample = checkpoints.eagle1()
    inner = {**sample.config, "eagle_fc_bias": True}
    config = {"architectures": ["EAGLEModel"], "model_type": "eagle", "model": inner, "truncated_vocab_size": VOCAB}
    return evolve(sample, config=config)


def _deep_eagle1() -> Sample:
    sample = checkpoints.eagle1(bias=False)
    return Sample(sample.config, {**sample.tensors, **layer_tensors(1, joined=False, norms=("input_layernorm",))})


EAGLE1: dict[str, Case] = {
    "authors": Case(checkpoints.eagle1, taps=(None,), head=TARGET),
    "without bias": Case(lambda: checkpoints.eagle1(bias=False), taps=(None,), head=TARGET),
    "nested": Case(_nested_eagle1, taps=(None,), head=TARGET),
    "own embedding, normed": Case(
        lambda: _with(
            checkpoints.eagle1(),
            embed_tokens__weight=random_tensor("embed_tokens.weight", VOCAB, HIDDEN),
            embed_layernorm__weight=random_tensor("embed_layernorm.weight", HIDDEN),
        ),
        taps=(None,),
        embedding=OWN,
        head=TARGET,
    ),
    "own head": Case(
        lambda: _with(checkpoints.eagle1(), lm_head__weight=random_tensor("lm_head.weight", VOCAB, HIDDEN)),
        taps=(None,),
    ),
    "two layers": Case(_deep_eagle1, Form(num_layers=2), taps=(None,), head=TARGET),
    "fused, prefixed": Case(
        lambda: checkpoints.fused(checkpoints.eagle1().renamed(lambda name: f"model.{name}")),
        taps=(None,),
        head=TARGET,
        num_shards=2,
    ),
    "hot tokens": Case(
        checkpoints.eagle1, taps=(None,), head=SLICED, overrides=DraftOverrides(hot_tokens=(40, 3, 7, 3, 12))
    ),
}
