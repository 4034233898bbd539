"""Towers through runners: to the bit what they give directly, for any number of images; what cannot be captured is told."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
import torch
from torch import Tensor

from outrider.errors import CaptureError
from outrider.graphs import GraphOptions, media_calls
from outrider.interfaces import Break, GraphRunner, PreparedPrompt, Target
from outrider.types import Phase, PhaseShape, RefusalReason
from outrider_backends.breakable import breakable_runner
from outrider_backends.eager import EagerRunner
from outrider_backends.tape import TapeMedium, tape_runner
from tests.adapters.media.models import CPU, HubModel, llava, load, media_of, prompt, qwen
from tests.adapters.media.pictures import png
from tests.support.planners import FixedPlanner

PHASE = Phase.MEDIA_ENCODE
HUBS: Mapping[str, Callable[[], HubModel]] = {
    "clip": llava,
    "siglip": lambda: llava("siglip_vision_model"),
    "several states": lambda: llava(vision_feature_layer=[-2, 0]),
    "qwen": qwen,
}
LLAVAS = ["clip", "siglip", "several states"]
RUNNERS: Mapping[str, Callable[[], GraphRunner]] = {
    "tape": lambda: tape_runner(GraphOptions(poison=True), medium=TapeMedium(debug=True)),
    "breakable": lambda: breakable_runner(GraphOptions(poison=True), (TapeMedium(debug=True),)),
    "eager": EagerRunner,
}


class Models:
    """Each model made and loaded once."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._found: dict[str, tuple[HubModel, Target]] = {}

    def get(self, name: str) -> tuple[HubModel, Target]:
        if name not in self._found:
            hub = HUBS[name]()
            self._found[name] = hub, load(hub.save(self._directory / name))
        return self._found[name]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    return Models(tmp_path_factory.mktemp("towers"))


def prepared(hub: HubModel, target: Target, seeds: range, runner: GraphRunner | None) -> PreparedPrompt:
    pictures = [png(30 + 9 * seed, 100 - 7 * seed, seed) for seed in seeds]
    return media_of(target).prepare(prompt(hub, [9], *([None] * len(pictures)), [10]), pictures, runner=runner)


@pytest.mark.parametrize("name", HUBS)
@pytest.mark.parametrize("runner", RUNNERS)
def test_any_number_of_images_is_the_same_with_a_runner_and_without(models: Models, name: str, runner: str) -> None:
    hub, target = models.get(name)
    made = RUNNERS[runner]()
    for count in range(1, 10):
        directly, through = (prepared(hub, target, range(count), each) for each in (None, made))
        assert torch.equal(directly.embeds, through.embeds)
        assert (directly.token_ids, directly.media) == (through.token_ids, through.media)
    served = "media" if name in LLAVAS and runner != "eager" else "eager"
    # 1 to 9 of 8, 4, 2 and 1 are 15 groups; of no counts, one each.
    assert made.report.ran == {(PHASE, served): 15 if name in LLAVAS else 9}
    if served == "media":
        assert [record.size for record in made.report.captured] == ["1 item", "2 items", "4 items", "8 items"]
        assert not made.report.refused
    elif runner != "eager":
        [refused] = made.report.explained.values()
        assert (refused.by, refused.reason) == ("media", RefusalReason.BODY)
        assert "reads the sizes of the images on the host" in refused.numbers
        assert not made.report.captured


@pytest.mark.parametrize("name", HUBS)
def test_prompts_prepared_one_after_the_other_share_no_memory(models: Models, name: str) -> None:
    hub, target = models.get(name)
    made = RUNNERS["tape"]()
    firsts = [prepared(hub, target, range(seed, seed + 3), made) for seed in (0, 3, 6)]
    for seed, first in zip((0, 3, 6), firsts, strict=True):
        assert torch.equal(first.embeds, prepared(hub, target, range(seed, seed + 3), None).embeds)
    assert not torch.equal(firsts[0].embeds, firsts[1].embeds)


@pytest.mark.parametrize("name", LLAVAS)
def test_a_tower_is_captured_ahead_at_the_counts_that_it_names(models: Models, name: str) -> None:
    hub, target = models.get(name)
    made = tape_runner(GraphOptions(on_demand=False), medium=TapeMedium(debug=True))
    [body] = media_of(target).bodies
    shapes = [PhaseShape.of_media(items) for items in body.counts]
    assert made.capture(PHASE, body, shapes, FixedPlanner()) == tuple(shapes)
    captured = list(made.report.captured)
    prepared(hub, target, range(7), made)
    assert made.report.captured == captured
    assert made.report.ran == {(PHASE, "media"): 3}


def test_what_the_tower_of_qwen_says_is_true(models: Models) -> None:
    """Were transformers to stop reading on the host, it should be captured."""
    _, target = models.get("qwen")
    [body] = media_of(target).bodies
    assert body.eager_because is not None
    inputs = {"pixels": torch.randn(16, 3 * 2 * 14 * 14), "cells": torch.tensor([[1, 4, 4]])}

    def work(break_: Break) -> Mapping[str, Tensor]:
        return body(inputs, media_calls())

    with torch.inference_mode(), pytest.raises(CaptureError, match="on the host"):
        TapeMedium().capture(work, inputs, device=CPU, what="the tower")
