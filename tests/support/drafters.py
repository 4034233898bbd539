"""Drafters around another one."""

from __future__ import annotations

import torch
from attrs import frozen

from outrider.drafting.builders import NoDraftBuilder
from outrider.interfaces import Drafter, DrafterBuilder, DrafterParts
from outrider.types import AttentionSpec, DecodeState, HiddenTap, Proposal, TreeShape, VerifiedRows

__all__ = ["HostReaderBuilder", "WrappedBuilder", "WrappedDrafter"]


class WrappedDrafter(Drafter):
    """Does what ``inner`` does; tests override what they change."""

    def __init__(self, inner: Drafter) -> None:
        self._inner = inner

    @property
    def shape(self) -> TreeShape:
        return self._inner.shape

    @property
    def taps(self) -> tuple[HiddenTap, ...]:
        return self._inner.taps

    @property
    def runs_on_host(self) -> bool:
        return self._inner.runs_on_host

    def extend(self, rows: VerifiedRows) -> None:
        self._inner.extend(rows)

    def propose(self, state: DecodeState) -> Proposal:
        return self._inner.propose(state)

    def move_row(self, source: int, destination: int) -> None:
        self._inner.move_row(source, destination)


@frozen(eq=False)
class WrappedBuilder(DrafterBuilder):
    """Asks for what ``inner`` asks for; tests say what they build of its drafter."""

    inner: DrafterBuilder

    @property
    def slack(self) -> int:
        return self.inner.slack

    @property
    def needs_tree(self) -> bool:
        return self.inner.needs_tree

    @property
    def kv_layers(self) -> tuple[tuple[AttentionSpec, ...], torch.dtype] | None:
        return self.inner.kv_layers

    def build(self, parts: DrafterParts) -> Drafter:
        return self.inner.build(parts)


class HostReaderBuilder(NoDraftBuilder):
    """Plain decoding with a host read in the middle of every round."""

    def build(self, parts: DrafterParts) -> Drafter:
        return _HostReader(super().build(parts))


class _HostReader(WrappedDrafter):
    def propose(self, state: DecodeState) -> Proposal:
        assert int(state.lengths.sum().item()) >= 0
        return super().propose(state)
