"""`DirectCalls`: bodies called as ordinary Python, and held to what they declare as buffers of graphs hold them."""

from __future__ import annotations

from collections.abc import Hashable, Mapping

import torch
from torch import Tensor

from outrider.errors import GraphError, Problems
from outrider.graphs.buffers import note_misfits, slots_by_name
from outrider.graphs.media import items_in, media_calls
from outrider.graphs.results import check_outputs, wanted_rows
from outrider.interfaces import GraphBody, MediaBody
from outrider.types import AttnBatch, Axis, BodyCalls, Phase, PhaseShape

__all__ = ["DirectCalls"]

_CAPACITY = 1024
"""Sizes of prompts are many; when there are more, all are forgotten and checked anew."""


class DirectCalls:
    """Runs bodies without a graph, so that one that no graph could serve is told from the first call on, on every runner.

    The first call of each body at each size is checked, and shapes and dtypes given are part of the size; those like it are
    not, so that they cost next to nothing. Nothing here synchronises, and all of it may be part of a capture. Not thread-safe.
    """

    def __init__(self) -> None:
        # The body is kept so that its id stays its own.
        self._checked: dict[Hashable, GraphBody] = {}

    def run(
        self,
        phase: Phase,
        body: GraphBody,
        inputs: Mapping[str, Tensor],
        batch: AttnBatch,
        calls: BodyCalls,
        rows: Tensor | None = None,
    ) -> dict[str, Tensor]:
        """Outputs of ``body`` for ``inputs`` themselves, of those that count tokens only ``rows`` where given.

        ``calls``: attend through a plan for ``batch``.

        Raises:
            GraphError: ``inputs`` are not what the body declares, for a call of ``batch``; all faults at once.
            ConformanceError: what it returns is not; all faults at once.
        """
        key = (id(body), batch.num_tokens, batch.num_requests, *_given(inputs))
        size = None if key in self._checked else PhaseShape.of(batch)
        if size is not None:
            _check_inputs(phase, body, inputs, size, batch.slots.device)
        outputs = body(inputs, calls)
        if size is not None:
            self._check_outputs(phase, body, outputs, size, key)
        return wanted_rows(body.outputs, outputs, rows)

    def run_media(self, body: MediaBody, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Outputs of ``body`` for ``inputs`` themselves.

        One that says that it is never captured (`MediaBody.eager_because`), or that declares buffers that count tokens, which
        media have none of, is not checked: no runner captures it.

        Raises:
            GraphError: ``inputs`` are not what the body declares, or have no items; all faults at once.
            ConformanceError: what it returns is not what it declares; all faults at once.
        """
        phase = Phase.MEDIA_ENCODE
        key = (id(body), *_given(inputs))
        checked = key in self._checked or not _may_be_captured(body)
        size = None if checked else PhaseShape.of_media(items_in(body, inputs))
        if size is not None:
            _check_inputs(phase, body, inputs, size, next(iter(inputs.values())).device)
        outputs = body(inputs, media_calls())
        if size is not None:
            self._check_outputs(phase, body, outputs, size, key)
        return outputs

    def clear(self) -> None:
        """Forget which bodies were checked, and let them go."""
        self._checked.clear()

    def _check_outputs(
        self, phase: Phase, body: GraphBody, outputs: Mapping[str, Tensor], size: PhaseShape, key: Hashable
    ) -> None:
        """Refuse what is not declared; else calls like ``key`` are checked no more."""
        slots_by_name(body.outputs)  # refuses two of one name, as the buffers of a graph would
        check_outputs(body.outputs, outputs, size, f"{phase.value} at {size}")
        if len(self._checked) >= _CAPACITY:
            self._checked.clear()
        self._checked[key] = body


def _check_inputs(
    phase: Phase,
    body: GraphBody,
    inputs: Mapping[str, Tensor],
    size: PhaseShape,
    device: torch.device,
) -> None:
    slots = slots_by_name(body.inputs)
    with Problems(f"inputs of {phase.value} at {size} are not what the body declares", GraphError) as problems:
        note_misfits(problems, slots, inputs, size, dict.fromkeys(slots, device))


def _may_be_captured(body: MediaBody) -> bool:
    return body.eager_because is None and all(slot.axis is not Axis.TOKENS for slot in (*body.inputs, *body.outputs))


def _given(inputs: Mapping[str, Tensor]) -> list[Hashable]:
    """What of ``inputs`` a buffer must be like, devices aside: a call is on one, or fails by itself."""
    return [(name, tensor.shape, tensor.dtype) for name, tensor in inputs.items()]
