"""Which attention backend a model runs with where the user leaves the choice open."""

from __future__ import annotations

from outrider import registry
from outrider.binding import check_attention
from outrider.errors import ConfigurationError
from outrider.generation.drafting import AUTO
from outrider.interfaces import AttnBackend, BoundDraft
from outrider.loop.build import EngineOptions
from outrider.types import ModelSpec

__all__ = ["choose_attention"]

_PREFERRED = {"cuda": ("triton", "sdpa")}
_EVERYWHERE = ("sdpa",)


def choose_attention(
    name: str, target: ModelSpec, draft: BoundDraft | None, options: EngineOptions | None
) -> tuple[AttnBackend, tuple[str, ...]]:
    """The backend ``name``, or for ``auto`` the first that can be had and serves the models; with why others were not taken.

    Raises:
        ConfigurationError: it cannot be had.
    """
    if name != AUTO:
        return registry.attention(name), ()
    notes: list[str] = []
    names = _PREFERRED.get(target.device.type, _EVERYWHERE)
    for candidate in names[:-1]:
        try:
            backend = registry.attention(candidate)
        except ConfigurationError as error:
            notes.append(f"{error}; '{names[-1]}' is used")
            continue
        problems = _problems(backend, target, draft, EngineOptions() if options is None else options)
        if not problems:
            return backend, tuple(notes)
        notes.append(f"'{candidate}' does not serve the models ({'; '.join(problems)}); '{names[-1]}' is used")
    return registry.attention(names[-1]), tuple(notes)


def _problems(
    backend: AttnBackend, target: ModelSpec, draft: BoundDraft | None, options: EngineOptions
) -> tuple[str, ...]:
    specs = [(target.layers, target.dtype, target.device)]
    if draft is not None:
        specs.append((draft.spec.layers, draft.spec.dtype, draft.spec.device))
    return tuple(
        problem
        for layers, dtype, device in specs
        for problem in check_attention(
            backend.capabilities, layers, dtype, device, options.page_size, needs_tree=draft is not None
        )
    )
