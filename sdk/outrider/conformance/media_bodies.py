"""Can the bodies of a `MultimodalProvider` be run, and captured, as they declare?"""

from __future__ import annotations

import torch
from torch import Tensor

from outrider.conformance.host_reads import forbid_host_reads
from outrider.conformance.paged import differs, run_nothing
from outrider.conformance.report import Faults
from outrider.graphs import groups_of, media_calls, shape_of
from outrider.interfaces import MediaBody, MultimodalProvider
from outrider.types import Axis, BufferSlot, PhaseShape

__all__ = ["check_media_bodies"]


def check_media_bodies(media: MultimodalProvider, device: torch.device, seed: int, faults: Faults) -> None:
    """The same bodies every time; each at its counts, its items on their own, its inputs left alone, no value read."""
    bodies = media.bodies
    again = media.bodies
    same = len(bodies) == len(again) and all(one is two for one, two in zip(bodies, again, strict=True))
    faults.expect(
        same, "bodies are made anew whenever they are asked, so no graph of them is found again; build them once"
    )
    for body in bodies:
        if body.eager_because is None:
            with faults.catching():
                _check_body(body, device, seed, faults)


def _check_body(body: MediaBody, device: torch.device, seed: int, faults: Faults) -> None:
    if not faults.expect(
        bool(body.counts), "a body that can be captured names no counts; name those it is run on, or say eager_because"
    ):
        return
    groups_of(1, body.counts)
    most = body.counts[-1]
    generator = torch.Generator().manual_seed(seed)
    inputs = {slot.name: _random(slot, most, generator).to(device) for slot in body.inputs}
    kept = {name: tensor.clone() for name, tensor in inputs.items()}
    whole = body(inputs, media_calls())
    faults.expect(
        all(torch.equal(inputs[name], kept[name]) for name in inputs),
        "a body of media changes its inputs; make results new",
    )
    if not _as_declared(body, whole, most, faults):
        return
    for count in body.counts:
        first = {slot.name: _items(slot, inputs[slot.name], count) for slot in body.inputs}
        found = body(first, media_calls())
        if not _as_declared(body, found, count, faults):
            return
        for slot in body.outputs:
            faults.expect(
                not differs(found[slot.name], _items(slot, whole[slot.name], count)),
                f"'{slot.name}' of {count} and of {most} items differ; an item must depend on no other",
            )
    with forbid_host_reads():
        body(inputs, media_calls(run_nothing))


def _as_declared(body: MediaBody, outputs: dict[str, Tensor], items: int, faults: Faults) -> bool:
    shape = PhaseShape.of_media(items)
    declared = {slot.name: (shape_of(slot, shape), slot.dtype) for slot in body.outputs}
    found = {name: (tuple(tensor.shape), tensor.dtype) for name, tensor in outputs.items()}
    return faults.expect(
        found == declared,
        f"outputs of {shape} are {found}, declared are {declared}; give what is declared, and nothing else",
    )


def _random(slot: BufferSlot, items: int, generator: torch.Generator) -> Tensor:
    shape = shape_of(slot, PhaseShape.of_media(items))
    if slot.dtype.is_floating_point:
        return torch.randn(shape, generator=generator).to(slot.dtype)
    return torch.full(shape, slot.padding, dtype=slot.dtype)


def _items(slot: BufferSlot, tensor: Tensor, count: int) -> Tensor:
    return tensor.narrow(len(slot.leading), 0, count) if slot.axis is Axis.REQUESTS else tensor
