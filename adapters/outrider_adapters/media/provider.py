"""`ImagePromptProvider`: the `MultimodalProvider` of models that read images, and perhaps videos, among text."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import torch
from attrs import frozen
from torch import Tensor

from outrider.errors import CheckpointError, ContextLengthError, InputError, Problems
from outrider.interfaces import (
    ChatMessage,
    GraphRunner,
    LayerStackProvider,
    MediaBody,
    MultimodalProvider,
    PreparedPrompt,
    TextCodec,
    VideoFrames,
)
from outrider.types.counts import counted
from outrider_adapters.media.chat import MediaChat
from outrider_adapters.media.encoder import ImageEncoder, PromptPositions
from outrider_adapters.media.measure import MeasuredImage, MeasuredVideo, measure_images, measure_videos
from outrider_adapters.media.placement import Grid, MediaOfAKind, Medium, Placement, merge, place_media

__all__ = ["ImagePromptProvider", "Placeholders"]


@frozen
class Placeholders:
    """Token ids that stand for media: ``image``, and ``video`` where the model reads videos."""

    image: int
    video: int | None = None


class ImagePromptProvider(MultimodalProvider):
    """Decodes, measures, places and encodes the media of a prompt; keeps nothing between prompts."""

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
        self._videos = None if placeholders.video is None else encoder.videos
        self._codec = codec
        self._chat = chat

    @property
    def bodies(self) -> tuple[MediaBody, ...]:
        """Those of the encoder; see `MultimodalProvider.bodies`."""
        return self._encoder.bodies

    @property
    def reads_videos(self) -> bool:
        """Whether the model has both a placeholder and an encoder for them."""
        return self._videos is not None

    @torch.no_grad()
    def prepare(
        self,
        text: str | Sequence[int],
        media: Sequence[bytes],
        max_tokens: int | None = None,
        runner: GraphRunner | None = None,
        videos: Sequence[VideoFrames] = (),
    ) -> PreparedPrompt:
        """Embeddings and positions of a prompt with its media; see `MultimodalProvider.prepare`.

        The tower encodes the images of this prompt together, as many at once as the encoder takes, and then each video by
        itself. Waits for the device.
        """
        token_ids = self._token_ids(text)
        images, clips = self._measured(media, videos)
        placement = place_media(token_ids, self._kinds(images, clips))
        placed = self._encoder.positions(placement)
        self._check(placement, images, clips, max_tokens)
        self._check_times(placed, clips)
        embeds = merge(self._stack, placement, self._encoded(placement, images, clips, runner))
        return PreparedPrompt(
            placement.token_ids,
            embeds,
            placed.positions.to(self._stack.spec.device),
            placed.offset,
            tuple((span.start, span.end) for span in placement.spans),
        )

    def count_placeholders(self, text: str | Sequence[int]) -> int:
        """How many placeholders ``text`` holds, those of images and of videos; see `MultimodalProvider`."""
        ids = self._token_ids(text)
        return sum(
            ids.count(token) for token in (self._placeholders.image, self._placeholders.video) if token is not None
        )

    def render_chat(self, messages: Sequence[ChatMessage]) -> str | None:
        """The prompt text of a conversation with media; see `MultimodalProvider.render_chat`."""
        return self._chat.render(messages)

    def _token_ids(self, text: str | Sequence[int]) -> list[int]:
        if not isinstance(text, str):
            return list(text)
        if self._codec is None:
            raise InputError("the prompt is text, but the model has no tokenizer; give token ids")
        return self._codec.encode(text)

    def _measured(
        self, media: Sequence[bytes], videos: Sequence[VideoFrames]
    ) -> tuple[list[MeasuredImage], list[MeasuredVideo]]:
        if videos and self._videos is None:
            raise InputError(
                f"{counted(len(videos), 'video')} {'is' if len(videos) == 1 else 'are'} given, but {self._stack.spec.name} "
                "reads no videos; give frames as images"
            )
        kinds = " and ".join(kind for kind, some in (("images", media), ("videos", videos)) if some)
        with Problems(f"the prompt's {kinds} cannot be used", InputError) as problems:
            images = measure_images(self._encoder, media, problems)
            clips = [] if self._videos is None else measure_videos(self._videos, videos, problems)
        return images, clips

    def _kinds(self, images: Sequence[MeasuredImage], clips: Sequence[MeasuredVideo]) -> list[MediaOfAKind]:
        kinds = [MediaOfAKind(Medium.IMAGE, self._placeholders.image, tuple(each.grid for each in images))]
        if self._placeholders.video is not None:
            kinds.append(MediaOfAKind(Medium.VIDEO, self._placeholders.video, tuple(each.grid for each in clips)))
        return kinds

    def _encoded(
        self,
        placement: Placement,
        images: Sequence[MeasuredImage],
        clips: Sequence[MeasuredVideo],
        runner: GraphRunner | None,
    ) -> Tensor | None:
        """Rows of all media in the order of the prompt; ``None`` where there are none."""
        rows: dict[Medium, list[Tensor]] = {medium: [] for medium in Medium}
        if images:
            grids = [each.grid for each in images]
            encoded = self._encoder.encode([each.image for each in images], grids, runner)
            self._check_rows(encoded, grids, counted(len(images), "image"))
            ends = accumulate(grid.num_tokens for grid in grids)
            rows[Medium.IMAGE] += [encoded[end - grid.num_tokens : end] for grid, end in zip(grids, ends, strict=True)]
        for clip in clips:
            assert self._videos is not None
            encoded = self._videos.encode(clip.frames(), len(clip.clip.frames), clip.grid, runner)
            self._check_rows(encoded, [clip.grid], clip.name)
            rows[Medium.VIDEO].append(encoded)
        following = {medium: iter(parts) for medium, parts in rows.items()}
        return torch.cat([next(following[span.medium]) for span in placement.spans]) if placement.spans else None

    def _check_rows(self, rows: Tensor, grids: Sequence[Grid], of: str) -> None:
        expected = (sum(grid.num_tokens for grid in grids), self._stack.spec.hidden_size)
        if tuple(rows.shape) != expected:
            raise CheckpointError(
                f"the tower gives rows {list(rows.shape)} for {of}, expected {list(expected)}; its config contradicts its "
                "weights"
            )

    def _check(
        self,
        placement: Placement,
        images: Sequence[MeasuredImage],
        clips: Sequence[MeasuredVideo],
        max_tokens: int | None,
    ) -> None:
        """Refuse a prompt before its media are encoded."""
        spec = self._stack.spec
        known = (self._placeholders.image, self._placeholders.video)
        outside = [token for token in placement.token_ids if token not in known and not 0 <= token < spec.vocab_size]
        if outside:
            some = ", ".join(map(str, outside[:5])) + (", …" if len(outside) > 5 else "")
            raise InputError(
                f"the prompt cannot be used: token ids {some} are outside the vocabulary 0..{spec.vocab_size - 1} of "
                f"{spec.name}"
            )
        length = len(placement.token_ids)
        if max_tokens is None or length <= max_tokens:
            return
        parts: list[str] = []
        for medium, sizes in (
            (Medium.IMAGE, [each.size for each in images]),
            (Medium.VIDEO, [each.size for each in clips]),
        ):
            if sizes:
                spans = placement.spans_of(medium)
                each = ", ".join(f"{size}: {span.grid.num_tokens}" for size, span in zip(sizes, spans, strict=True))
                tokens = sum(span.grid.num_tokens for span in spans)
                parts.append(f", {tokens} of them for {counted(len(sizes), medium.value)} ({each})")
        raise ContextLengthError(
            f"the prompt has {counted(length, 'token')}{''.join(parts)}, at most {max_tokens} "
            f"{'is' if max_tokens == 1 else 'are'} allowed; give fewer or smaller {_kinds(images, clips)}, a shorter text or a "
            "larger context"
        )

    def _check_times(self, placed: PromptPositions, clips: Sequence[MeasuredVideo]) -> None:
        """Refuse videos that last longer than the model counts."""
        spec = self._stack.spec
        last = int(placed.positions.max()) if clips else 0
        if last >= spec.max_positions:
            lasting = ", ".join(f"{each.name} lasts {each.seconds:g} seconds" for each in clips)
            raise ContextLengthError(
                f"{lasting}, until position {last} in time, but {spec.name} has the positions 0 to {spec.max_positions - 1}; "
                "give fewer frames, or correct their frames per second"
            )


def _kinds(images: Sequence[MeasuredImage], clips: Sequence[MeasuredVideo]) -> str:
    return "images" if not clips else "frames, fewer or smaller images" if images else "frames"
