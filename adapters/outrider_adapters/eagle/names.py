"""Tensor names as the many exporters write them, brought to one form."""

from __future__ import annotations

from collections.abc import Mapping

from attrs import frozen

from outrider.checkpoint import TensorInfo
from outrider.errors import Problems

__all__ = ["TensorPlan", "canonical_name"]

_PREFIXES = ("draft_model.", "model.")
_MIDLAYER = "midlayer."
_HARMLESS = (".rotary_emb.inv_freq",)


def canonical_name(stored: str) -> str:
    """The name without exporter's prefixes, and with ``layers.{i}.`` for ``midlayer.`` and ``midlayer.{i}.``.

    >>> canonical_name("draft_model.midlayer.mlp.up_proj.weight")
    'layers.0.mlp.up_proj.weight'
    """
    name = stored
    for prefix in _PREFIXES:
        name = name.removeprefix(prefix)
    if not name.startswith(_MIDLAYER):
        return name
    rest = name.removeprefix(_MIDLAYER)
    index, _, tail = rest.partition(".")
    return f"layers.{index}.{tail}" if index.isdecimal() else f"layers.0.{rest}"


@frozen(eq=False)
class _Stored:
    name: str
    info: TensorInfo


class TensorPlan:
    """Which tensors of a checkpoint a draft will use, each under its canonical name and with its expected shape.

    Looks at names and shapes only. What is missing, misshapen or used by nobody goes into ``problems``.
    """

    def __init__(self, infos: Mapping[str, TensorInfo], problems: Problems) -> None:
        self._problems = problems
        self._stored: dict[str, _Stored] = {}
        self._used: set[str] = set()
        for name, info in infos.items():
            canonical = canonical_name(name)
            if canonical in self._stored:
                other = self._stored[canonical].name
                problems.add(f"tensors '{other}' and '{name}' are the same weight under two names; remove one")
            self._stored[canonical] = _Stored(name, info)
            if name.endswith(_HARMLESS):
                self._used.add(canonical)

    @property
    def names(self) -> Mapping[str, str]:
        """Stored name of every canonical name."""
        return {canonical: stored.name for canonical, stored in self._stored.items()}

    def has(self, name: str) -> bool:
        """Whether the checkpoint holds ``name``."""
        return name in self._stored

    def info(self, name: str) -> TensorInfo | None:
        """Shape, dtype and file of ``name``, or ``None``."""
        stored = self._stored.get(name)
        return None if stored is None else stored.info

    def columns(self, name: str) -> int | None:
        """Second size of the matrix ``name``; ``None`` where it is absent or no matrix."""
        info = self.info(name)
        return info.shape[1] if info is not None and len(info.shape) == 2 else None

    def need(self, name: str, shape: tuple[int, ...], meaning: str) -> bool:
        """Count on ``name`` with ``shape``; whether it is there. ``meaning`` says in messages what the shape is."""
        self._used.add(name)
        info = self.info(name)
        if info is None:
            self._problems.add(f"tensor '{name}' is missing, expected {list(shape)} ({meaning})")
            return False
        if info.shape != shape:
            stored = self._stored[name].name
            self._problems.add(f"tensor '{stored}' is {list(info.shape)}, expected {list(shape)} ({meaning})")
        return True

    def take(self, name: str, shape: tuple[int, ...], meaning: str) -> bool:
        """`need`, where the tensor may be absent."""
        return self.has(name) and self.need(name, shape, meaning)

    def use(self, name: str) -> None:
        """Count ``name`` as used; its shape is checked elsewhere."""
        self._used.add(name)

    def layer_indices(self) -> tuple[int, ...]:
        """The ``i`` of all ``layers.{i}.*``, ascending."""
        parts = (name.split(".") for name in self._stored)
        return tuple(sorted({int(p[1]) for p in parts if p[0] == "layers" and len(p) > 2 and p[1].isdecimal()}))

    def refuse_unused(self) -> None:
        """Note every tensor that nobody counted on."""
        unused = [stored.name for name, stored in self._stored.items() if name not in self._used]
        if unused:
            shown = ", ".join(f"'{name}'" for name in unused[:8]) + (", …" if len(unused) > 8 else "")
            self._problems.add(
                f"{len(unused)} tensors have no place in this kind of draft: {shown}; ignoring them would run another "
                "model than the one that was trained. Check which kind of draft this is, or export it again"
            )
