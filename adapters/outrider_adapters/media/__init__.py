"""Images and videos in prompts: decoding, placing among text, and transformers' processors and towers behind types."""

from __future__ import annotations

from outrider_adapters.media.chat import MediaChat
from outrider_adapters.media.decode import decode_image
from outrider_adapters.media.encoder import ImageEncoder, PromptPositions, VideoEncoder
from outrider_adapters.media.hub import HubConfig, load_tower, read_hub_config
from outrider_adapters.media.loader import VisionLanguageLoader, VisionLanguagePlan
from outrider_adapters.media.placement import Grid, MediaOfAKind, Medium, Placement, Span, merge, place, place_media
from outrider_adapters.media.processor import HubImageProcessor, process, read_image_processor
from outrider_adapters.media.provider import ImagePromptProvider, Placeholders

__all__ = [
    "Grid",
    "HubConfig",
    "HubImageProcessor",
    "ImageEncoder",
    "ImagePromptProvider",
    "MediaChat",
    "MediaOfAKind",
    "Medium",
    "Placeholders",
    "Placement",
    "PromptPositions",
    "Span",
    "VideoEncoder",
    "VisionLanguageLoader",
    "VisionLanguagePlan",
    "decode_image",
    "load_tower",
    "merge",
    "place",
    "place_media",
    "process",
    "read_hub_config",
    "read_image_processor",
]
