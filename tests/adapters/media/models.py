"""Small random vision-language models of transformers, written as checkpoints and run as the reference."""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import Protocol, cast

import torch
from attrs import frozen
from PIL import Image
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForImageTextToText
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil
from transformers.models.siglip.image_processing_pil_siglip import SiglipImageProcessorPil

from outrider.checkpoint import Checkpoint
from outrider.interfaces import LoadOptions, MultimodalProvider, Target, TargetLoader, VideoFrames
from outrider.types import StackInputs
from outrider_adapters.llava import LlavaLoader
from outrider_adapters.qwen_vl import QwenVlLoader
from tests.adapters.llama.reference import ReferenceAttend, edit_config
from tests.adapters.media.clips import MAX_PIXELS, MIN_PIXELS, video_inputs
from tests.adapters.media.pictures import png

CPU = torch.device("cpu")
VOCAB_SIZE = 90
SPECIALS = ("<s>", "</s>", "<image>", "<|vision_start|>", "<|image_pad|>", "<|video_pad|>", "<|vision_end|>")
IDS = {text: number for number, text in enumerate(SPECIALS)}
LLAVA_CHAT = (
    "{% for m in messages %}{{ m.role }} : "
    "{% for part in m.content %}{% if part.type == 'image' %}<image> {% else %}{{ part.text }} {% endif %}{% endfor %}"
    "{% endfor %}{% if add_generation_prompt %}assistant :{% endif %}"
)
QWEN_CHAT = LLAVA_CHAT.replace("<image>", "<|vision_start|> <|image_pad|> <|vision_end|>").replace(
    "{% else %}", "{% elif part.type == 'video' %}<|vision_start|> <|video_pad|> <|vision_end|> {% else %}"
)

_TEXT: dict[str, object] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": VOCAB_SIZE,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
    "bos_token_id": 0,
    "eos_token_id": 1,
}
_VISION: dict[str, object] = {
    "hidden_size": 32,
    "intermediate_size": 40,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "image_size": 42,
    "patch_size": 14,
}
_QWEN_VISION: dict[str, object] = {
    "depth": 3,
    "hidden_size": 32,
    "intermediate_size": 40,
    "num_heads": 2,
    "patch_size": 14,
    "out_hidden_size": 32,
    "window_size": 56,
    "fullatt_block_indexes": [1],
    "tokens_per_second": 2,
}


@frozen(eq=False)
class HubOutput:
    """What a transformers model gave and what its decoder was fed, of one sequence.

    ``positions [3, P]`` is ``None`` where the model left them to its decoder.
    """

    logits: Tensor
    embeds: Tensor
    positions: Tensor | None


class _Output(Protocol):
    logits: Tensor


class _Generation(Protocol):
    eos_token_id: int | None


class _Model(Protocol):
    generation_config: _Generation

    @abstractmethod
    def __call__(self, **inputs: Tensor) -> _Output: ...

    @abstractmethod
    def generate(self, *, do_sample: bool, max_new_tokens: int, **inputs: Tensor) -> Tensor: ...

    @abstractmethod
    def save_pretrained(self, directory: Path, *, max_shard_size: str) -> None: ...


class _Processor(Protocol):
    @abstractmethod
    def __call__(self, images: list[Image.Image], *, return_tensors: str) -> Mapping[str, Tensor]: ...

    @abstractmethod
    def save_pretrained(self, directory: Path) -> None: ...


