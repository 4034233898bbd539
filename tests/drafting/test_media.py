"""What a draft is fed where images stand: the rows and positions that its spec declares, and no others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import pytest
import torch
from torch import Tensor

from outrider.drafting.builders import ChainBuilder, StaticTreeBuilder
from outrider.drafting.memory import DraftMemory
from outrider.errors import BindError
from outrider.interfaces import DrafterBuilder, GraphRunner, PreparedPrompt, Target
from outrider.loop import prefill as prefill_module
from outrider.loop.build import EngineOptions, build_engine
from outrider.loop.core import DecodeCore
from outrider.loop.prompts import NextMedia, PrefillPrompt, Span, next_media_of
from outrider.types import HiddenTap, MediaView, PositionView, RowAlignment
from outrider.types.request import Request
from outrider_backends.eager import EagerRunner
from outrider_backends.sdpa import SdpaBackend
from tests.support.engines import Outcome, drive
from tests.support.runners import RUNNERS
from tests.support.toy_drafts import SelfDraft, ToyDraft
from tests.support.toy_images import media_of, seeing_target, text_prompt, toy_image
from tests.support.toy_target import ToyStack
from tests.support.viewed_draft import ViewedDraft

Axes = Literal[1, 3]
SEEN, HELD = MediaView.TARGET_EMBEDDING, MediaView.PLACEHOLDER
TARGETS, INDEX = PositionView.TARGET, PositionView.INDEX
K = 3


def prompts_of(target: Target, hole: int) -> list[PreparedPrompt]:
    media = media_of(target)
    return [
        media.prepare((0, 5, hole, 9), [toy_image(2, 3, 1)]),
        text_prompt(target, (0, 5, 9, 7)),
        media.prepare((0, hole, hole), [toy_image(1, 4, 2), toy_image(3, 2, 3)]),
        media.prepare((hole, 6), [toy_image(2, 1, 5)]),
    ]


def run(
    target: Target,
    builder: DrafterBuilder,
    prompts: list[PreparedPrompt],
    runner: Callable[[], GraphRunner] = EagerRunner,
    budget: int = 8192,
    count: int = 1 + K + 1,
) -> list[Outcome]:
    options = EngineOptions(max_batch_size=4, page_size=4, max_prefill_tokens=budget)
    engine = build_engine(target, builder, attention=SdpaBackend(), runner=runner(), options=options)
    ids = [engine.submit(Request(prompt.token_ids, count), prompt if prompt.media else None) for prompt in prompts]
    engine.admit()
    while engine.num_prefilling:  # no rounds in between
        engine.prefill()
    done = drive(engine)
    return [done[request_id] for request_id in ids]


def viewed(
    target: Target, media: MediaView = SEEN, axes: Axes = 1, positions: PositionView = TARGETS
) -> tuple[ToyDraft, ViewedDraft]:
    """A draft with embeddings of its own, as wide as the target's."""
    taps = (HiddenTap.at(1),)
    inner = ToyDraft(target, taps=taps, recurrent=True, hidden=target.stack.spec.hidden_size)
    return inner, ViewedDraft(inner, media, axes, positions, record=True)


def expected_embeds(inner: ToyDraft, media: MediaView, prompt: PreparedPrompt, first: int) -> Tensor:
    rows: list[Tensor] = []
    for place, token in enumerate([*prompt.token_ids[1:], first], 1):
        seen = any(start <= place < end for start, end in prompt.media)
        if seen and media is SEEN:
            rows.append(prompt.embeds[place])
        elif 0 <= token < len(inner.embedding):
            rows.append(inner.embedding[token])
        else:
            rows.append(torch.zeros(inner.embedding.shape[1]))
    return torch.stack(rows)


def expected_positions(positions: PositionView, axes: Axes, prompt: PreparedPrompt, later: int) -> Tensor:
    """Of the prompt, and of ``later`` tokens after it."""
    count = len(prompt.token_ids)
    if positions is INDEX:
        own = torch.arange(count + later).expand(3, -1)
    else:
        placed = prompt.positions if prompt.positions.dim() == 2 else prompt.positions.expand(3, -1)
        after = torch.arange(count, count + later) + prompt.position_offset
        own = torch.cat([placed, after.expand(3, -1)], dim=1)
    return own if axes == 3 else own[0]


def check_prefill(
    target: Target, hole: int, media: MediaView, axes: Axes = 1, positions: PositionView = TARGETS, budget: int = 8192
) -> None:
    """What the draft was fed of all prompts, chunk after chunk."""
    inner, draft = viewed(target, media, axes, positions)
    prompts = prompts_of(target, hole)
    outcomes = run(target, ChainBuilder(draft, K), prompts, budget=budget, count=1)
    rows = draft.rows(sum(len(prompt.token_ids) for prompt in prompts))
    firsts = [outcome.token_ids[0] for outcome in outcomes]
    embeds = [expected_embeds(inner, media, prompt, first) for prompt, first in zip(prompts, firsts, strict=True)]
    assert torch.equal(rows.embeds, torch.cat(embeds))
    places = [expected_positions(positions, axes, prompt, 0) for prompt in prompts]
    assert torch.equal(rows.positions, torch.cat(places, dim=-1))


@pytest.mark.parametrize("budget", [1, 2, 5, 8, 100])
@pytest.mark.parametrize("media", MediaView)
@pytest.mark.parametrize("hole", [46, 1000, -200])
def test_rows_beside_features(hole: int, media: MediaView, budget: int) -> None:
    """Merged embeddings or placeholders, the draft's own embeddings of text, across the borders of chunks."""
    check_prefill(seeing_target(3, hole), hole, media, budget=budget)


