"""One suite for every attention backend; a new one adds a line to `BACKENDS`."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from outrider.interfaces import AttnBackend
from outrider.types import CaptureSupport
from outrider_backends.sdpa import create as create_sdpa
from tests.backends.attention_cases import Kind, build, build_pair, layers_for
from tests.backends.attention_checks import TOLERANCE, check_capture, check_independence, check_refresh, check_values
from tests.backends.device_only import device_only

BACKENDS: dict[str, Callable[[], AttnBackend]] = {"sdpa": create_sdpa}

PAGE_SIZES = (1, 7, 16)
CPU = torch.device("cpu")
CUDA = torch.device("cuda")

on_every_backend = pytest.mark.parametrize(
    ("name", "device"),
    [
        pytest.param(name, device, id=f"{name}-{device.type}", marks=[pytest.mark.gpu] if device is CUDA else [])
        for name in BACKENDS
        for device in (CPU, CUDA)
    ],
)
UNIFORM_KINDS = (Kind.DECODE, Kind.EXTEND, Kind.CHAIN, Kind.TREE, Kind.DRAFT_STEP)
every_kind = pytest.mark.parametrize("kind", Kind, ids=lambda kind: kind.value)


def backend_for(name: str, device: torch.device, dtype: torch.dtype, page_size: int) -> AttnBackend:
    backend = BACKENDS[name]()
    can = backend.capabilities
    if device.type not in can.devices:
        pytest.skip(f"{name} declares no {device.type}")
    if dtype not in can.dtypes or (can.page_sizes is not None and page_size not in can.page_sizes):
        pytest.skip(f"{name} declares no {dtype} with pages of {page_size}")
    return backend


@on_every_backend
@every_kind
@pytest.mark.parametrize("page_size", PAGE_SIZES)
def test_equals_reference(name: str, device: torch.device, kind: Kind, page_size: int) -> None:
    backend = backend_for(name, device, torch.float32, page_size)
    for seed in (1, 2):
        check_values(
            backend, build(kind, layers_for(backend.capabilities, device), page_size, torch.float32, device, seed)
        )


@on_every_backend
@every_kind
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_equals_reference_in_half_precision(name: str, device: torch.device, kind: Kind, dtype: torch.dtype) -> None:
    backend = backend_for(name, device, dtype, 16)
    check_values(backend, build(kind, layers_for(backend.capabilities, device), 16, dtype, device, 3))


@on_every_backend
@every_kind
def test_neighbours_do_not_matter(name: str, device: torch.device, kind: Kind) -> None:
    backend = backend_for(name, device, torch.float32, 16)
    check_independence(backend, build(kind, layers_for(backend.capabilities, device), 16, torch.float32, device, 4))


@on_every_backend
@every_kind
def test_refresh_equals_a_new_plan(name: str, device: torch.device, kind: Kind) -> None:
    backend = backend_for(name, device, torch.float32, 16)
    layers = layers_for(backend.capabilities, device)
    old, new = build_pair(kind, layers, device)
    check_refresh(backend, old, new)


@on_every_backend
@every_kind
def test_host_is_never_asked(name: str, device: torch.device, kind: Kind) -> None:
    """Refresh and attend read no value on the host and make no shape depend on data."""
    backend = backend_for(name, device, torch.float32, 16)
    world = build(kind, layers_for(backend.capabilities, device), 16, torch.float32, device, 8)
    plan = backend.plan(world.batch, world.layers, world.kv)
    with device_only():
        plan.refresh()
        for layer, (q, k, v) in enumerate(zip(world.q, world.k, world.v, strict=True)):
            plan.attend(layer, q, k, v)


def test_a_host_read_would_be_found() -> None:
    x = torch.arange(3)
    with device_only():
        for ask in (lambda: x.sum().item(), lambda: x.nonzero(), lambda: x[x > 1], lambda: x.masked_select(x > 1)):
            with pytest.raises(AssertionError, match="reads a value on the host"):
                ask()


@pytest.mark.gpu
@pytest.mark.parametrize("name", BACKENDS)
@pytest.mark.parametrize("kind", UNIFORM_KINDS, ids=lambda kind: kind.value)
def test_captured_graph_follows_the_tensors(name: str, kind: Kind) -> None:
    backend = backend_for(name, CUDA, torch.float32, 16)
    if backend.capabilities.capture is CaptureSupport.NONE:
        pytest.skip(f"{name} declares that it cannot be captured")
    check_capture(backend, *build_pair(kind, layers_for(backend.capabilities, CUDA), CUDA))


@on_every_backend
def test_row_that_sees_nothing_is_finite(name: str, device: torch.device) -> None:
    """A padding request: no prefix, no page, and a mask that hides everything."""
    backend = backend_for(name, device, torch.float32, 16)
    world = build(Kind.TREE, layers_for(backend.capabilities, device), 16, torch.float32, device, 7)
    mask = world.batch.tail_mask
    assert mask is not None
    mask[0] = False
    world.batch.page_table[0] = 0
    rows = slice(0, world.batch.query_lens[0])
    world.batch.slots[rows] = 16
    plan = backend.plan(world.batch, world.layers, world.kv)
    for layer, expected in enumerate(world.expected):
        out = plan.attend(layer, world.q[layer], world.k[layer], world.v[layer]).double().cpu()
        assert bool(out[rows].isfinite().all())
        later = world.real.clone()
        later[rows] = False
        assert (out - expected)[later].abs().max() <= TOLERANCE[torch.float32]
