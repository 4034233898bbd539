"""Reads an EAGLE-3 checkpoint (authors, SpecForge, ModelOpt, speculators, EAGLE-3.1) into a checked plan."""

from __future__ import annotations

from attrs import frozen
from torch import Tensor

from outrider.checkpoint import Checkpoint
from outrider.errors import Problems
from outrider.types import DraftOverrides, WeightSource
from outrider_adapters.eagle.decoder import DecoderSizes, LayerForm, count_layers, plan_layer, read_decoder
from outrider_adapters.eagle.media import choose_media
from outrider_adapters.eagle.names import TensorPlan
from outrider_adapters.eagle.plan import DraftPlan, HeadChoice, plan_dtype, plan_sliced_head, stored_tensor
from outrider_adapters.eagle.settings import Settings
from outrider_adapters.eagle.taps import TapChoice, choose_taps
from outrider_adapters.eagle.vocab import draft_vocab_size, target_ids_from_offsets

__all__ = ["Eagle3Flags", "Eagle3Plan", "plan_eagle3"]

_HEAD = "lm_head.weight"
_EMBEDDING = "embed_tokens.weight"
# Keys that only NVIDIA's exporter writes; its drafts may leave the head to the target.
_MODELOPT_KEYS = (
    "norm_before_fc",
    "return_hidden_post_norm",
    "eh_proj_before_attn",
    "next_layer_regular",
    "use_input_layernorm_in_first_layer",
    "use_last_layernorm",
)


@frozen
class Eagle3Flags:
    """The switches in which EAGLE-3 drafts differ.

    ``fc``: the taps pass a linear layer (else the one tap is the hidden state as it is). ``joint_norm``: one norm over
    the concatenated taps; ``tap_norms``: one norm per tap (EAGLE-3.1). ``norm_before_residual``: the first layer's
    residual is the normed hidden state. ``norm_output``: the next step is fed the output after the final norm.
    ``early_projection``: embedding and hidden state are merged before the layer, which is then an ordinary one.
    """

    fc: bool
    joint_norm: bool
    tap_norms: bool
    norm_before_residual: bool
    norm_output: bool
    early_projection: bool
    early_bias: bool


@frozen(eq=False)
class Eagle3Plan:
    """`DraftPlan` with the switches of EAGLE-3."""

    draft: DraftPlan
    flags: Eagle3Flags


def plan_eagle3(checkpoint: Checkpoint, overrides: DraftOverrides, problems: Problems) -> Eagle3Plan | None:
    """The plan of an EAGLE-3 checkpoint; every fault goes into ``problems``, and ``None`` means it is past planning."""
    settings, tensors = Settings(checkpoint.config, problems), TensorPlan(checkpoint.tensors, problems)
    taps = choose_taps(settings, overrides, problems)
    sizes = read_decoder(settings, problems)
    if sizes is None:
        return None
    notes = [*taps.notes, *sizes.notes]
    target_hidden = settings.whole("target_hidden_size") or sizes.hidden_size
    flags = _plan_inputs(settings, tensors, sizes, taps, target_hidden, overrides, problems)
    layers = _plan_layers(settings, tensors, sizes, flags, problems, notes)
    tensors.need("norm.weight", (sizes.hidden_size,), "final norm, hidden_size")
    embedding = WeightSource.TARGET
    if tensors.take(_EMBEDDING, (sizes.vocab_size, sizes.hidden_size), "vocab_size rows, hidden_size columns"):
        embedding = WeightSource.OWN
    media = choose_media(settings, sizes.hidden_size, target_hidden, embedding, problems)
    dtype = plan_dtype(tensors, settings, problems, notes)
    head = _plan_head(checkpoint, settings, tensors, sizes, overrides, problems, notes)
    tensors.refuse_unused()
    draft = DraftPlan(
        sizes=sizes,
        layers=layers,
        names=tensors.names,
        taps=taps,
        target_hidden_size=target_hidden,
        embedding=embedding,
        head=head,
        media=media,
        dtype=dtype,
        fc_bias=tensors.has("fc.bias"),
        notes=tuple(notes),
    )
    return Eagle3Plan(draft, flags)


def _plan_inputs(
    settings: Settings,
    tensors: TensorPlan,
    sizes: DecoderSizes,
    taps: TapChoice,
    target_hidden: int,
    overrides: DraftOverrides,
    problems: Problems,
) -> Eagle3Flags:
    hidden, width = sizes.hidden_size, taps.count * target_hidden
    fc = settings.flag("use_aux_hidden_state") is not False
    if fc:
        _need_fc(tensors, hidden, taps, target_hidden, problems)
    elif hidden != target_hidden:
        problems.add(
            f"without use_aux_hidden_state the target's hidden state is fed as it is, but the draft is {hidden} wide "
            f"and the target {target_hidden}; they must be equal"
        )
    declared = settings.whole("num_aux_hidden_states")
    if fc and declared is not None and declared != taps.count and overrides.taps is None:
        problems.add(f"'num_aux_hidden_states' is {declared}, but there are {taps.count} taps ({taps}); correct one")
    tap_norms = _declared_norm(settings.flag("fc_norm"), tensors.has("fc_norm.0.weight"), "fc_norm", problems)
    if tap_norms:
        for index in range(taps.count):
            tensors.need(f"fc_norm.{index}.weight", (target_hidden,), "norm of one tap, target hidden size")
    joint = _declared_norm(
        settings.flag("norm_before_fc"), tensors.has("input_norm.weight"), "norm_before_fc", problems
    )
    if joint:
        tensors.need("input_norm.weight", (width,), f"{taps.count} taps x target hidden size {target_hidden}")
    if joint and tap_norms:
        problems.add("'norm_before_fc' (one norm over all taps) and 'fc_norm' (one per tap) exclude each other")
    early = settings.flag("eh_proj_before_attn") is True
    if early:
        tensors.need("enorm.weight", (hidden,), "norm of the embedding, hidden_size")
        tensors.need("eh_proj.weight", (hidden, 2 * hidden), "hidden_size rows, 2 x hidden_size columns")
    return Eagle3Flags(
        fc=fc,
        joint_norm=joint,
        tap_norms=tap_norms,
        norm_before_residual=settings.flag("norm_before_residual") is True,
        norm_output=settings.flag("norm_output", "return_hidden_post_norm") is True,
        early_projection=early,
        early_bias=early and tensors.take("eh_proj.bias", (hidden,), "hidden_size"),
    )