class HubModel:
    """A random float32 model, its image processor, and the files beside its weights."""

    def __init__(self, model_type: str, processor: object, image_id: int, chat: str, **settings: object) -> None:
        config = AutoConfig.for_model(model_type, **settings)  # pyright: ignore[reportUnknownMemberType] - **kwargs
        made: object = AutoModelForImageTextToText.from_config(  # type: ignore[no-untyped-call]  # transformers' own
            config, attn_implementation="eager"
        )
        self.module = cast("nn.Module", made).eval()
        self._model = cast("_Model", made)
        self._model.generation_config.eos_token_id = None
        self._processor = cast("_Processor", processor)
        self.image_id = image_id
        self._is_qwen = model_type == "qwen2_5_vl"
        self._chat = chat
        generator = torch.Generator().manual_seed(3)
        with torch.no_grad():
            for name, parameter in self.module.named_parameters():
                # Norms and biases start as ones and zeros, which would hide a missing one; a large spread makes texts vary.
                is_norm = "norm" in name or "ln_q" in name
                parameter.normal_(1.0 if is_norm else 0.0, 0.25, generator=generator)

    def save(self, directory: Path) -> Path:
        """Write a whole checkpoint; returns ``directory``."""
        self._model.save_pretrained(directory, max_shard_size="1GB")
        self._processor.save_pretrained(directory)
        write_tokenizer(directory)
        if self._is_qwen:
            size = {"shortest_edge": MIN_PIXELS, "longest_edge": MAX_PIXELS}
            settings = {"video_processor_type": "Qwen2VLVideoProcessor", "size": size}
            (directory / "video_preprocessor_config.json").write_text(json.dumps(settings))
        (directory / "chat_template.json").write_text(json.dumps({"chat_template": self._chat}))
        return directory

    def inputs(
        self, token_ids: Sequence[int], media: Sequence[bytes], videos: Sequence[VideoFrames] = ()
    ) -> dict[str, Tensor]:
        """What the model is called with for one prompt whose media have all their tokens."""
        ids = torch.tensor([list(token_ids)])
        inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
        if media:
            images = [Image.open(BytesIO(data)).convert("RGB") for data in media]
            inputs |= dict(self._processor(images, return_tensors="pt"))
        if videos:
            inputs |= video_inputs(videos)
        if self._is_qwen and (media or videos):
            inputs["mm_token_type_ids"] = (ids == self.image_id).int() + 2 * (ids == IDS["<|video_pad|>"]).int()
        return inputs

    def run(self, token_ids: Sequence[int], media: Sequence[bytes], videos: Sequence[VideoFrames] = ()) -> HubOutput:
        """One pass over a prompt."""
        fed: list[dict[str, object]] = []
        decoder = self.module.get_submodule("model.language_model")

        def keep(_module: nn.Module, _args: tuple[object, ...], kwargs: dict[str, object]) -> None:
            fed.append(kwargs)

        hook = decoder.register_forward_pre_hook(keep, with_kwargs=True)
        with torch.no_grad():
            logits = self._model(**self.inputs(token_ids, media, videos)).logits[0]
        hook.remove()
        positions = cast("Tensor | None", fed[0]["position_ids"])
        return HubOutput(
            logits, cast("Tensor", fed[0]["inputs_embeds"])[0], None if positions is None else positions[-3:, 0]
        )

    def generate(
        self, token_ids: Sequence[int], media: Sequence[bytes], count: int, videos: Sequence[VideoFrames] = ()
    ) -> list[int]:
        """``count`` greedy tokens after a prompt, by transformers' own loop."""
        inputs = self.inputs(token_ids, media, videos)
        with torch.no_grad():
            ids = self._model.generate(do_sample=False, max_new_tokens=count, **inputs)
        return [int(token) for token in ids[0, len(token_ids) :]]


def llava(tower: str = "clip_vision_model", text: dict[str, object] | None = None, **settings: object) -> HubModel:
    """LLaVA with a tower of nine patches; CLIP's rows are one more."""
    size = {"height": 42, "width": 42}
    processor = (
        CLIPImageProcessorPil(size={"shortest_edge": 42}, crop_size=size)
        if tower == "clip_vision_model"
        else SiglipImageProcessorPil(size=size)
    )
    return HubModel(
        "llava",
        processor,
        IDS["<image>"],
        LLAVA_CHAT,
        text_config={"model_type": "llama", **_TEXT, **(text or {})},
        vision_config={"model_type": tower, **_VISION},
        **{"image_token_index": IDS["<image>"], **settings},
    )


