"""The tower of the pair in graphs: what is said stays the same, images of waiting prompts stay apart, and it is told."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest
import torch

from examples.digits.questions import SEE
from outrider.generation.prompts import encode_prompt
from outrider.generation.report import render_capture, render_report
from outrider.graphs import GraphOptions, Steps, request_buckets, token_buckets
from outrider.interfaces import GraphRunner
from outrider.types import Phase, Role
from outrider.types.request import Request
from outrider_backends.breakable import breakable_runner
from outrider_backends.eager import EagerRunner
from outrider_backends.tape import TapeMedium, tape_runner
from tests.multimodal.pair import IMAGES, about, model_of, plain_texts, right_answer, seeing_pair
from tests.support.engines import drive

PHASE = Phase.MEDIA_ENCODE
MEDIA_ALONE = Steps(rounds=False, phases=False, breakable=False)


def few(role: Role = Role.BOTH) -> GraphOptions:
    return GraphOptions(request_buckets((2,)), token_buckets((128,)), role, poison=True)


RUNNERS: Mapping[str, Callable[[], GraphRunner]] = {
    "media alone": lambda: tape_runner(few(), MEDIA_ALONE, TapeMedium(debug=True)),
    "breakable": lambda: breakable_runner(few(), (TapeMedium(debug=True),)),
    "rounds elsewhere": lambda: tape_runner(few(Role.DECODE), MEDIA_ALONE, TapeMedium(debug=True)),
    "eager": EagerRunner,
}
SERVED = {"media alone": "media", "breakable": "media", "rounds elsewhere": "eager", "eager": "eager"}


@pytest.mark.parametrize("name", RUNNERS)
def test_images_of_prompts_that_wait_stay_apart(name: str) -> None:
    """All are encoded before the first is run, each by the graph of the one before."""
    model = model_of(seeing_pair(), "off", RUNNERS[name], batch=2)
    rows = list(IMAGES)[:3]
    waiting = [encode_prompt(model.target, about(row), 0, 512, model.engine.runner) for row in rows]
    ids = [model.engine.submit(Request(each.token_ids, 256), each.prepared) for each in waiting]
    done = drive(model.engine)
    for row, request_id in zip(rows, ids, strict=True):
        assert tuple(done[request_id].token_ids) == plain_texts((about(row),))[0]
    assert model.engine.report.ran[PHASE, SERVED[name]] == 3
    assert sum(count for (phase, _), count in model.engine.report.ran.items() if phase is PHASE) == 3
    model.close()


def test_generate_takes_the_runner_of_the_engine() -> None:
    model = model_of(seeing_pair(), "off", RUNNERS["breakable"], batch=1)
    rows = list(IMAGES)[:3]
    assert model.generate(about(rows[0])).text == right_answer(SEE, rows[0])
    assert model.engine.report.ran[PHASE, "media"] == 1
    model.generate(about(*rows), max_new_tokens=1)  # two at once, and one
    assert model.engine.report.ran[PHASE, "media"] == 3
    assert [each.size for each in model.engine.report.captured if each.phase is PHASE] == ["1 item", "2 items"]
    text = render_report(model.engine.report)
    assert "\nmedia encode: media 3\n" in text
    assert "\nmedia graphs: 2 in " in text
    model.close()


def test_captured_ahead_no_image_captures_anything() -> None:
    model = model_of(seeing_pair(), "off", RUNNERS["breakable"], batch=1, budget=128)
    summary = model.capture()
    assert [each.size for each in summary.captured if each.phase is PHASE] == [
        "8 items",
        "4 items",
        "2 items",
        "1 item",
    ]
    assert "media graphs: 4 in " in render_capture(summary)
    assert not summary.unserved
    media = model.target.media
    assert media is not None
    pictures = [path.read_bytes() for path in IMAGES.values()][:7]
    prompts = [media.prepare("<image>" * 7, pictures, runner=runner) for runner in (None, model.engine.runner)]
    assert torch.equal(prompts[0].embeds, prompts[1].embeds)
    assert model.engine.report.captured == list(summary.captured)
    assert model.engine.report.ran == {(PHASE, "media"): 3}
    model.close()


def test_a_worker_for_rounds_says_that_it_encodes_directly() -> None:
    model = model_of(seeing_pair(), "off", RUNNERS["rounds elsewhere"], batch=1)
    model.generate(about(next(iter(IMAGES))), max_new_tokens=1)
    text = render_report(model.engine.report)
    assert "\nmedia encode: eager 1\n" in text
    assert (
        "\nmedia encode, no graph: 1 time: the worker's role has no such graphs (media encode, on a worker for" in text
    )
    model.close()
