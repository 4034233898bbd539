"""Which features of the target an EAGLE-3 draft is fed: ids from every place of its config, convention, defaults."""

from __future__ import annotations

from attrs import field, frozen

from outrider.errors import Problems
from outrider.types import DraftOverrides, HiddenTap, TapConvention
from outrider_adapters.eagle.settings import Settings

__all__ = ["TAP_ID_KEYS", "TapChoice", "choose_taps", "default_taps"]

TAP_ID_KEYS = ("eagle_aux_hidden_state_layer_ids", "target_layer_ids")
_CONVENTION_KEY = "tap_convention"
_NUM_DEFAULT = 3
# The lowest depth at which boundaries 2, N//2 and N-3 are three different ones.
_MIN_LAYERS_FOR_DEFAULTS = 7


@frozen
class TapChoice:
    """The taps, or ``None`` where they follow from the target's depth; ``count`` is their number A either way."""

    taps: tuple[HiddenTap, ...] | None
    count: int
    notes: tuple[str, ...] = field(default=())

    def __str__(self) -> str:
        if self.taps is None:
            return "boundaries 2, N//2, N-3 of the target's N layers"
        return ", ".join(str(tap) for tap in self.taps)


def choose_taps(settings: Settings, overrides: DraftOverrides, problems: Problems) -> TapChoice:
    """The taps that the overrides, else the config, else the defaults name; a note where the config alone does not say.

    Layer ids are boundaries (Hugging Face ``hidden_states[i]``) unless an override or the key ``tap_convention`` says
    ``layer_output``: published configs are silent, and the drafts of the authors and of SpecForge are served that way.
    """
    ids = settings.ids(*TAP_ID_KEYS) or None
    uses_aux = settings.flag("use_aux_hidden_state")
    declared = _declared_convention(settings, problems)
    if overrides.taps is not None:
        return _overridden(overrides, ids, problems)
    if uses_aux is False:
        if ids is not None:
            problems.add(
                f"config.json contradicts itself: 'use_aux_hidden_state' is false, yet layer ids {[*ids]} are named; "
                "correct one of them"
            )
        if overrides.tap_convention is not None:
            _unused_convention(overrides.tap_convention, "the draft is fed the final hidden state only", problems)
        note = "fed the target's final hidden state: config.json says use_aux_hidden_state false"
        return TapChoice((HiddenTap.final_norm(),), 1, (note,))
    if ids is None:
        if overrides.tap_convention is not None:
            _unused_convention(overrides.tap_convention, "config.json names no layer ids", problems)
        note = (
            "taps are boundaries 2, N//2, N-3 of the target's N layers (EAGLE-3's own): config.json names no layer ids"
        )
        return TapChoice(None, _NUM_DEFAULT, (note,))
    if min(ids) < 0:
        problems.add(f"layer ids {[*ids]} must not be negative; name them from 0 upwards")
    convention, reason = _convention(overrides.tap_convention, declared)
    taps = tuple(HiddenTap.at(index, convention) for index in ids)
    if reason is None:
        return TapChoice(taps, len(taps))
    shown = ", ".join(str(tap) for tap in taps)
    return TapChoice(taps, len(taps), (f"layer ids {[*ids]} mean {shown} (convention {convention.value}): {reason}",))


def default_taps(num_layers: int) -> tuple[HiddenTap, ...] | None:
    """Boundaries 2, N//2 and N-3, or ``None`` where the target is too shallow for three different ones.

    Source: EAGLE-3 (Li et al. 2025), the authors' implementation.
    """
    if num_layers < _MIN_LAYERS_FOR_DEFAULTS:
        return None
    return tuple(HiddenTap(boundary) for boundary in (2, num_layers // 2, num_layers - 3))


def _overridden(overrides: DraftOverrides, ids: tuple[int, ...] | None, problems: Problems) -> TapChoice:
    taps = overrides.taps or ()
    if not taps:
        problems.add("the override names no taps; leave it out or name at least one")
    if overrides.tap_convention is not None:
        _unused_convention(overrides.tap_convention, "taps given explicitly are absolute", problems)
    shown = ", ".join(str(tap) for tap in taps)
    instead = "config.json names none" if ids is None else f"instead of layer ids {[*ids]} of config.json"
    return TapChoice(taps, len(taps), (f"taps {shown}: given explicitly, {instead}",))


def _convention(override: TapConvention | None, declared: TapConvention | None) -> tuple[TapConvention, str | None]:
    """The convention, and why it was chosen; ``None`` where the config says it itself."""
    if override is not None:
        return override, "given explicitly"
    if declared is not None:
        return declared, None
    return (
        TapConvention.BOUNDARY,
        "config.json does not say what they count, and EAGLE-3 drafts are published with boundaries; if acceptance is "
        f"low, try tap_convention={TapConvention.LAYER_OUTPUT.value}",
    )


def _declared_convention(settings: Settings, problems: Problems) -> TapConvention | None:
    text = settings.text(_CONVENTION_KEY)
    if text is None:
        return None
    for convention in TapConvention:
        if convention.value == text:
            return convention
    allowed = ", ".join(convention.value for convention in TapConvention)
    problems.add(f"'{_CONVENTION_KEY}' is '{text}' in config.json, expected one of {allowed}")
    return None


def _unused_convention(convention: TapConvention, why: str, problems: Problems) -> None:
    problems.add(f"tap_convention {convention.value} was given, but {why}; leave it out")
