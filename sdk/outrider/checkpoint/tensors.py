"""`TensorFiles`: the tensors of a checkpoint by name, memory-mapped; `TensorReader` keeps account of their use."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol, cast

import torch
from attrs import frozen
from safetensors import SafetensorError, safe_open
from torch import Tensor

from outrider.checkpoint.config import Config
from outrider.errors import CheckpointError

__all__ = ["TensorFiles", "TensorInfo", "TensorReader"]

_DTYPES: Mapping[str, torch.dtype] = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
}


@frozen
class TensorInfo:
    """Shape, dtype and file of one stored tensor."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    file: Path


class _Slice(Protocol):
    @abstractmethod
    def get_shape(self) -> list[int]: ...

    @abstractmethod
    def get_dtype(self) -> str: ...


class _OpenFile(Protocol):
    """The part of safetensors' file handle that is used; the library itself is untyped."""

    @abstractmethod
    def keys(self) -> list[str]: ...

    @abstractmethod
    def get_slice(self, name: str) -> _Slice: ...

    @abstractmethod
    def get_tensor(self, name: str) -> Tensor: ...


class TensorFiles:
    """Every tensor of a checkpoint directory: one or sharded safetensors, or pickled files by explicit opt-in."""

    def __init__(self, directory: Path, allow_pickle: bool = False) -> None:
        self._open: dict[Path, _OpenFile] = {}
        self._pickled: dict[str, Tensor] = {}
        self.infos: dict[str, TensorInfo] = {}
        files = _weight_files(directory)
        if files:
            for file in files:
                self._index(file)
            return
        pickled = sorted(directory.glob("pytorch_model*.bin"))
        if not pickled:
            raise CheckpointError(f"{directory}: no weights found, expected *.safetensors")
        if not allow_pickle:
            raise CheckpointError(
                f"{directory}: holds only pickled weights ({', '.join(p.name for p in pickled)}), which can run code "
                "when opened; convert them to safetensors, or allow them explicitly (allow_pickle=True, --allow-pickle)"
            )
        for file in pickled:
            self._index_pickled(file)

    def read(self, name: str) -> Tensor:
        """The tensor ``name`` on the CPU, memory-mapped where the file allows it."""
        if name in self._pickled:
            return self._pickled[name]
        return self._open[self.infos[name].file].get_tensor(name)

    def _index(self, file: Path) -> None:
        try:
            # safetensors ships no usable types for its handle; this cast is the only place it is touched.
            handle = cast("_OpenFile", safe_open(file, framework="pt", device="cpu"))
            for name in handle.keys():  # noqa: SIM118 - not a mapping
                part = handle.get_slice(name)
                dtype = _DTYPES.get(part.get_dtype())
                if dtype is None:
                    raise CheckpointError(
                        f"{file}: tensor '{name}' is stored as {part.get_dtype()}, which is not readable; "
                        f"readable are {', '.join(_DTYPES)}"
                    )
                self._add(name, TensorInfo(tuple(part.get_shape()), dtype, file))
        except OSError as error:
            raise CheckpointError(f"{file}: cannot be read ({error}); check its permissions") from error
        except SafetensorError as error:
            raise CheckpointError(
                f"{file}: not a complete safetensors file ({error}); copy or download it again"
            ) from error
        self._open[file] = handle

    def _index_pickled(self, file: Path) -> None:
        try:
            loaded: object = torch.load(file, map_location="cpu", weights_only=True, mmap=True)
        except Exception as error:
            raise CheckpointError(f"{file}: cannot be read ({error})") from error
        if not isinstance(loaded, dict):
            raise CheckpointError(f"{file}: holds a {type(loaded).__name__}, expected named tensors")
        for name, tensor in cast("dict[object, object]", loaded).items():
            if not isinstance(name, str) or not isinstance(tensor, Tensor):
                raise CheckpointError(f"{file}: entry {name!r} is not a named tensor")
            self._pickled[name] = tensor
            self._add(name, TensorInfo(tuple(tensor.shape), tensor.dtype, file))

    def _add(self, name: str, info: TensorInfo) -> None:
        if name in self.infos:
            raise CheckpointError(
                f"tensor '{name}' is stored twice, in {self.infos[name].file.name} and {info.file.name}; remove one"
            )
        self.infos[name] = info


def _weight_files(directory: Path) -> Sequence[Path]:
    index = directory / "model.safetensors.index.json"
    if not index.is_file():
        return sorted(directory.glob("*.safetensors"))
    weight_map = Config.read(index).section("weight_map")
    if weight_map is None:
        raise CheckpointError(f"{index}: 'weight_map' is missing")
    names = sorted({weight_map.get_str(key) for key in weight_map.values})
    missing = [name for name in names if not (directory / name).is_file()]
    if missing:
        raise CheckpointError(
            f"{directory}: {len(missing)} of {len(names)} weight files that {index.name} lists are missing: "
            f"{', '.join(missing)}"
        )
    return [directory / name for name in names]


class TensorReader:
    """Hands out tensors once each and knows which nobody took.

    ``prefix`` is put before every name that is asked for.
    """

    def __init__(self, files: TensorFiles) -> None:
        self._files = files
        self._left = dict.fromkeys(files.infos)

    def has(self, name: str) -> bool:
        """Whether the checkpoint holds ``name``."""
        return name in self._files.infos

    def info(self, name: str) -> TensorInfo:
        """Shape, dtype and file of ``name``, which must be there."""
        return self._files.infos[name]

    def take(self, name: str) -> Tensor:
        """The tensor ``name`` on the CPU; counts as used."""
        if name not in self._files.infos:
            raise CheckpointError(f"tensor '{name}' is missing")
        self._left.pop(name, None)
        return self._files.read(name)

    def ignore(self, name: str) -> None:
        """Count ``name`` as used without reading it; it need not be there."""
        self._left.pop(name, None)

    @property
    def unused(self) -> tuple[str, ...]:
        """Names of tensors nobody took, in file order."""
        return tuple(self._left)