def _need_fc(tensors: TensorPlan, hidden: int, taps: TapChoice, target_hidden: int, problems: Problems) -> None:
    width = taps.count * target_hidden
    found = tensors.info("fc.weight")
    if found is not None and len(found.shape) == 2 and found.shape[0] == hidden and found.shape[1] != width:
        tensors.use("fc.weight")
        problems.add(
            f"'fc.weight' takes {found.shape[1]} columns, but {taps.count} taps ({taps}) x target hidden size "
            f"{target_hidden} are {width}; correct the taps asked for, or the layer ids or 'target_hidden_size' in config.json"
        )
    else:
        meaning = f"hidden_size rows, {taps.count} taps x target hidden size {target_hidden} columns"
        tensors.need("fc.weight", (hidden, width), meaning)
    tensors.take("fc.bias", (hidden,), "hidden_size")


def _declared_norm(declared: bool | None, present: bool, key: str, problems: Problems) -> bool:
    if declared is False and present:
        problems.add(f"'{key}' is false in config.json, yet its norm is among the tensors; correct config.json")
    return present if declared is None else declared


def _plan_layers(
    settings: Settings,
    tensors: TensorPlan,
    sizes: DecoderSizes,
    flags: Eagle3Flags,
    problems: Problems,
    notes: list[str],
) -> tuple[LayerForm, ...]:
    layers: list[LayerForm] = []
    for index in range(count_layers(tensors, sizes, problems, notes)):
        first = index == 0
        stacked = not first and (
            tensors.columns(f"layers.{index}.self_attn.q_proj.weight") == 2 * sizes.hidden_size
            or tensors.columns(f"layers.{index}.self_attn.qkv_proj.weight") == 2 * sizes.hidden_size
        )
        joined = (first or stacked) and not flags.early_projection
        layers.append(plan_layer(tensors, sizes, index, joined, ("input_layernorm", "hidden_norm"), settings))
    return tuple(layers)


def _plan_head(
    checkpoint: Checkpoint,
    settings: Settings,
    tensors: TensorPlan,
    sizes: DecoderSizes,
    overrides: DraftOverrides,
    problems: Problems,
    notes: list[str],
) -> HeadChoice:
    size = draft_vocab_size(settings, sizes.vocab_size, problems)
    if not tensors.has(_HEAD) and overrides.hot_tokens is not None:
        choice, note = plan_sliced_head(overrides, sizes, size, problems)
        notes.append(note)
        return choice
    target_ids = _target_ids(checkpoint, tensors, size, sizes.vocab_size, problems)
    tied = settings.is_tied()
    if tensors.has(_HEAD):
        tensors.need(_HEAD, (size, sizes.hidden_size), "draft vocabulary rows, hidden_size columns")
        if tied:
            notes.append("head: the draft's own lm_head, though config.json says tie_word_embeddings true")
        if overrides.hot_tokens is not None or overrides.target_head:
            problems.add(
                f"the draft brings its own head of {size} ids; hot tokens and target_head apply to the target's head: "
                "leave them out"
            )
        return HeadChoice(WeightSource.OWN, _HEAD, size, target_ids)
    full = size == sizes.vocab_size
    if full and tied and tensors.has(_EMBEDDING):
        notes.append("head: the draft's own embedding (tie_word_embeddings true, full vocabulary, no lm_head)")
        return HeadChoice(WeightSource.OWN, _EMBEDDING, size, target_ids)
    modelopt = any(settings.in_section("eagle_config", key) for key in _MODELOPT_KEYS)
    if full and (overrides.target_head or modelopt):
        reason = "asked explicitly" if overrides.target_head else "a full-vocabulary ModelOpt draft without lm_head"
        notes.append(f"head: the target's ({reason})")
        return HeadChoice(WeightSource.TARGET, None, size, target_ids)
    problems.add(_missing_head(size, sizes.vocab_size))
    return HeadChoice(WeightSource.OWN, _HEAD, size, target_ids)


def _missing_head(size: int, vocab_size: int) -> str:
    if size < vocab_size:
        return (
            f"'lm_head.weight' is missing, and no rule supplies it: the draft vocabulary has {size} ids, the target's "
            f"head {vocab_size}, and tied embeddings cannot be cut to it. Get the complete checkpoint"
        )
    return (
        f"'lm_head.weight' [{size}, hidden_size] is missing, and no rule supplies it; get the complete checkpoint, or "
        "say that the draft was trained on the target's head (DraftOverrides(target_head=True))"
    )


def _target_ids(
    checkpoint: Checkpoint, tensors: TensorPlan, size: int, vocab_size: int, problems: Problems
) -> Tensor | None:
    d2t, t2d = stored_tensor(checkpoint, tensors, "d2t"), stored_tensor(checkpoint, tensors, "t2d")
    return target_ids_from_offsets(d2t, t2d, size, vocab_size, problems)
