"""Outrider: exact speculative decoding behind typed seams.

>>> import outrider
>>> model = outrider.load()
>>> print(model.generate("def main():", max_new_tokens=32).text)
"""

from __future__ import annotations

from outrider.drafting.adaptive import AdaptiveChainBuilder
from outrider.drafting.builders import ChainBuilder, StaticTreeBuilder, TreeBuilder
from outrider.drafting.ngram import NgramBuilder
from outrider.generation.completion import BatchResult, Completion, Statistics, TextDelta
from outrider.generation.drafting import DraftingOptions
from outrider.generation.load import load
from outrider.generation.model import Prompt, SpeculativeModel, Video
from outrider.generation.report import render_capture, render_report
from outrider.generation.settings import RequestSettings
from outrider.loop.build import EngineOptions, build_engine
from outrider.loop.engine import Engine
from outrider.types.capture import CaptureSummary
from outrider.types.request import Emission, Request
from outrider.types.sampling import SamplingParams

__all__ = [
    "AdaptiveChainBuilder",
    "BatchResult",
    "CaptureSummary",
    "ChainBuilder",
    "Completion",
    "DraftingOptions",
    "Emission",
    "Engine",
    "EngineOptions",
    "NgramBuilder",
    "Prompt",
    "Request",
    "RequestSettings",
    "SamplingParams",
    "SpeculativeModel",
    "StaticTreeBuilder",
    "Statistics",
    "TextDelta",
    "TreeBuilder",
    "Video",
    "build_engine",
    "load",
    "render_capture",
    "render_report",
]
__version__ = "0.1.0"
