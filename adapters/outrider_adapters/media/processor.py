"""`read_image_processor`: transformers' image processor of a checkpoint, behind types."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol, cast

from PIL.Image import Image
from torch import Tensor

from outrider.checkpoint import Checkpoint
from outrider.errors import CheckpointError, InputError

__all__ = ["HubImageProcessor", "process", "read_image_processor"]

_KNOWN = ("CLIPImageProcessor", "SiglipImageProcessor", "LlavaImageProcessor", "Qwen2VLImageProcessor")


class _Size(Protocol):
    shortest_edge: int | None
    longest_edge: int | None


class HubImageProcessor(Protocol):
    """The part of a transformers image processor that is used."""

    @abstractmethod
    def __call__(self, images: Sequence[Image], *, return_tensors: str, **settings: object) -> Mapping[str, Tensor]:
        """Pixels, scaled, cropped and normalised as its config or ``settings`` say, and what tells their layout."""
        ...

    @property
    @abstractmethod
    def size(self) -> _Size:
        """What images are scaled to."""
        ...


def read_image_processor(checkpoint: Checkpoint) -> HubImageProcessor:
    """The image processor of ``checkpoint`` in its Pillow form, whose pixels do not depend on what else is installed.

    Raises:
        CheckpointError: there is none, transformers cannot read it or has no Pillow form of it.
    """
    directory = checkpoint.directory
    name = _named(checkpoint)
    try:
        made = _pillow_form(name.removesuffix("Fast"))
    except ImportError as error:
        raise CheckpointError(f"{directory}: images need transformers 5.10 or newer and Pillow ({error})") from error
    if made is None:
        raise CheckpointError(f"{directory}: its image processor is {name}, allowed are {', '.join(_KNOWN)}")
    try:
        return made.from_pretrained(directory, local_files_only=True)
    except Exception as error:  # whatever the processor's class raises
        raise CheckpointError(f"{directory}: the image processor cannot be read by transformers ({error})") from error


def _named(checkpoint: Checkpoint) -> str:
    """The class that the config of the image processor names."""
    own, whole = checkpoint.optional_json("preprocessor_config.json"), checkpoint.optional_json("processor_config.json")
    section = own if own is not None or whole is None else whole.section("image_processor")
    if section is None:
        raise CheckpointError(
            f"{checkpoint.directory}: no image processor was found, expected preprocessor_config.json, or "
            "processor_config.json with a section 'image_processor'"
        )
    return section.get_optional_str("image_processor_type") or section.get_str("feature_extractor_type")


def process(processor: HubImageProcessor, images: Sequence[Image], **settings: object) -> Mapping[str, Tensor]:
    """What ``processor`` makes of ``images``, by name, on the CPU; ``settings`` replace those of its config.

    Raises:
        InputError: it refuses them.
    """
    try:
        return processor(list(images), return_tensors="pt", **settings)
    except Exception as error:  # whatever the processor's class raises
        sizes = ", ".join(f"{image.width} × {image.height}" for image in images)
        raise InputError(f"the model's image processor refuses images of {sizes} pixels: {error}") from error


class _PillowForm(Protocol):
    """The part of a processor's class that is used; transformers leaves its signature partly untyped."""

    @abstractmethod
    def from_pretrained(self, directory: Path, *, local_files_only: bool) -> HubImageProcessor: ...


def _pillow_form(name: str) -> _PillowForm | None:
    """The Pillow form of a processor; transformers' own search for it asks for torchvision."""
    if name in ("CLIPImageProcessor", "CLIPFeatureExtractor"):
        from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

        return cast("_PillowForm", CLIPImageProcessorPil)
    if name == "SiglipImageProcessor":
        from transformers.models.siglip.image_processing_pil_siglip import SiglipImageProcessorPil

        return cast("_PillowForm", SiglipImageProcessorPil)
    if name == "LlavaImageProcessor":
        from transformers.models.llava.image_processing_pil_llava import LlavaImageProcessorPil

        return cast("_PillowForm", LlavaImageProcessorPil)
    if name in ("Qwen2VLImageProcessor", "Qwen2_5_VLImageProcessor"):
        from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

        return cast("_PillowForm", Qwen2VLImageProcessorPil)
    return None
