"""`Prompt`: one prompt with its images and settings, and what the engine is given for it."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from pathlib import Path

from attrs import field, frozen

from outrider.errors import ContextLengthError, InputError, Problems
from outrider.generation.files import read_image, shown_path
from outrider.generation.settings import RequestSettings
from outrider.interfaces import MultimodalProvider, PreparedPrompt, Target
from outrider.text.unicode import check_text

__all__ = ["DEFAULT_IMAGE_PAIR", "EncodedPrompt", "ImageLike", "Prompt", "PromptLike", "encode_prompt"]

DEFAULT_IMAGE_PAIR = "tiny-llava"
"""The pair that comes with the package for prompts with images."""

ImageLike = str | Path | bytes
"""An image: the path of its file, or the file's bytes."""


def _several(images: ImageLike | Iterable[ImageLike]) -> tuple[ImageLike, ...]:
    """``images``, one alone counting as a list of one."""
    if isinstance(images, (str, Path, bytes)):
        return (images,)
    try:
        return tuple(images)
    except TypeError as error:
        raise InputError(f"images is {images!r:.60}; give a list of paths of image files, or of their bytes") from error


@frozen
class Prompt:
    """One prompt, as text or as token ids, with settings of its own where they differ from the call's.

    ``images``: files or their bytes, in the order of the placeholders. A text without placeholders is taken as what a user
    says about its images, and rendered by the model's chat template. ``name``: what errors call it; by default its place.
    """

    content: str | tuple[int, ...]
    settings: RequestSettings | None = None
    images: tuple[ImageLike, ...] = field(default=(), converter=_several)
    name: str | None = field(default=None, eq=False)

    @classmethod
    def of(cls, prompt: PromptLike, images: ImageLike | Iterable[ImageLike] = ()) -> Prompt:
        """A prompt from text, ids or a prompt, with ``images``.

        Raises:
            InputError: it is none of these, or a prompt that has images of its own is given others.
        """
        given = _several(images)
        if isinstance(prompt, Prompt):
            if given:
                raise InputError("images are given beside a Prompt, which brings its own; put them into the Prompt")
            return prompt
        if isinstance(prompt, str):
            return cls(prompt, images=given)
        try:
            return cls(tuple(operator.index(token) for token in prompt), images=given)
        except TypeError as error:  # a float would be cut to a whole number further on
            raise InputError(f"the prompt is {prompt!r:.60}; give text, or whole numbers as token ids") from error


PromptLike = str | Sequence[int] | Prompt


@frozen(eq=False)
class EncodedPrompt:
    """``token_ids`` of a prompt, all those of its images included, and its images placed among them."""

    token_ids: tuple[int, ...]
    prepared: PreparedPrompt | None = None


def encode_prompt(target: Target, prompt: Prompt, place: int, max_tokens: int) -> EncodedPrompt:
    """What the engine of ``target`` is given for ``prompt``, the ``place``-th of its batch. Reads its image files.

    Images are encoded here and now, for this prompt alone. ``max_tokens``: the most tokens a prompt may have; one with
    images that has more is refused before they are encoded.

    Raises:
        InputError: text without a tokenizer or that is no Unicode; images for a model that takes none, files that cannot be
            read, images that cannot be used, more or fewer images than placeholders. What concerns images names the prompt.
        ContextLengthError: a prompt with images is too long.
    """
    if target.media is None:
        if prompt.images:
            raise InputError(f"{_named(prompt, place)}: {_no_images(target, len(prompt.images))}")
        return EncodedPrompt(_token_ids(target, prompt.content))
    token_ids = _token_ids(target, prompt.content)
    count = target.media.count_placeholders(token_ids)
    if not count and not prompt.images:
        return EncodedPrompt(token_ids)
    try:
        files = _read(prompt.images)
        content = token_ids
        if not count and isinstance(prompt.content, str):
            content = _token_ids(target, _as_chat(target.media, prompt.content, len(files)))
        prepared = target.media.prepare(content, files, max_tokens)
    except ContextLengthError as error:
        raise ContextLengthError(f"{_named(prompt, place)}: {error}") from error
    except InputError as error:
        raise InputError(f"{_named(prompt, place)}: {error}") from error
    return EncodedPrompt(prepared.token_ids, prepared)


def _named(prompt: Prompt, place: int) -> str:
    name = f"prompt {place}" if prompt.name is None else prompt.name
    shown = ", ".join(_shown(image) for image in prompt.images)
    return f"{name} (images {shown})" if shown else name


def _shown(image: ImageLike) -> str:
    return f"of {len(image)} bytes" if isinstance(image, bytes) else shown_path(image)


def _no_images(target: Target, count: int) -> str:
    given = "1 image is" if count == 1 else f"{count} images are"
    return (
        f"{given} given, but {target.stack.spec.name} reads text only; leave them out, or use a target with an image encoder: "
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


def _as_chat(media: MultimodalProvider, text: str, count: int) -> str:
    parts = [*({"type": "image"} for _ in range(count)), {"type": "text", "text": text}]
    rendered = media.render_chat([{"role": "user", "content": parts}])
    if rendered is None:
        given = "1 image was" if count == 1 else f"{count} images were"
        raise InputError(
            f"{given} given, but the prompt has 0 placeholders and the model no chat template that would place "
            "them; write the model's image placeholder into the prompt once for each image"
        )
    return rendered


def _read(images: Sequence[ImageLike]) -> list[bytes]:
    files: list[bytes] = []
    with Problems("its images cannot be read", InputError) as problems:
        for number, image in enumerate(images, 1):
            try:
                files.append(image if isinstance(image, bytes) else read_image(image))
            except InputError as error:
                problems.add(f"image {number} of {len(images)}, {error}")
    return files
