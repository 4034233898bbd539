"""`Patches`: how Qwen2.5-VL's image processor scales an image and cuts it up."""

from __future__ import annotations

from collections.abc import Sequence

from attrs import frozen
from PIL.Image import Image
from torch import Tensor

from outrider._torch import int_rows
from outrider.errors import CheckpointError, InputError
from outrider_adapters.media import Grid, HubImageProcessor, process

__all__ = ["Patches", "scaled_grid"]


def scaled_grid(width: int, height: int, side: int, min_pixels: int, max_pixels: int) -> Grid:
    """Rows and columns of tokens of ``side`` pixels after scaling to between ``min_pixels`` and ``max_pixels``.

    Raises:
        InputError: the processor refuses such a shape.
    """
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import smart_resize

    try:
        scaled = smart_resize(height, width, side, min_pixels, max_pixels)
    except ValueError as error:
        raise InputError(
            f"the longer side is {max(width, height) / min(width, height):g} times the shorter one, and the model's "
            f"image processor refuses it ({error}); crop it or pad its shorter side"
        ) from error
    return Grid(scaled[0] // side, scaled[1] // side)


@frozen
class Patches:
    """``size``: pixels of a patch's side; ``merge``: patches of each axis that make one token.

    ``min_pixels``, ``max_pixels``: between which an image is scaled.
    """

    size: int
    merge: int
    min_pixels: int
    max_pixels: int

    def grid(self, width: int, height: int) -> Grid:
        """Rows and columns of tokens of an image of this many pixels.

        Raises:
            InputError: the processor refuses its shape.
        """
        return scaled_grid(width, height, self.size * self.merge, self.min_pixels, self.max_pixels)

    def cut(
        self, processor: HubImageProcessor, images: Sequence[Image], grids: Sequence[Grid]
    ) -> tuple[Tensor, Tensor]:
        """Patches ``[N, values]`` of all images and ``[images, 3]`` frames, rows and columns of patches, on the CPU.

        Raises:
            InputError: the processor refuses the images.
            CheckpointError: it cuts them otherwise than ``grids`` say, because its config contradicts the tower's.
        """
        processed = process(processor, images)
        pixels, cells = processed["pixel_values"], processed["image_grid_thw"]
        expected = [[1, grid.height * self.merge, grid.width * self.merge] for grid in grids]
        if (found := int_rows(cells)) != expected:
            raise CheckpointError(
                f"the image processor cuts images into {found} patches (frames, rows, columns), expected {expected}; its "
                "config must say 'do_resize' true and have the tower's patch_size and merge_size"
            )
        return pixels, cells