def qwen(text: dict[str, object] | None = None, **settings: object) -> HubModel:
    """Qwen2.5-VL with windows of two by two tokens in two of its three blocks."""
    rope = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [1, 1, 2]}
    processor = Qwen2VLImageProcessorPil(size={"shortest_edge": 56 * 56, "longest_edge": 28 * 28 * 24})
    return HubModel(
        "qwen2_5_vl",
        processor,
        IDS["<|image_pad|>"],
        QWEN_CHAT,
        text_config={**_TEXT, "rope_parameters": rope, **(text or {})},
        vision_config=_QWEN_VISION,
        image_token_id=IDS["<|image_pad|>"],
        vision_start_token_id=IDS["<|vision_start|>"],
        vision_end_token_id=IDS["<|vision_end|>"],
        **{"video_token_id": IDS["<|video_pad|>"], **settings},
    )


def write_tokenizer(directory: Path) -> None:
    """Words ``w7`` … and the special tokens, one id each, split at spaces."""
    words = [f"w{number}" for number in range(len(SPECIALS), VOCAB_SIZE - 3)]
    vocabulary = {word: number for number, word in enumerate([*SPECIALS, *words, "user", "assistant", ":"])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="</s>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens(list(SPECIALS))  # pyright: ignore[reportUnknownMemberType] - its stub says list[Unknown]
    tokenizer.save(str(directory / "tokenizer.json"))  # pyright: ignore[reportUnknownMemberType] - untyped default
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "</s>"}
    (directory / "tokenizer_config.json").write_text(json.dumps(settings))


def loader_of(directory: Path) -> TargetLoader:
    """The loader that takes the checkpoint, exactly one."""
    checkpoint = Checkpoint(directory)
    (one,) = [loader for loader in (LlavaLoader(), QwenVlLoader()) if loader.refuses(checkpoint) is None]
    return one


def load(directory: Path, dtype: torch.dtype | None = torch.float32, device: torch.device = CPU) -> Target:
    """The checkpoint as our loader loads it."""
    return loader_of(directory).load(Checkpoint(directory), LoadOptions(device, dtype))


def media_of(target: Target) -> MultimodalProvider:
    """The target's provider of media."""
    assert target.media is not None
    return target.media


def words(count: int, seed: int = 0) -> list[int]:
    """``count`` ids of plain words."""
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randint(len(SPECIALS), VOCAB_SIZE - 3, (count,), generator=generator)
    return [int(token) for token in drawn]


def prompt(model: HubModel, *pieces: list[int] | None) -> list[int]:
    """Token ids of a prompt of ``pieces``: words, or ``None`` for an image, with what a family puts around it."""
    around = (IDS["<|vision_start|>"], IDS["<|vision_end|>"])
    image = [around[0], model.image_id, around[1]] if model.image_id != IDS["<image>"] else [model.image_id]
    return [token for piece in pieces for token in (image if piece is None else piece)]


_MEDIA = [png(100, 60, 1), png(40, 90, 2)]


def logits(target: Target, token_ids: list[int], media: list[bytes]) -> tuple[tuple[int, ...], Tensor]:
    """Ids of the prepared prompt and its logits ``[P, V]``."""
    ready = media_of(target).prepare(token_ids, media)
    with torch.no_grad():
        inputs = StackInputs(ready.positions, ReferenceAttend(target.stack.spec.layers))
        return ready.token_ids, target.stack.logits(target.stack.run_layers(ready.embeds, inputs).hidden)


def check_logits(hub: HubModel, directory: Path) -> None:
    """Our logits of two images among text are those of transformers."""
    ids, found = logits(load(directory), prompt(hub, words(3, 1), None, words(2, 2), None, words(1, 3)), _MEDIA)
    assert float((found - hub.run(ids, _MEDIA).logits).abs().max()) <= 1e-4


def edit_section(directory: Path, section: str, **changes: object) -> None:
    """Set keys of a section of config.json; a value of `...` removes the key."""
    config: dict[str, dict[str, object]] = json.loads((directory / "config.json").read_text())
    kept = {key: value for key, value in {**config[section], **changes}.items() if value is not ...}
    edit_config(directory, **{section: kept})
