"""What EAGLE drafts see of images and positions: by their config, told where it is silent, and beside real targets."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from attrs import evolve

from outrider.checkpoint import Checkpoint
from outrider.conformance import check_draft
from outrider.drafting.builders import ChainBuilder, TreeBuilder
from outrider.errors import CheckpointError, InputError
from outrider.generation.model import Prompt, SpeculativeModel
from outrider.graphs import Steps
from outrider.interfaces import BoundDraft, DrafterBuilder, GraphRunner, LoadOptions, Target
from outrider.loop.build import EngineOptions
from outrider.types import DraftSpec, MediaView, PositionScheme, PositionView
from outrider.types.request import Request
from outrider_adapters.eagle import Eagle3Loader, EagleLoader
from outrider_backends.breakable import breakable_runner
from outrider_backends.cuda_graph import cuda_graph_runner
from outrider_backends.eager import EagerRunner
from outrider_backends.sdpa import SdpaBackend
from tests.adapters.eagle.checkpoints import (
    HIDDEN,
    VOCAB,
    Sample,
    authors_eagle3,
    eagle1,
    random_tensor,
    specforge_eagle3,
    speculators_eagle3,
)
from tests.adapters.eagle.targets import CPU, EndsOnlyStack, make_target
from tests.adapters.media.models import VOCAB_SIZE, HubModel, llava, load, media_of, prompt, qwen, words
from tests.adapters.media.pictures import png
from tests.support.engines import drive, engine_of
from tests.support.toy_images import ToyMedia
from tests.support.toy_target import ToyStack
from tests.support.viewed_draft import ViewedDraft

SECTIONS = {"type": "mrope", "mrope_section": [1, 1, 2]}
WIDE_TARGET: dict[str, object] = {"target_hidden_size": 2 * HIDDEN}


def target_of(axes: int = 1, hidden: int = HIDDEN, media: bool = True) -> Target:
    made = make_target(hidden=hidden)
    spec = evolve(made.stack.spec, positions=PositionScheme(3 if axes == 3 else 1))
    assert made.weights is not None
    return evolve(
        made, stack=EndsOnlyStack(spec, made.weights), media=ToyMedia(ToyStack(), 46, None) if media else None
    )


def bound(sample: Sample, directory: Path, target: Target) -> DraftSpec:
    loader = Eagle3Loader() if "norm.weight" in sample.tensors else EagleLoader()
    return loader.load(Checkpoint(sample.write(directory)), LoadOptions(CPU)).bind(target).spec


def wide_eagle3(embedding: bool = True) -> Sample:
    """A draft of half its target's width, with an embedding of its own."""
    sample = authors_eagle3().configured(**WIDE_TARGET)
    fc = random_tensor("fc.weight", HIDDEN, 6 * HIDDEN)
    own = {"embed_tokens__weight": random_tensor("embed_tokens", VOCAB, HIDDEN)} if embedding else {}
    return sample.storing(fc__weight=fc, **own)


def notes_of(spec: DraftSpec, word: str) -> list[str]:
    return [note for note in spec.notes if word in note]


@pytest.mark.parametrize("sample", [authors_eagle3(), speculators_eagle3(), eagle1()])
@pytest.mark.parametrize(
    ("told", "view"),
    [
        ("target_embedding", MediaView.TARGET_EMBEDDING),
        ("placeholder", MediaView.PLACEHOLDER),
        (None, MediaView.TARGET_EMBEDDING),
    ],
)
def test_the_config_says_what_it_sees(sample: Sample, told: str | None, view: MediaView, tmp_path: Path) -> None:
    """Silence means what such drafts are trained with; that it was silent is told beside a target that reads images."""
    written = sample.configured(media_view=told)
    for number, media in enumerate((True, False)):
        spec = bound(written, tmp_path / str(number), target_of(media=media))
        assert spec.media is view
        assert len(notes_of(spec, "at images")) == int(media and told is None)


