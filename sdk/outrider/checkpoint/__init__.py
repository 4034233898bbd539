"""Checkpoint directories in Hugging Face layout, read strictly, as data."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path

from outrider.checkpoint.config import Config
from outrider.checkpoint.hot_tokens import HotTokens, check_hot_tokens, load_hot_tokens
from outrider.checkpoint.tensors import TensorFiles, TensorInfo, TensorReader
from outrider.errors import CheckpointError

__all__ = [
    "Checkpoint",
    "Config",
    "HotTokens",
    "TensorFiles",
    "TensorInfo",
    "TensorReader",
    "check_hot_tokens",
    "load_hot_tokens",
]


class Checkpoint:
    """A checkpoint directory: ``config.json`` as typed data, tensors by name. Weights are read only when taken."""

    def __init__(self, directory: Path, allow_pickle: bool = False) -> None:
        """Open ``directory``.

        Raises:
            CheckpointError: there is no such directory, it may not be read, or it holds no ``config.json``.
        """
        try:
            if not directory.is_dir():
                found = "is a file" if directory.exists() else "does not exist"
                raise CheckpointError(f"{directory}: {found}, expected a directory with config.json and *.safetensors")
            if not (directory / "config.json").is_file():
                raise CheckpointError(f"{directory}: no config.json, so this is not a model directory")
        except OSError as error:
            raise CheckpointError(
                f"{directory}: cannot be looked into: {error.strerror}; check its permissions"
            ) from error
        self.directory = directory
        self._allow_pickle = allow_pickle
        self.config: Config = Config.read(directory / "config.json")

    @property
    def name(self) -> str:
        """Name of the directory, for messages."""
        return self.directory.name

    @property
    def architectures(self) -> tuple[str, ...]:
        """The ``architectures`` of the config."""
        return self.config.get_strs("architectures")

    @cached_property
    def files(self) -> TensorFiles:
        """The tensor files; opened at first use.

        Raises:
            CheckpointError: no weights, truncated or missing files, or pickled ones without the opt-in.
        """
        return TensorFiles(self.directory, self._allow_pickle)

    @property
    def tensors(self) -> dict[str, TensorInfo]:
        """Shape, dtype and file of every tensor, without reading any."""
        return self.files.infos

    def reader(self) -> TensorReader:
        """A fresh account of the tensors, none taken yet."""
        return TensorReader(self.files)

    def optional_json(self, name: str) -> Config | None:
        """The JSON file ``name`` of the directory, or ``None`` where there is none."""
        path = self.directory / name
        return Config.read(path) if path.is_file() else None
