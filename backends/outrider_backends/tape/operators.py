"""What the tape must know of torch's operators; the one place that looks at their schemas, tags and storages."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import cast

import torch
from attrs import frozen
from torch import Tensor
from torch._ops import OpOverload

from outrider_backends.tape.faults import CaptureFault

__all__ = [
    "FROM_PYTHON",
    "LIFTS",
    "TO_THE_HOST",
    "UNWRITTEN",
    "Operator",
    "Written",
    "draws",
    "host_fault",
    "leaves",
    "memory_of",
    "random_state",
    "written_by",
]

Operator = OpOverload[..., object]

_aten = torch.ops.aten
_READS = frozenset(
    {
        _aten._local_scalar_dense.default,
        # In inference mode composite operators come as they are, not as the ones they are made of.
        _aten.allclose.default,
        _aten.equal.default,
        _aten.is_nonzero.default,
        _aten.item.default,
    }
)
_SIZES_BY_VALUE = frozenset(
    {
        _aten._unique2.default,
        _aten.argwhere.default,
        _aten.bincount.default,
        _aten.masked_select.default,
        _aten.nonzero.default,
        _aten.nonzero_numpy.default,
        _aten.unique_consecutive.default,
        _aten.unique_dim.default,
        _aten.where.default,
    }
)
_INDEXING = frozenset({_aten.index.Tensor, _aten.index_put.default, _aten.index_put_.default})
_REPEATING = frozenset({_aten.repeat_interleave.Tensor, _aten.repeat_interleave.self_Tensor})
_REBASING = frozenset(
    {
        _aten.resize_.default,
        _aten.resize_as_.default,
        _aten.set_.default,
        _aten.set_.source_Storage,
        _aten.set_.source_Storage_storage_offset,
        _aten.set_.source_Tensor,
        _aten.set_.source_Tensor_storage_offset,
    }
)

LIFTS = frozenset({_aten.lift_fresh.default, _aten.lift_fresh_copy.default})
"""How a tensor made from Python data enters."""

UNWRITTEN = frozenset(
    {
        _aten.empty.memory_format,
        _aten.empty_like.default,
        _aten.empty_permuted.default,
        _aten.empty_strided.default,
        _aten.new_empty.default,
        _aten.new_empty_strided.default,
    }
)
"""Operators that only allocate: nothing to replay, whoever writes the memory is recorded on its own."""

TO_THE_HOST = cast(
    "Mapping[Callable[..., object], str]",
    {  # pyright: ignore[reportUnknownArgumentType] - partly annotated
        Tensor.tolist: "Tensor.tolist",  # pyright: ignore[reportUnknownMemberType] - partly annotated
        Tensor.numpy: "Tensor.numpy",
        Tensor.cpu: "Tensor.cpu",
        Tensor.__repr__: "repr of a tensor",  # pyright: ignore[reportUnknownMemberType] - partly annotated
        Tensor.__array__: "numpy of a tensor",  # pyright: ignore[reportUnknownMemberType] - partly annotated
    },
)
"""What reads the memory itself on a CPU, so that no operator shows, with its name."""

FROM_PYTHON = cast(
    "Mapping[Callable[..., object], str]",
    {
        torch.tensor: "torch.tensor",
        torch.as_tensor: "torch.as_tensor",
        torch.from_numpy: "torch.from_numpy",  # pyright: ignore[reportUnknownMemberType] - numpy is not annotated
    },
)
"""Makers of tensors from Python data, with their names."""


def leaves(value: object) -> Iterator[object]:
    """Everything in nested lists, tuples and dictionaries, in order."""
    if isinstance(value, (list, tuple)):
        for part in cast("Sequence[object]", value):
            yield from leaves(part)
    elif isinstance(value, dict):
        for name, part in cast("dict[str, object]", value).items():
            yield name
            yield from leaves(part)
    else:
        yield value


def memory_of(tensor: Tensor) -> int:
    """What two tensors of the same memory have in common while both live; 0 where there is no memory."""
    if tensor.layout is not torch.strided:
        return -id(tensor)  # opaque (oneDNN's blocked weights) and sparse tensors have no storage to ask
    return tensor.untyped_storage().data_ptr()


@frozen(eq=False)
class Written:
    """Tensors that an operator writes to, and whether it writes at all."""

    mutates: bool
    tensors: tuple[Tensor, ...]


def written_by(func: Operator, args: tuple[object, ...], kwargs: dict[str, object]) -> Written:
    """What a call of ``func`` writes to in place, by its schema."""
    schema = func._schema  # pyright: ignore[reportPrivateUsage] - the schema has no public name
    if not schema.is_mutable:
        return Written(False, ())
    given = {argument.name: value for argument, value in zip(schema.arguments, args, strict=False)} | kwargs
    found: list[Tensor] = []
    for argument in schema.arguments:
        if argument.alias_info is not None and argument.alias_info.is_write:
            found += [leaf for leaf in leaves(given.get(argument.name)) if isinstance(leaf, Tensor)]
    return Written(True, tuple(found))


def host_fault(func: Operator, args: tuple[object, ...], kwargs: dict[str, object]) -> CaptureFault | None:
    """Why a call of ``func`` would make the host wait, or change what exists; ``None`` where it does not."""
    if func in _READS:
        return CaptureFault.HOST_READ
    if func in _REBASING:
        return CaptureFault.STORAGE
    by_mask = func in _INDEXING and any(map(_is_boolean, cast("Sequence[object]", args[1])))
    sizes_by_value = func in _SIZES_BY_VALUE or (func in _REPEATING and kwargs.get("output_size") is None)
    if by_mask or sizes_by_value:
        return CaptureFault.DYNAMIC_SHAPE
    tags = _tags(func)
    if torch.Tag.data_dependent_output in tags:
        return CaptureFault.HOST_READ
    # Indexing is tagged too, for its boolean masks; operators that were looked at one by one are done with.
    if torch.Tag.dynamic_output_shape in tags and func not in _INDEXING and func not in _REPEATING:
        return CaptureFault.DYNAMIC_SHAPE
    return None


def draws(func: Operator, given: Sequence[object]) -> bool:
    """Whether ``func``, ``given`` these leaves, may draw random numbers (dropout in evaluation is told by the state)."""
    return torch.Tag.nondeterministic_seeded in _tags(func) or takes_generator(given)


def takes_generator(given: Sequence[object]) -> bool:
    """Whether a random generator is among the leaves ``given`` to an operator."""
    # By type: torch answers `isinstance` of a generator in Python, which is slow where every argument is asked.
    return any(issubclass(type(leaf), torch.Generator) for leaf in given)


def random_state(device: torch.device) -> Tensor:
    """State of the default generator of ``device``; differs once a number was drawn."""
    return torch.cuda.get_rng_state(device) if device.type == "cuda" else torch.get_rng_state()


@cache
def _tags(func: Operator) -> frozenset[torch.Tag]:
    return frozenset(func.tags)


def _is_boolean(pick: object) -> bool:
    # uint8 is the mask type of old, and is indexed by in the same way.
    return isinstance(pick, Tensor) and pick.dtype in (torch.bool, torch.uint8)
