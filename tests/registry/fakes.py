"""Packages that exist only for a test, and loaders that answer what they are told to."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from attrs import field, frozen

from outrider.checkpoint import Checkpoint
from outrider.errors import CheckpointError
from outrider.interfaces import BoundDraft, Description, LayerStackProvider, LoadOptions, Target, UnboundDraft
from outrider.types import DraftSpec, ModelSpec, StackInputs, StackOutput

CPU = LoadOptions(device=torch.device("cpu"))


def install(
    site: Path, name: str, version: str, entries: Mapping[str, Mapping[str, str]], modules: Mapping[str, str]
) -> None:
    """A distribution in ``site``: ``entries`` by group and name, ``modules`` by name with their source."""
    info = site / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    lines = [line for group, of in entries.items() for line in (f"[{group}]", *(f"{k} = {v}" for k, v in of.items()))]
    (info / "entry_points.txt").write_text("\n".join(lines) + "\n")
    for module, source in modules.items():
        (site / f"{module}.py").write_text(source)


def write_checkpoint(directory: Path, architecture: str = "LlamaForCausalLM") -> Checkpoint:
    """A checkpoint that holds nothing but a config."""
    directory.mkdir(parents=True)
    (directory / "config.json").write_text(f'{{"architectures": ["{architecture}"]}}')
    return Checkpoint(directory)


class NoStack:
    """A stack that only has a name to be told by."""

    def __init__(self, loader: str) -> None:
        self.loader = loader

    @property
    def spec(self) -> ModelSpec:
        cpu = torch.device("cpu")
        return ModelSpec(self.loader, 1, 1, (), 1, torch.float32, cpu)

    def embed(self, token_ids: torch.Tensor) -> torch.Tensor:
        return token_ids

    def run_layers(self, hidden: torch.Tensor, inputs: StackInputs) -> StackOutput:
        return StackOutput(hidden)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return hidden


class NoDraft:
    """An unbound draft that never binds."""

    @property
    def spec(self) -> DraftSpec:
        raise CheckpointError("no spec")

    def bind(self, target: Target) -> BoundDraft:
        raise CheckpointError("no draft")


@frozen
class FakeTargets:
    """A target loader: refuses with ``refusal``, or loads a stack that bears its ``name``."""

    name: str
    refusal: str | None = None

    def refuses(self, checkpoint: Checkpoint) -> str | None:
        return self.refusal

    def load(self, checkpoint: Checkpoint, options: LoadOptions) -> Target:
        stack: LayerStackProvider = NoStack(self.name)
        return Target(stack=stack)

    def describe(self, checkpoint: Checkpoint) -> Description:
        return Description(kind=f"target of {self.name}", facts=(), notes=("a note",))


@frozen
class FakeDrafts:
    """The same for drafts; `draft` is what it loads."""

    name: str
    refusal: str | None = None
    draft: UnboundDraft = field(factory=NoDraft)

    def refuses(self, checkpoint: Checkpoint) -> str | None:
        return self.refusal

    def load(self, checkpoint: Checkpoint, options: LoadOptions) -> UnboundDraft:
        return self.draft

    def describe(self, checkpoint: Checkpoint) -> Description:
        return Description(kind=f"draft of {self.name}", facts=())


class BrokenTargets(FakeTargets):
    """A loader with a bug that shows when it looks at a checkpoint."""

    def refuses(self, checkpoint: Checkpoint) -> str | None:
        raise KeyError("hidden_size")


class FaultyTargets(FakeTargets):
    """A loader that finds the checkpoint itself at fault when it looks at it."""

    def refuses(self, checkpoint: Checkpoint) -> str | None:
        raise CheckpointError("model.safetensors: not complete; copy it again")
