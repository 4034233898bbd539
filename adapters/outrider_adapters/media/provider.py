"""`ImagePromptProvider`: the `MultimodalProvider` of models that read images among text."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from attrs import frozen
from PIL.Image import Image

from outrider.errors import CheckpointError, ContextLengthError, InputError, Problems
from outrider.interfaces import ChatMessage, LayerStackProvider, MultimodalProvider, PreparedPrompt, TextCodec
from outrider_adapters.media.chat import MediaChat
from outrider_adapters.media.decode import decode_image
from outrider_adapters.media.encoder import ImageEncoder
from outrider_adapters.media.placement import Grid, Placement, merge, place

__all__ = ["ImagePromptProvider", "Placeholders"]


@frozen
class Placeholders:
    """Token ids that stand for media: ``image``, and ``refused``: those of media that cannot be given, by their name."""

    image: int
    refused: tuple[tuple[str, int], ...] = ()


class ImagePromptProvider(MultimodalProvider):
    """Decodes, measures, places and encodes the images of a prompt; keeps nothing between prompts."""

    def __init__(
        self,
        stack: LayerStackProvider,
        encoder: ImageEncoder,
        placeholders: Placeholders,
        codec: TextCodec | None,
        chat: MediaChat,
    ) -> None:
        """``stack`` embeds the text; ``codec`` ``None``: prompts are token ids."""
        self._stack = stack
        self._encoder = encoder
        self._placeholders = placeholders
        self._codec = codec
        self._chat = chat

    @torch.no_grad()
    def prepare(
        self, text: str | Sequence[int], media: Sequence[bytes], max_tokens: int | None = None
    ) -> PreparedPrompt:
        """Embeddings and positions of a prompt with its images; see `MultimodalProvider.prepare`.

        One pass of the tower encodes all images. Waits for the device.
        """
        token_ids = self._token_ids(text)
        images, grids = self._measured(media)
        placement = place(token_ids, self._placeholders.image, grids)
        self._check(placement, images, max_tokens)
        features = self._encoder.encode(images, grids) if images else None
        expected = (sum(grid.num_tokens for grid in grids), self._stack.spec.hidden_size)
        if features is not None and tuple(features.shape) != expected:
            raise CheckpointError(
                f"the tower gives rows {list(features.shape)} for {_counted(images)}, expected {list(expected)}; its config "
                "contradicts its weights"
            )
        embeds = merge(self._stack, placement, features)
        placed = self._encoder.positions(placement)
        return PreparedPrompt(
            placement.token_ids,
            embeds,
            placed.positions.to(self._stack.spec.device),
            placed.offset,
            tuple((span.start, span.end) for span in placement.spans),
        )

    def count_placeholders(self, text: str | Sequence[int]) -> int:
        """How many placeholders ``text`` holds, those of refused media included; see `MultimodalProvider`."""
        ids = self._token_ids(text)
        known = (self._placeholders.image, *(token for _, token in self._placeholders.refused))
        return sum(ids.count(token) for token in known)

    def render_chat(self, messages: Sequence[ChatMessage]) -> str | None:
        """The prompt text of a conversation with images; see `MultimodalProvider.render_chat`."""
        return self._chat.render(messages)

    def _token_ids(self, text: str | Sequence[int]) -> list[int]:
        if not isinstance(text, str):
            return list(text)
        if self._codec is None:
            raise InputError("the prompt is text, but the model has no tokenizer; give token ids")
        return self._codec.encode(text)

    def _measured(self, media: Sequence[bytes]) -> tuple[list[Image], list[Grid]]:
        images: list[Image] = []
        grids: list[Grid] = []
        with Problems("the prompt's images cannot be used", InputError) as problems:
            for number, data in enumerate(media, 1):
                name = f"image {number} of {len(media)}"
                try:
                    image = decode_image(data, name)
                except InputError as error:
                    problems.add(str(error))
                    continue
                try:
                    grids.append(self._encoder.grid(image.width, image.height))
                except InputError as error:
                    problems.add(f"{name} ({image.width} × {image.height} pixels): {error}")
                images.append(image)
        return images, grids

    def _check(self, placement: Placement, images: Sequence[Image], max_tokens: int | None) -> None:
        """Refuse a prompt before its images are encoded."""
        spec = self._stack.spec
        with Problems("the prompt cannot be used", InputError) as problems:
            for name, token in self._placeholders.refused:
                if count := placement.token_ids.count(token):
                    problems.add(
                        f"it has {count} {name} placeholder{'' if count == 1 else 's'} (token id {token}), but only images can "
                        "be given; give frames as images"
                    )
            allowed = self._placeholders.image
            outside = [token for token in placement.token_ids if token != allowed and not 0 <= token < spec.vocab_size]
            if outside:
                some = ", ".join(map(str, outside[:5])) + (", …" if len(outside) > 5 else "")
                problems.add(f"token ids {some} are outside the vocabulary 0..{spec.vocab_size - 1} of {spec.name}")
        length = len(placement.token_ids)
        if max_tokens is None or length <= max_tokens:
            return
        sizes = ", ".join(
            f"{image.width} × {image.height} pixels: {span.grid.num_tokens}"
            for image, span in zip(images, placement.spans, strict=True)
        )
        of_images = sum(span.grid.num_tokens for span in placement.spans)
        taken = f", {of_images} of them for {_counted(images)} ({sizes})" if images else ""
        raise ContextLengthError(
            f"the prompt has {length} token{'' if length == 1 else 's'}{taken}, at most {max_tokens} "
            f"{'is' if max_tokens == 1 else 'are'} allowed; give fewer or smaller images, a shorter text or a larger context"
        )


def _counted(images: Sequence[Image]) -> str:
    return "1 image" if len(images) == 1 else f"{len(images)} images"
