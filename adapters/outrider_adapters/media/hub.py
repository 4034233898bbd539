"""What transformers knows of a multimodal checkpoint: its config with all defaults, and its tower."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Protocol, cast

import torch
from attrs import frozen
from torch import nn
from torch.overrides import TorchFunctionMode

from outrider.checkpoint import Checkpoint, Config
from outrider.errors import CheckpointError, Problems
from outrider_adapters.nn import WeightLoader

__all__ = ["HubConfig", "load_tower", "read_hub_config"]

_SIZES = (
    "depth",
    "hidden_size",
    "image_size",
    "in_channels",
    "intermediate_size",
    "num_attention_heads",
    "num_channels",
    "num_heads",
    "num_hidden_layers",
    "out_hidden_size",
    "patch_size",
    "spatial_merge_size",
    "temporal_patch_size",
    "window_size",
)
"""What towers count by; transformers takes any number and fails when an image comes."""


class _LoadedConfig(Protocol):
    """The part of a transformers config of a vision-language model that is used."""

    vision_config: object

    @abstractmethod
    def to_dict(self) -> dict[str, object]: ...


@frozen(eq=False)
class HubConfig:
    """``config.json`` as transformers reads it: published files leave out what their config class has as a default.

    ``values``: the whole. ``decoder``: the section of the decoder, with what stands beside it for all. ``vision``: the
    section of the tower. ``tower``: transformers' own object for that, which its modules are built from.
    """

    values: Config
    decoder: Config
    vision: Config
    tower: object


def read_hub_config(checkpoint: Checkpoint) -> HubConfig:
    """The config of ``checkpoint``, read by transformers from the directory alone.

    Raises:
        CheckpointError: transformers cannot read it, or it has no section for the tower or the decoder.
    """
    from transformers import AutoConfig

    where = checkpoint.config.where
    try:
        # transformers leaves the parameters and the result of this method untyped.
        loaded = cast("_LoadedConfig", AutoConfig.from_pretrained(checkpoint.directory, local_files_only=True))  # pyright: ignore[reportUnknownMemberType] - see above
        values = Config(where, loaded.to_dict())
    except Exception as error:  # whatever the config's class raises
        raise CheckpointError(f"{where}: cannot be read by transformers ({error})") from error
    text, vision = values.section("text_config"), values.section("vision_config")
    if text is None or vision is None:
        raise CheckpointError(f"{where}: 'text_config' and 'vision_config' are needed, one of them is missing")
    with Problems(f"{vision.where} does not describe a usable tower", CheckpointError) as problems:
        for key in _SIZES:
            if (size := vision.get_optional_int(key)) is not None and size < 1:
                problems.add(f"'{key}' is {size}, at least 1 is needed")
    shared = {
        key: values.values[key]
        for key in ("dtype", "eos_token_id", "quantization_config", "tie_word_embeddings")
        # Whichever of the two names it; the decoder's own word counts, but for ties, which either may declare.
        if values.has(key) and (not text.has(key) or (key == "tie_word_embeddings" and values.values[key] is True))
    }
    return HubConfig(values, Config(text.where, {**text.values, **shared}), vision, loaded.vision_config)


class _EmptyIsMeta(TorchFunctionMode):
    """Tensors that a module asks for without values, its weights, are placed on ``meta``; computed buffers are real."""

    def __torch_function__(
        self,
        func: Callable[..., object],
        types: Sequence[type],
        args: tuple[object, ...] = (),
        kwargs: dict[str, object] | None = None,
    ) -> object:
        kwargs = kwargs or {}
        if func is torch.empty:
            kwargs = {**kwargs, "device": "meta"}
        return func(*args, **kwargs)


def load_tower(
    hub: HubConfig,
    make: Callable[[], nn.Module],
    weights: WeightLoader,
    device: torch.device,
    outer: str = "",
) -> nn.Module:
    """The module that ``make`` builds from ``hub``, in inference, with weights from ``weights``, which notes what is missing.

    No weight is initialised or held twice. ``outer``: a prefix that versions of the module give to all names; ``weights``
    must look for names without it.

    Raises:
        CheckpointError: transformers builds no module from such a config.
    """
    try:
        with _EmptyIsMeta():
            module = make()
    except Exception as error:  # whatever the module's class raises
        raise CheckpointError(
            f"{hub.vision.where}: transformers cannot build the tower ({type(error).__name__}: {error})"
        ) from error
    state = {
        name: weights.tensor(
            name.removeprefix(outer), tuple(value.shape), None if value.is_floating_point() else value.dtype
        )
        for name, value in module.state_dict().items()
    }
    module.load_state_dict(state, assign=True)
    module.requires_grad_(False).eval()
    return module if device.type == "meta" else module.to(device)