@pytest.mark.parametrize("of_target", [1, 3])
@pytest.mark.parametrize("axes", [1, 3])
@pytest.mark.parametrize("positions", PositionView)
def test_positions_of_prompts(positions: PositionView, axes: Axes, of_target: Axes) -> None:
    check_prefill(seeing_target(of_target), 46, SEEN, axes, positions, budget=7)


@pytest.mark.parametrize("of_target", [1, 3])
@pytest.mark.parametrize("axes", [1, 3])
@pytest.mark.parametrize("positions", PositionView)
def test_positions_after_a_prompt(positions: PositionView, axes: Axes, of_target: Axes) -> None:
    """Drafted rows, and the verified rows of the first round."""
    target = seeing_target(of_target)
    prompt = prompts_of(target, 46)[2]
    assert prompt.position_offset < 0
    _, draft = viewed(target, SEEN, axes, positions)
    run(target, ChainBuilder(draft, K), [prompt], count=2)
    later = expected_positions(positions, axes, prompt, K + 1)[..., len(prompt.token_ids) :]
    stepped = torch.cat([each.positions for each in draft.stepped], dim=-1)
    assert torch.equal(stepped, later[..., : K - 1])
    assert torch.equal(draft.extended[-1].positions, later)


# -- a draft that equals its target is right only where it sees what the target sees -----------------------------------


def lengths(media: MediaView, builder: str, runner: str = "eager", hole: int = 46) -> set[int]:
    target = seeing_target(1, hole, plain=True)
    assert isinstance(target.stack, ToyStack)
    draft = ViewedDraft(SelfDraft(target, target.stack), media)
    made = ChainBuilder(draft, K) if builder == "chain" else StaticTreeBuilder(draft, (0, 0, 1, 1, 3))
    prompts = [prompt for prompt in prompts_of(target, hole) if prompt.token_ids[0] == 0]
    outcomes = run(target, made, prompts, RUNNERS[runner], count=18)
    return {length for outcome in outcomes for length in outcome.accept_lengths}


@pytest.mark.parametrize("builder", ["chain", "tree"])
@pytest.mark.parametrize("runner", RUNNERS)
def test_a_perfect_draft_that_sees_the_image_is_always_right(runner: str, builder: str) -> None:
    assert lengths(SEEN, builder, runner) == {K + 1}


@pytest.mark.parametrize("builder", ["chain", "tree"])
@pytest.mark.parametrize("hole", [46, 1000])
def test_a_perfect_draft_that_sees_placeholders_is_not(hole: int, builder: str) -> None:
    assert min(lengths(HELD, builder, hole=hole)) < K + 1


# -- what the checks above would find ----------------------------------------------------------------------------------

Chosen = Callable[[DecodeCore, list[PrefillPrompt], list[Span]], NextMedia | None]


def _without(core: DecodeCore, prompts: list[PrefillPrompt], spans: list[Span]) -> NextMedia | None:
    return None


def _own_position(core: DecodeCore, prompts: list[PrefillPrompt], spans: list[Span]) -> NextMedia | None:
    """The embedding of the pair's own token, not of the next one."""
    right = next_media_of(core, prompts, spans)
    return None if right is None else NextMedia(right.embeds.roll(1, dims=0), right.there.roll(1, dims=0))


def _last_row_too(core: DecodeCore, prompts: list[PrefillPrompt], spans: list[Span]) -> NextMedia | None:
    """Target embeddings of text as well."""
    right = next_media_of(core, prompts, spans)
    return None if right is None else NextMedia(right.embeds, torch.ones_like(right.there))


def _within_chunks(core: DecodeCore, prompts: list[PrefillPrompt], spans: list[Span]) -> NextMedia | None:
    """Blind at the border of a chunk."""
    right = next_media_of(core, prompts, spans)
    if right is None:
        return None
    ends = torch.tensor([span.size for span in spans]).cumsum(0) - 1
    return NextMedia(right.embeds, right.there.index_fill(0, ends, False))


@pytest.mark.parametrize("broken", [_without, _own_position, _last_row_too, _within_chunks])
def test_wrong_rows_are_found(monkeypatch: pytest.MonkeyPatch, broken: Chosen) -> None:
    monkeypatch.setattr(prefill_module, "next_media_of", broken)
    with pytest.raises(AssertionError):
        check_prefill(seeing_target(3), 46, SEEN, budget=5)


def test_wrong_positions_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    right = DraftMemory._in_range  # pyright: ignore[reportPrivateUsage] - broken on purpose

    def one_late(self: DraftMemory, positions: Tensor) -> Tensor:
        return right(self, positions + 1)

    monkeypatch.setattr(DraftMemory, "_in_range", one_late)
    with pytest.raises(AssertionError):
        check_prefill(seeing_target(3), 46, SEEN, axes=3)


# -- what cannot be fed is refused when an engine is built -------------------------------------------------------------


def test_a_narrower_draft_cannot_be_fed_the_targets_rows() -> None:
    target = seeing_target()
    draft = ViewedDraft(ToyDraft(target, hidden=12), SEEN)
    with pytest.raises(BindError, match=r"which is 16 wide, but its own embeddings are 12 wide"):
        run(target, ChainBuilder(draft, K), [])


def test_rows_of_tokens_alone_have_no_place_for_them() -> None:
    target = seeing_target()
    assert isinstance(target.stack, ToyStack)
    draft = ViewedDraft(SelfDraft(target, target.stack, alignment=RowAlignment.SAME), SEEN)
    with pytest.raises(BindError, match=r"it reads tokens alone; declare MediaView.PLACEHOLDER"):
        run(target, ChainBuilder(draft, K), [])
