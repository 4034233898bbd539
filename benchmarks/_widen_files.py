"""Widened checkpoints: configs and tensors as if they lay in directories, each tensor made when it is read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property

import torch
from attrs import evolve, frozen
from torch import Tensor

from benchmarks._widen_maps import Placement, StackMap
from benchmarks._widen_spec import SmallPair, WidenSpec
from outrider.checkpoint import Checkpoint, Config, TensorFiles, TensorInfo

__all__ = ["WideCheckpoint", "WideFiles", "draft_checkpoint", "target_checkpoint"]

_ZERO_IN_IDENTITY_LAYERS = ("o_proj.weight", "down_proj.weight")


@frozen(eq=False)
class Recipe:
    """All tensors of a widened checkpoint: small ones to be placed, and small finished ones (whole numbers, on the CPU)."""

    placed: Mapping[str, Placement]
    finished: Mapping[str, Tensor]


class WideFiles(TensorFiles):
    """The tensors of a widened checkpoint; none is kept, so reading one by one takes the memory of the largest."""

    def __init__(self, small: Checkpoint, recipe: Recipe, dtype: torch.dtype, device: torch.device) -> None:
        super().__init__(small.directory)
        self._small = small.files
        self._recipe = recipe
        self._dtype, self._device = dtype, device
        sources = dict(self._small.infos)
        anywhere = next(iter(sources.values())).file
        infos: dict[str, TensorInfo] = {}
        for name, placement in recipe.placed.items():
            if placement.source is not None:
                placement.check(placement.source, sources[placement.source])
            infos[name] = TensorInfo(placement.shape, dtype, anywhere)
        for name, tensor in recipe.finished.items():
            infos[name] = TensorInfo(tuple(tensor.shape), tensor.dtype, anywhere)
        self.infos = infos

    def read(self, name: str) -> Tensor:
        """A fresh tensor on the device; the maps of a draft vocabulary are on the CPU."""
        if name in self._recipe.finished:
            return self._recipe.finished[name]
        placement = self._recipe.placed[name]
        if placement.source is None:
            return torch.zeros(placement.shape, dtype=self._dtype, device=self._device)
        return placement.make(self._small.read(placement.source), self._dtype, self._device)

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Every tensor with its name, made one at a time."""
        for name in self.infos:
            yield name, self.read(name)


class WideCheckpoint(Checkpoint):
    """A widened checkpoint for the loaders; tokenizer and generation config are those of the small directory."""

    def __init__(self, name: str, small: Checkpoint, config: Mapping[str, object], files: WideFiles) -> None:
        super().__init__(small.directory)
        self._name = name
        self._files = files
        self.config = Config(f"{name}/config.json", config)

    @property
    def name(self) -> str:
        """Its own name, not that of the small directory."""
        return self._name

    @cached_property
    def files(self) -> WideFiles:
        """The tensors, made when they are read."""
        return self._files


def target_checkpoint(spec: WidenSpec, small: SmallPair, dtype: torch.dtype, device: torch.device) -> WideCheckpoint:
    """The widened target; its tensors are made on ``device`` as ``dtype``.

    Raises:
        CheckpointError: a small tensor has no place, or not the shape that its config gives.
    """
    sizes = (small.target.vocab, spec.vocab)
    stack = StackMap(small.target, spec.target, sizes, num_taps=None)
    placed = {name: stack.place(name) for name in small.target_files.tensors if ".layers." not in name}
    head, embedding = "lm_head.weight", "model.embed_tokens.weight"
    if head not in placed:
        placed[head] = stack.place(embedding, head)
    positions = spec.positions(small.target.layers)
    for index in range(spec.layers):
        # Identity layers do the work of the real layer before them, and add none of it to the stream.
        real = max(order for order, position in enumerate(positions) if position <= index)
        prefix = f"model.layers.{real}."
        for name in (name for name in small.target_files.tensors if name.startswith(prefix)):
            placement = stack.place(name)
            if positions[real] != index and name.endswith(_ZERO_IN_IDENTITY_LAYERS):
                placement = evolve(placement, source=None)
            placed[f"model.layers.{index}.{name.removeprefix(prefix)}"] = placement
    config = {**_stack_config(spec, small.target_files, dtype), "intermediate_size": spec.ffn}
    config |= {"num_hidden_layers": spec.layers, "tie_word_embeddings": False}
    files = WideFiles(small.target_files, Recipe(placed, {}), dtype, device)
    return WideCheckpoint(f"{small.target_files.name}-as-{spec.name}", small.target_files, config, files)


def draft_checkpoint(spec: WidenSpec, small: SmallPair, dtype: torch.dtype, device: torch.device) -> WideCheckpoint:
    """The widened EAGLE-3 draft; its tensors are made on ``device`` as ``dtype``, its vocabulary map on the CPU.

    Raises:
        CheckpointError: a small tensor has no place, or not the shape that its config gives.
    """
    checkpoint = small.draft_files
    sizes = (small.target.vocab, spec.vocab)
    stack = StackMap(small.draft, spec.draft, sizes, num_taps=len(small.taps))
    placed = {name: stack.place(name) for name in checkpoint.tensors if name not in ("d2t", "t2d")}
    own_ids = torch.arange(small.draft.vocab) + checkpoint.files.read("d2t")
    target_ids = _target_ids(own_ids, small.target.vocab, spec)
    marks = torch.zeros(spec.vocab, dtype=torch.bool)
    marks[target_ids] = True
    finished = {"d2t": target_ids - torch.arange(spec.draft_vocab), "t2d": marks}
    eagle = checkpoint.config.section("eagle_config")
    taps = [spec.boundary(tap, small.target.layers) for tap in small.taps]
    config = {**_stack_config(spec, checkpoint, dtype), "intermediate_size": spec.draft_ffn}
    config |= {
        "draft_vocab_size": spec.draft_vocab,
        "target_hidden_size": spec.hidden,
        "tap_convention": "boundary",
        "eagle_config": {**(eagle.values if eagle is not None else {}), "eagle_aux_hidden_state_layer_ids": taps},
    }
    files = WideFiles(checkpoint, Recipe(placed, finished), dtype, device)
    return WideCheckpoint(f"{checkpoint.name}-as-{spec.name}", checkpoint, config, files)


def _stack_config(spec: WidenSpec, small: Checkpoint, dtype: torch.dtype) -> dict[str, object]:
    """What the configs of target and draft have in common."""
    values = dict(small.config.values)
    values |= {
        "hidden_size": spec.hidden,
        "num_attention_heads": spec.q_heads,
        "num_key_value_heads": spec.kv_heads,
        "head_dim": spec.head_dim,
        "vocab_size": spec.vocab,
        # The mean square over the wider rows is smaller by the same factor.
        "rms_norm_eps": small.config.get_float("rms_norm_eps") * small.config.get_int("hidden_size") / spec.hidden,
    }
    values["dtype" if "dtype" in values else "torch_dtype"] = str(dtype).removeprefix("torch.")
    return values


def _target_ids(own: Tensor, small_vocab: int, spec: WidenSpec) -> Tensor:
    """Target id ``[draft_vocab]`` of each draft id: the small draft's own first, then others, padding ids before real ones."""
    free = torch.ones(spec.vocab, dtype=torch.bool)
    free[own] = False
    ids = torch.arange(spec.vocab).roll(-small_vocab)
    return torch.cat((own, ids[free[ids]][: spec.draft_vocab - len(own)]))
