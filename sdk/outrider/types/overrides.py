"""What a user may say about a draft that its checkpoint does not say, or says wrongly."""

from __future__ import annotations

from attrs import frozen

from outrider.types.taps import HiddenTap, TapConvention

__all__ = ["DraftOverrides"]


@frozen
class DraftOverrides:
    """Explicit answers that take precedence over a draft's checkpoint; each one used is noted in `DraftSpec.notes`.

    ``taps``: the target features it is fed, in order. ``tap_convention``: what the layer ids in its config count
    (useless beside ``taps``, which are absolute, and refused then). ``hot_tokens``: absolute target ids to which
    the target's head is sliced (FR-Spec), most frequent first; repeats are dropped. ``target_head``: use the
    target's head where the checkpoint brings none and no rule supplies one.

    A loader raises `outrider.CheckpointError` for an override that it cannot honour.
    """

    taps: tuple[HiddenTap, ...] | None = None
    tap_convention: TapConvention | None = None
    hot_tokens: tuple[int, ...] | None = None
    target_head: bool = False