def test_a_narrow_draft_sees_the_placeholder_where_the_config_is_silent(tmp_path: Path) -> None:
    spec = bound(wide_eagle3(), tmp_path / "silent", target_of(hidden=2 * HIDDEN))
    assert spec.media is MediaView.PLACEHOLDER
    (note,) = notes_of(spec, "at images")
    assert f"its embeddings are {HIDDEN} wide, the target's {2 * HIDDEN}" in note
    told = bound(wide_eagle3().configured(media_view="placeholder"), tmp_path / "told", target_of(hidden=2 * HIDDEN))
    assert (told.media, notes_of(told, "at images")) == (MediaView.PLACEHOLDER, [])


@pytest.mark.parametrize(
    ("sample", "says"),
    [
        (
            wide_eagle3().configured(media_view="target_embedding"),
            f"'media_view' is 'target_embedding' .* embeddings are {HIDDEN} wide and the target's {2 * HIDDEN}",
        ),
        (authors_eagle3().configured(media_view="none"), "expected one of target_embedding, placeholder"),
        (
            authors_eagle3().configured(media_view="placeholder", eagle_config={"media_view": "target_embedding"}),
            "contradicts itself",
        ),
    ],
)
def test_a_view_that_cannot_be_is_refused(sample: Sample, says: str, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=says):
        bound(sample, tmp_path, target_of())


@pytest.mark.parametrize("of_target", [1, 3])
@pytest.mark.parametrize("rope", [None, SECTIONS])
def test_axes_are_those_of_its_rope(rope: dict[str, object] | None, of_target: int, tmp_path: Path) -> None:
    spec = bound(authors_eagle3().configured(rope_scaling=rope), tmp_path, target_of(of_target))
    assert spec.position_axes == (1 if rope is None else 3)
    counted = rope is None and of_target == 3
    assert spec.positions is (PositionView.INDEX if counted else PositionView.TARGET)
    assert len(notes_of(spec, "rope positions count tokens")) == int(counted)


def test_the_description_tells_both(tmp_path: Path) -> None:
    facts = dict(
        Eagle3Loader().describe(Checkpoint(authors_eagle3().configured(rope_scaling=SECTIONS).write(tmp_path))).facts
    )
    assert facts["at images"] == "the target's merged embedding"
    assert "axes 1/1/2" in facts["rope"]


# -- beside targets of transformers' kinds -----------------------------------------------------------------------------


def head_for_media(**changes: object) -> Sample:
    """A random EAGLE-3 head for the small vision-language models of the tests."""
    sample = specforge_eagle3((0, 1, 2)).configured(
        vocab_size=VOCAB_SIZE, max_position_embeddings=256, media_view="target_embedding", **changes
    )
    marks = torch.cat([sample.stored["t2d"], torch.zeros(VOCAB_SIZE - VOCAB, dtype=torch.bool)])
    return sample.storing(t2d=marks)


def bound_to(target: Target, directory: Path, sample: Sample) -> BoundDraft:
    options = LoadOptions(target.stack.spec.device, torch.float32)
    return Eagle3Loader().load(Checkpoint(sample.write(directory)), options).bind(target)


@pytest.mark.parametrize(
    ("make", "rope", "axes", "positions"),
    [
        (llava, None, 1, PositionView.TARGET),
        (qwen, {"rope_type": "default", "mrope_section": [1, 1, 2]}, 3, PositionView.TARGET),
        (qwen, None, 1, PositionView.INDEX),
    ],
)
def test_drafting_beside_real_targets(
    make: Callable[[], HubModel], rope: dict[str, object] | None, axes: int, positions: PositionView, tmp_path: Path
) -> None:
    """Text is transformers' own, in chains and trees, and the draft is fed the decoder's rows and positions."""
    hub = make()
    target = load(hub.save(tmp_path / "target"))
    draft = bound_to(target, tmp_path / "draft", head_for_media(rope_scaling=rope))
    spec = draft.spec
    assert (spec.position_axes, spec.positions) == (axes, positions)
    assert not check_draft(draft, target, attention=SdpaBackend()).failed
    images = [png(60, 60, 1), png(90, 40, 2)]
    ids = prompt(hub, words(2, 1), None, words(3, 2), None, words(2, 3))
    seen = media_of(target).prepare(ids, images)
    text = words(7, 4)
    expected = [hub.generate(seen.token_ids, images, 8), hub.generate(text, [], 8)]
    watched = ViewedDraft(draft, spec.media, spec.position_axes, spec.positions, record=True)
    builders: list[DrafterBuilder] = [ChainBuilder(watched, 3), TreeBuilder(draft, 2, 3, 6)]
    for builder in builders:
        engine = engine_of(target, builder, EngineOptions(page_size=4, max_prefill_tokens=7, max_length=128))
        requests = [
            engine.submit(Request(seen.token_ids, 8, eos_ids=()), seen),
            engine.submit(Request(tuple(text), 8, eos_ids=())),
        ]
        done = drive(engine)
        assert [done[request].token_ids for request in requests] == expected
    rows = watched.rows(len(seen.token_ids))
    assert torch.equal(rows.embeds[:-1], seen.embeds[1:])
    counted = torch.arange(len(seen.token_ids))
    assert torch.equal(rows.positions, counted if positions is PositionView.INDEX else seen.positions)


