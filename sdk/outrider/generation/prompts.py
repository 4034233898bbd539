"""`Prompt`: one prompt with its images, videos and settings, and what the engine is given for it."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence

import torch
from attrs import field, frozen

from outrider.errors import CapacityError, ContextLengthError, InputError
from outrider.generation.media import ImageLike, Video, given, read_media, several_images, several_videos, shown
from outrider.generation.settings import RequestSettings
from outrider.interfaces import GraphRunner, MultimodalProvider, PreparedPrompt, Target
from outrider.text.unicode import check_text

__all__ = ["DEFAULT_IMAGE_PAIR", "EncodedPrompt", "ImageLike", "Prompt", "PromptLike", "Video", "encode_prompt"]

DEFAULT_IMAGE_PAIR = "tiny-llava"
"""The pair that comes with the package for prompts with images."""


@frozen
class Prompt:
    """One prompt, as text or as token ids, with settings of its own where they differ from the call's.

    ``images``: files or their bytes, in the order of the placeholders; ``videos`` likewise, in the order of theirs. A text
    without placeholders is taken as what a user says about its media, and rendered by the model's chat template, images
    before videos. ``name``: what errors call it; by default its place.
    """

    content: str | tuple[int, ...]
    settings: RequestSettings | None = None
    images: tuple[ImageLike, ...] = field(default=(), converter=several_images)
    name: str | None = field(default=None, eq=False)
    videos: tuple[Video, ...] = field(default=(), converter=several_videos, kw_only=True)

    @classmethod
    def of(
        cls,
        prompt: PromptLike,
        images: ImageLike | Iterable[ImageLike] = (),
        videos: Video | Iterable[Video] = (),
    ) -> Prompt:
        """A prompt from text, ids or a prompt, with ``images`` and ``videos``.

        Raises:
            InputError: it is none of these, or a prompt that has media of its own is given others.
        """
        pictures, clips = several_images(images), several_videos(videos)
        if isinstance(prompt, Prompt):
            if pictures or clips:
                kind = "images" if pictures else "videos"
                raise InputError(f"{kind} are given beside a Prompt, which brings its own; put them into the Prompt")
            return prompt
        if isinstance(prompt, str):
            return cls(prompt, images=pictures, videos=clips)
        try:
            return cls(tuple(operator.index(token) for token in prompt), images=pictures, videos=clips)
        except TypeError as error:  # a float would be cut to a whole number further on
            raise InputError(f"the prompt is {prompt!r:.60}; give text, or whole numbers as token ids") from error


PromptLike = str | Sequence[int] | Prompt


@frozen(eq=False)
class EncodedPrompt:
    """``token_ids`` of a prompt, all those of its media included, and its media placed among them."""

    token_ids: tuple[int, ...]
    prepared: PreparedPrompt | None = None


def encode_prompt(
    target: Target, prompt: Prompt, place: int, max_tokens: int, runner: GraphRunner | None = None
) -> EncodedPrompt:
    """What the engine of ``target`` is given for ``prompt``, the ``place``-th of its batch. Reads its image files.

    Media are encoded here and now, for this prompt alone, through ``runner`` if there is one. ``max_tokens``: the most
    tokens a prompt may have; one with media that has more is refused before they are encoded.

    Raises:
        InputError: text without a tokenizer or that is no Unicode; media for a model that takes none, files that cannot be
            read, media that cannot be used, more or fewer than placeholders. What concerns media names the prompt.
        ContextLengthError: a prompt with media is too long.
        CapacityError: the device has no memory left to encode its media.
    """
    media, has_media = target.media, bool(prompt.images or prompt.videos)
    if media is None or (prompt.videos and not media.reads_videos):
        if has_media:
            raise InputError(f"{_named(prompt, place)}: {_unread(target, prompt)}")
        return EncodedPrompt(_token_ids(target, prompt.content))
    token_ids = _token_ids(target, prompt.content)
    count = media.count_placeholders(token_ids)
    if not count and not has_media:
        return EncodedPrompt(token_ids)
    try:
        files = read_media(prompt.images, prompt.videos)
        content = token_ids
        if not count and isinstance(prompt.content, str):
            content = _token_ids(target, _as_chat(media, prompt.content, len(files.images), len(files.videos)))
        prepared = media.prepare(content, files.images, max_tokens, runner, files.videos)
        return EncodedPrompt(prepared.token_ids, prepared)
    except ContextLengthError as error:
        raise ContextLengthError(f"{_named(prompt, place)}: {error}") from error
    except InputError as error:
        raise InputError(f"{_named(prompt, place)}: {error}") from error
    except torch.OutOfMemoryError as error:
        said = str(error).partition("\n")[0]
    # Not from within the handler: the device's error would keep alive what was computed until then.
    media_given, device = given(len(prompt.images), len(prompt.videos)), target.stack.spec.device
    raise CapacityError(
        f"{_named(prompt, place)}: {media_given}, and {device} has no memory left to encode them ({said}); give fewer or "
        "smaller ones, or leave less memory to keys and values"
    )


def _named(prompt: Prompt, place: int) -> str:
    name = f"prompt {place}" if prompt.name is None else prompt.name
    media = shown(prompt.images, prompt.videos)
    return f"{name} ({media})" if media else name


def _unread(target: Target, prompt: Prompt) -> str:
    """Why ``target`` cannot read the media of ``prompt``, and what can."""
    said, name = given(len(prompt.images), len(prompt.videos)), target.stack.spec.name
    if target.media is not None:
        return f"{said}, but {name} reads no videos; give frames as images, or use a Qwen2.5-VL checkpoint"
    if prompt.videos:
        return f"{said}, but {name} reads text only; leave them out, or use a Qwen2.5-VL checkpoint"
    return (
        f"{said}, but {name} reads text only; leave them out, or use a target with an image encoder: "
        f"a LLaVA or Qwen2.5-VL checkpoint, or the pair {DEFAULT_IMAGE_PAIR}"
    )


def _token_ids(target: Target, content: str | tuple[int, ...]) -> tuple[int, ...]:
    if not isinstance(content, str):
        return content
    if target.codec is None:
        raise InputError(f"{target.stack.spec.name} has no tokenizer; give the prompt as token ids")
    problem = check_text(content)
    if problem is not None:
        raise InputError(f"the prompt: {problem}")
    return tuple(target.codec.encode(content))


def _as_chat(media: MultimodalProvider, text: str, num_images: int, num_videos: int) -> str:
    parts = [{"type": kind} for kind, count in (("image", num_images), ("video", num_videos)) for _ in range(count)]
    rendered = media.render_chat([{"role": "user", "content": [*parts, {"type": "text", "text": text}]}])
    if rendered is None:
        raise InputError(
            f"{given(num_images, num_videos, past=True)}, but the prompt has 0 placeholders and the model no chat template "
            "that would place them; write the model's placeholder into the prompt once for each of them"
        )
    return rendered
