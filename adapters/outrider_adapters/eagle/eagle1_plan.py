"""Reads an EAGLE-1, EAGLE-2 or HASS checkpoint into a checked plan."""

from __future__ import annotations

from attrs import frozen

from outrider.checkpoint import Checkpoint
from outrider.errors import Problems
from outrider.types import DraftOverrides, HiddenTap, WeightSource
from outrider_adapters.eagle.decoder import DecoderSizes, count_layers, plan_layer, read_decoder
from outrider_adapters.eagle.media import choose_media
from outrider_adapters.eagle.names import TensorPlan
from outrider_adapters.eagle.plan import DraftPlan, HeadChoice, plan_dtype, plan_sliced_head
from outrider_adapters.eagle.settings import Settings
from outrider_adapters.eagle.taps import TapChoice
from outrider_adapters.eagle.vocab import draft_vocab_size

__all__ = ["Eagle1Plan", "plan_eagle1"]

_HEAD = "lm_head.weight"
_TOKEN_FILE = "hot_tokens.json"
_FINAL_NORM_NOTE = "fed the target's output after the final norm, as EAGLE-1, EAGLE-2 and HASS are trained"


@frozen(eq=False)
class Eagle1Plan:
    """`DraftPlan` with the one switch of EAGLE-1: whether the embedding is normed before ``fc``."""

    draft: DraftPlan
    embed_norm: bool


def plan_eagle1(checkpoint: Checkpoint, overrides: DraftOverrides, problems: Problems) -> Eagle1Plan | None:
    """The plan of an EAGLE-1 checkpoint; every fault goes into ``problems``, and ``None`` means it is past planning."""
    settings, tensors = Settings(checkpoint.config, problems), TensorPlan(checkpoint.tensors, problems)
    taps = _taps(overrides, problems)
    sizes = read_decoder(settings, problems)
    if sizes is None:
        return None
    hidden, notes = sizes.hidden_size, [*taps.notes, *sizes.notes]
    target_hidden = settings.whole("target_hidden_size") or hidden
    if target_hidden != hidden:
        problems.add(
            f"the draft is {hidden} wide and its target {target_hidden}; EAGLE-1 feeds its own output back in the place "
            "of the target's, so they must be equal"
        )
    tensors.need("fc.weight", (hidden, 2 * hidden), "hidden_size rows, embedding + feature columns")
    fc_bias = _plan_fc_bias(settings, tensors, hidden, problems)
    embed_norm = tensors.take("embed_layernorm.weight", (hidden,), "norm of the embedding, hidden_size")
    layers = tuple(
        plan_layer(tensors, sizes, index, joined=False, norms=("input_layernorm",) if index else (), flags=settings)
        for index in range(count_layers(tensors, sizes, problems, notes))
    )
    embedding = WeightSource.TARGET
    if tensors.take("embed_tokens.weight", (sizes.vocab_size, hidden), "vocab_size rows, hidden_size columns"):
        embedding = WeightSource.OWN
    media = choose_media(settings, hidden, target_hidden, embedding, problems)
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
        fc_bias=fc_bias,
        notes=tuple(notes),
    )
    return Eagle1Plan(draft, embed_norm)


def _taps(overrides: DraftOverrides, problems: Problems) -> TapChoice:
    if overrides.tap_convention is not None:
        problems.add(
            f"tap_convention {overrides.tap_convention.value} was given, but EAGLE-1 names no layer ids; leave it out"
        )
    if overrides.taps is None:
        return TapChoice((HiddenTap.final_norm(),), 1, (_FINAL_NORM_NOTE,))
    if len(overrides.taps) != 1:
        problems.add(f"{len(overrides.taps)} taps were given; EAGLE-1 is fed one feature of the target")
    shown = ", ".join(str(tap) for tap in overrides.taps)
    return TapChoice(overrides.taps, len(overrides.taps), (f"taps {shown}: given explicitly",))


def _plan_fc_bias(settings: Settings, tensors: TensorPlan, hidden: int, problems: Problems) -> bool:
    declared = settings.flag("bias", "eagle_fc_bias")
    present = tensors.take("fc.bias", (hidden,), "hidden_size")
    if declared is False and present:
        problems.add("config.json says that fc has no bias, yet 'fc.bias' is among the tensors; correct config.json")
    # The authors' config means a bias when it is silent; the nested form, vLLM's, means none.
    if not present and (declared is True or (declared is None and not settings.is_nested)):
        said = "config.json says it has one" if declared else "a config.json without 'bias' means it has one"
        problems.add(f"'fc.bias' [{hidden}] is missing: {said}; say \"bias\": false if it was trained without")
    return present


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
    if tensors.has(_HEAD):
        if overrides.hot_tokens is not None or overrides.target_head:
            problems.add(
                "the draft brings its own head; hot tokens and target_head apply to the target's: leave them out"
            )
        if size < sizes.vocab_size:
            _refuse_reduced(size, sizes.vocab_size, problems)
        tensors.need(_HEAD, (size, sizes.hidden_size), "vocabulary rows, hidden_size columns")
        notes.append("head: the draft's own lm_head (EAGLE-1 drafts usually bring none)")
        return HeadChoice(WeightSource.OWN, _HEAD, size)
    if overrides.hot_tokens is not None:
        choice, note = plan_sliced_head(overrides, sizes, size, problems)
        notes.append(note)
        return choice
    if size < sizes.vocab_size:
        _refuse_reduced(size, sizes.vocab_size, problems)
    if (checkpoint.directory / _TOKEN_FILE).is_file():
        notes.append(
            f"head: the target's whole head; {_TOKEN_FILE} lies beside the weights and is used only when it is asked for "
            "(outrider.load(..., hot_tokens=PATH), DraftOverrides(hot_tokens=...))"
        )
    return HeadChoice(WeightSource.TARGET, None, sizes.vocab_size)


def _refuse_reduced(size: int, vocab_size: int, problems: Problems) -> None:
    problems.add(
        f"the draft vocabulary has {size} of {vocab_size} ids, but an EAGLE-1 checkpoint carries no map to target ids; "
        "give the token list it was made with (DraftOverrides(hot_tokens=...))"
    )