@pytest.mark.parametrize("make", [llava, qwen])
def test_prompts_as_a_user_writes_them(make: Callable[[], HubModel], tmp_path: Path) -> None:
    """A question goes through the processor's template, a text with placeholders is itself, text alone is text."""
    hub = make()
    target = load(hub.save(tmp_path / "target"))
    draft = bound_to(target, tmp_path / "draft", head_for_media())
    options = EngineOptions(page_size=4, max_length=128)
    model = SpeculativeModel(
        target, ChainBuilder(draft, 3), attention=SdpaBackend(), runner=EagerRunner, options=options
    )
    images = (png(60, 60, 1), png(60, 60, 2))
    chat = media_of(target).render_chat(
        [{"role": "user", "content": [{"type": "image"}, {"type": "image"}, {"type": "text", "text": "w30 w31"}]}]
    )
    assert chat is not None
    assert media_of(target).count_placeholders(chat) == 2
    found = model.generate_batch(
        [Prompt("w30 w31", images=images), Prompt(chat, images=images), "w30 w31"], max_new_tokens=6, ignore_eos=True
    ).completions
    rendered = media_of(target).prepare(chat, images).token_ids
    assert found[0].prompt_token_ids == found[1].prompt_token_ids == rendered
    assert list(found[0].token_ids) == hub.generate(rendered, list(images), 6)
    assert found[1].token_ids == found[0].token_ids
    assert list(found[2].token_ids) == hub.generate(found[2].prompt_token_ids, [], 6)
    with pytest.raises(
        InputError, match=r"^prompt 0: the prompt has 2 image placeholders \(token id \d\) and 0 images"
    ):
        model.generate(chat)


@pytest.mark.gpu
@pytest.mark.parametrize("make", [llava, qwen])
def test_captured_on_a_gpu_as_directly(make: Callable[[], HubModel], tmp_path: Path) -> None:
    """Images and text in a batch, and text after images, through every kind of graph."""
    device = torch.device("cuda", torch.cuda.current_device())
    target = load(make().save(tmp_path / "target"), device=device)
    rope = None if target.stack.spec.positions.axes == 1 else {"rope_type": "default", "mrope_section": [1, 1, 2]}
    draft = bound_to(target, tmp_path / "draft", head_for_media(rope_scaling=rope))
    prompts = [Prompt("w30 w31", images=(png(60, 60, seed),) if seed % 2 else ()) for seed in range(6)]
    runners: list[Callable[[], GraphRunner]] = [
        EagerRunner,
        cuda_graph_runner,
        lambda: cuda_graph_runner(steps=Steps(rounds=False)),
        breakable_runner,
    ]
    for builder in (ChainBuilder(draft, 3), TreeBuilder(draft, 2, 3, 6)):
        found: list[list[tuple[int, ...]]] = []
        for runner in runners:
            options = EngineOptions(max_batch_size=3, page_size=4, max_length=128)
            model = SpeculativeModel(target, builder, attention=SdpaBackend(), runner=runner, options=options)
            result = model.generate_batch(prompts, max_new_tokens=12, ignore_eos=True)
            found.append([completion.token_ids for completion in result.completions])
            model.close()
        assert found[1:] == found[:1] * 3
        assert len({*found[0][1::2]}) == 3, "each image has an answer of its own"
