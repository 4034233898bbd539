"""Prompts with images through the loop are token for token what the target alone gives, whatever runs them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Literal

import pytest
import torch
from attrs import evolve
from torch import Tensor

from outrider.drafting.builders import ChainBuilder, StaticTreeBuilder, TreeBuilder
from outrider.drafting.ngram import NgramBuilder
from outrider.errors import ContextLengthError, InputError
from outrider.interfaces import DrafterBuilder, GraphRunner, PreparedPrompt, Target, Verifier
from outrider.kv import PagePool
from outrider.loop.build import EngineOptions, build_engine
from outrider.loop.engine import Engine
from outrider.loop.rows import RowSetup, RowStore
from outrider.types import HiddenTap, MediaView, PositionView, RequestId, RowAlignment, SamplingParams
from outrider.types.request import Request
from outrider.verification import BlockVerifier, ExactVerifier, RejectionVerifier, TypicalVerifier
from outrider_backends.eager import EagerRunner
from outrider_backends.sdpa import SdpaBackend
from tests.support.engines import Outcome, drive
from tests.support.runners import RUNNERS
from tests.support.toy_drafts import SelfDraft, ToyDraft
from tests.support.toy_images import ToyMedia, greedy_after, media_of, seeing_target, text_prompt, toy_image
from tests.support.toy_target import CPU, ToyStack
from tests.support.viewed_draft import ViewedDraft

Axes = Literal[1, 3]
COUNT = 8
FAR = 1000
"""A placeholder id outside the vocabulary."""
TAPS = (HiddenTap.at(2), HiddenTap.at(0))


@cache
def target_of(axes: Axes, placeholder: int = 46) -> Target:
    return seeing_target(axes, placeholder)


def prompts_of(target: Target) -> list[PreparedPrompt]:
    """Four with images (one, two, one at the end, one at the beginning), four without."""
    assert isinstance(target.media, ToyMedia)
    media, hole = target.media, target.media.placeholder
    return [
        media.prepare((0, 5, hole, 9, 7), [toy_image(2, 3, 1)]),
        text_prompt(target, (0, 5, 9, 7)),
        media.prepare((0, hole, 4, 4, hole, 8), [toy_image(1, 4, 2), toy_image(3, 2, 3)]),
        text_prompt(target, (0, 31)),
        media.prepare((0, 12, 9, hole), [toy_image(2, 2, 4)]),
        text_prompt(target, (0, 7, 7, 3, 2, 7, 7, 3)),
        media.prepare((hole, 6), [toy_image(1, 1, 5)]),
        text_prompt(target, (0, 12)),
    ]


def viewed(
    target: Target, media: MediaView, axes: Axes = 1, positions: PositionView = PositionView.TARGET
) -> ViewedDraft:
    """A draft of few tokens that is fed features and hands a state on, so that some of what it proposes is right."""
    width = target.stack.spec.hidden_size
    likely = sorted({token for prompt in prompts_of(target)[:3] for token in greedy_after(target, prompt, 8)})[:8]
    draft = ToyDraft(target, taps=TAPS, recurrent=True, ids=likely, hidden=width)
    return ViewedDraft(draft, media, axes, positions)


def self_draft(target: Target, alignment: RowAlignment = RowAlignment.SHIFTED) -> SelfDraft:
    assert isinstance(target.stack, ToyStack)
    return SelfDraft(target, target.stack, alignment=alignment)


BUILDERS: Mapping[str, Callable[[Target], DrafterBuilder | None]] = {
    "plain": lambda target: None,
    "chain": lambda target: ChainBuilder(viewed(target, MediaView.TARGET_EMBEDDING), 3),
    "three axes": lambda target: ChainBuilder(viewed(target, MediaView.TARGET_EMBEDDING, 3), 3),
    "tree": lambda target: TreeBuilder(viewed(target, MediaView.PLACEHOLDER), 3, 3, 8),
    "static tree": lambda target: StaticTreeBuilder(
        viewed(target, MediaView.TARGET_EMBEDDING, positions=PositionView.INDEX), (0, 0, 1, 1, 2)
    ),
    "standalone": lambda target: ChainBuilder(
        ViewedDraft(self_draft(target, RowAlignment.SAME), MediaView.PLACEHOLDER, target.stack.spec.positions.axes), 2
    ),
    "n-grams": lambda target: NgramBuilder(4),
}


def engine_of(
    target: Target,
    builder: DrafterBuilder | None,
    runner: Callable[[], GraphRunner] = EagerRunner,
    verifier: Verifier | None = None,
    batch: int = 3,
    budget: int = 8192,
) -> Engine:
    options = EngineOptions(max_batch_size=batch, page_size=4, max_prefill_tokens=budget)
    return build_engine(target, builder, attention=SdpaBackend(), runner=runner(), verifier=verifier, options=options)


def submit(
    engine: Engine, prompt: PreparedPrompt, count: int = COUNT, sampling: SamplingParams | None = None
) -> RequestId:
    """Text goes without what was prepared by hand for it."""
    request = Request(prompt.token_ids, count, SamplingParams() if sampling is None else sampling)
    return engine.submit(request, prompt if prompt.media else None)


def run(engine: Engine, prompts: list[PreparedPrompt], sampling: SamplingParams | None = None) -> list[Outcome]:
    ids = [submit(engine, prompt, COUNT - place % 3, sampling) for place, prompt in enumerate(prompts)]
    done = drive(engine)
    return [done[request_id] for request_id in ids]


def check_exact(engine: Engine, target: Target) -> None:
    """Eight requests in a smaller batch give what the target alone gives, and give it again."""
    prompts = prompts_of(target)
    expected = [list(greedy_after(target, prompt, COUNT - place % 3)) for place, prompt in enumerate(prompts)]
    for _ in range(2):
        found = [outcome.token_ids for outcome in run(engine, prompts)]
        assert found == expected


@pytest.mark.parametrize("name", BUILDERS)
@pytest.mark.parametrize("axes", [1, 3])
def test_half_with_images_half_without(axes: Axes, name: str) -> None:
    target = target_of(axes)
    check_exact(engine_of(target, BUILDERS[name](target)), target)


@pytest.mark.parametrize(
    ("runner", "name", "axes"),
    [
        ("rounds", "plain", 3),
        ("rounds", "three axes", 3),
        ("rounds", "tree", 3),
        ("rounds", "chain", 1),
        ("phases", "three axes", 3),
        ("phases", "static tree", 1),
        ("breakable", "plain", 1),
        ("breakable", "three axes", 3),
        ("breakable", "tree", 3),
    ],
)
def test_captured_as_directly(runner: str, name: str, axes: Axes) -> None:
    target = target_of(axes)
    check_exact(engine_of(target, BUILDERS[name](target), RUNNERS[runner]), target)


@pytest.mark.parametrize("name", BUILDERS)
@pytest.mark.parametrize("placeholder", [FAR, -200])
def test_placeholders_outside_the_vocabulary_are_never_looked_up(name: str, placeholder: int) -> None:
    target = target_of(3, placeholder)
    check_exact(engine_of(target, BUILDERS[name](target), RUNNERS["breakable" if name == "chain" else "eager"]), target)


@pytest.mark.parametrize("budget", [1, 3, 5, 11])
@pytest.mark.parametrize("name", ["chain", "three axes", "tree", "standalone"])
def test_chunks_cut_through_images(name: str, budget: int) -> None:
    target = target_of(3)
    check_exact(engine_of(target, BUILDERS[name](target), budget=budget), target)


@pytest.mark.parametrize("runner", ["rounds", "phases", "breakable"])
def test_chunks_cut_through_images_between_captured_rounds(runner: str) -> None:
    """Of others, who run while half of an image has been seen."""
    target = target_of(3)
    check_exact(engine_of(target, BUILDERS["three axes"](target), RUNNERS[runner], budget=4), target)


@pytest.mark.parametrize("name", ["chain", "tree"])
@pytest.mark.parametrize("verifier", [ExactVerifier(), RejectionVerifier(), BlockVerifier(), TypicalVerifier()])
def test_every_verifier(verifier: Verifier, name: str) -> None:
    if name == "tree" and isinstance(verifier, BlockVerifier):
        pytest.skip("block verification is for chains")
    target = target_of(3)
    check_exact(engine_of(target, BUILDERS[name](target), verifier=verifier), target)


def test_an_idle_row_stands_at_no_position_below_zero() -> None:
    rows = RowStore(2, 32, 4, 2, 48, PagePool(2, 9, 20, 4, CPU), CPU)
    rows.set_rows(1, [RowSetup((0, 5, 9), 12, (), 3, position_offset=-2)])
    assert torch.equal(rows.view(0, 2, 12).position_offsets, torch.tensor([0, -2]))
    rows.clear_row(1)
    assert torch.equal(rows.view(0, 2, 12).position_offsets, torch.tensor([0, 0]))


@pytest.mark.parametrize("runner", ["eager", "rounds"])
def test_sampled_text_is_that_of_plain_decoding(runner: str) -> None:
    target = target_of(3, FAR)
    prompts = prompts_of(target)
    sampling = SamplingParams(temperature=0.9, top_p=0.9, repetition_penalty=1.3, presence_penalty=0.2, seed=8)
    plain = run(engine_of(target, None, batch=1), prompts, sampling)
    drafted = run(engine_of(target, BUILDERS["tree"](target), RUNNERS[runner]), prompts, sampling)
    assert [outcome.token_ids for outcome in drafted] == [outcome.token_ids for outcome in plain]


@pytest.mark.parametrize(
    ("runner", "name"), [(runner, "chain") for runner in RUNNERS] + [("eager", "plain"), ("rounds", "tree")]
)
def test_another_image_gives_another_answer(runner: str, name: str) -> None:
    target = target_of(1)
    media = media_of(target)
    engine = engine_of(target, BUILDERS[name](target), RUNNERS[runner], batch=1)
    answers: list[list[int]] = []
    for seed in (1, 2, 1):
        prompt = media.prepare((0, 5, 46, 9, 7), [toy_image(2, 3, seed)])
        answers.append(run(engine, [prompt])[0].token_ids)
    assert answers[0] == answers[2]
    assert answers[0] != answers[1]


@pytest.mark.parametrize(
    ("runner", "name"), [(runner, "chain") for runner in RUNNERS] + [("eager", "plain"), ("rounds", "tree")]
)
def test_text_after_an_image_is_text(runner: str, name: str) -> None:
    """On the same row, with the same ids, and with an offset that must not stay."""
    target = target_of(3)
    seen = media_of(target).prepare((0, 5, 46, 9, 7), [toy_image(2, 3, 1)])
    text = text_prompt(target, seen.token_ids)
    assert seen.position_offset
    fresh = run(engine_of(target, BUILDERS[name](target), RUNNERS[runner], batch=1), [text])
    used = engine_of(target, BUILDERS[name](target), RUNNERS[runner], batch=1)
    run(used, [seen])
    assert run(used, [text]) == fresh
    assert tuple(fresh[0].token_ids) == greedy_after(target, text, COUNT)


def test_a_prompt_that_ends_with_a_foreign_placeholder_leaves_rows_that_can_be_computed() -> None:
    """What stands idle is embedded, too: a cancelled prompt and one whose logits are NaN leave no foreign id as a root."""
    target = target_of(1, FAR)
    ends = prompts_of(target)[4]
    assert ends.token_ids[-1] == FAR
    spoiled = evolve(ends, embeds=torch.full_like(ends.embeds, float("nan")))
    text = prompts_of(target)[1]
    engine = engine_of(target, BUILDERS["chain"](target), RUNNERS["rounds"], batch=4)
    kept = [submit(engine, text, 30), submit(engine, spoiled), submit(engine, ends)]
    gone = submit(engine, ends)
    engine.admit()
    engine.cancel(gone)
    engine.prefill()
    engine.run_round()
    engine.run_round()
    done = drive(engine)
    assert [done[request_id].reason for request_id in kept] == ["length", "error", "length"]
    assert tuple(done[kept[0]].token_ids) == greedy_after(target, text, 30)
    assert tuple(done[kept[2]].token_ids) == greedy_after(target, ends, COUNT)


def test_positions_that_run_ahead_reach_the_limit_of_the_model_earlier() -> None:
    target = target_of(1)
    prompt = prompts_of(target)[0]
    count = len(prompt.token_ids)
    for offset, room in ((0, 96 - count), (40, 56 - count)):
        ahead = evolve(prompt, position_offset=offset, positions=torch.arange(count))
        engine = engine_of(target, BUILDERS["chain"](target))
        request_id = submit(engine, ahead, 200)
        outcome = drive(engine)[request_id]
        assert (len(outcome.token_ids), outcome.reason) == (room, "context")
        assert tuple(outcome.token_ids) == greedy_after(target, ahead, room)
    with pytest.raises(ContextLengthError, match=r"has 10 tokens, the context holds 8"):
        submit(engine_of(target, None), evolve(prompt, position_offset=88))


Spoil = Callable[[PreparedPrompt], PreparedPrompt]
UNFIT: Mapping[str, tuple[Spoil, str]] = {
    "ids": (lambda p: evolve(p, token_ids=p.token_ids[:-1]), "prepared for 9 tokens, the request has 10"),
    "rows": (lambda p: evolve(p, embeds=p.embeds[:-1]), r"embeds are \[9, 16\] .* on cpu, toy takes \[10, 16\]"),
    "dtype": (lambda p: evolve(p, embeds=p.embeds.double()), r"float64 on cpu, toy takes \[10, 16\] torch.float32"),
    "axes": (lambda p: evolve(p, positions=p.positions[0]), r"positions are \[10\] .* on cpu, toy takes \[3, 10\]"),
    "reals": (
        lambda p: evolve(p, positions=p.positions.float()),
        "positions are torch.float32, whole numbers are needed",
    ),
    "end": (lambda p: evolve(p, media=((2, 11),)), "stand at tokens 2 to 10 of 10"),
    "order": (lambda p: evolve(p, media=((2, 4), (3, 8))), "stand at tokens 3 to 7 of 10"),
}


@pytest.mark.parametrize("what", UNFIT)
def test_what_does_not_fit_is_refused(what: str) -> None:
    change, says = UNFIT[what]
    target = target_of(3)
    prompt = prompts_of(target)[0]
    with pytest.raises(InputError, match=says):
        engine_of(target, None).submit(Request(prompt.token_ids, 4), change(prompt))


def test_foreign_ids_are_for_media_alone() -> None:
    target = target_of(1, FAR)
    prompt = prompts_of(target)[0]
    with pytest.raises(InputError, match=r"token ids 1000, 1000, .* are outside the vocabulary"):
        engine_of(target, None).submit(Request(prompt.token_ids, 4), evolve(prompt, media=()))


# -- what the checks above would find ----------------------------------------------------------------------------------


def _forget_the_image(prompt: PreparedPrompt, target: Target, memory: list[Tensor]) -> PreparedPrompt:
    return evolve(prompt, embeds=target.stack.embed(torch.tensor(prompt.token_ids)))


def _keep_the_first_image(prompt: PreparedPrompt, target: Target, memory: list[Tensor]) -> PreparedPrompt:
    if not memory:
        memory.append(prompt.embeds)
    rows = [place % len(memory[0]) for place in range(len(prompt.token_ids))]
    return evolve(prompt, embeds=memory[0][rows])


def _drop_the_offset(prompt: PreparedPrompt, target: Target, memory: list[Tensor]) -> PreparedPrompt:
    return evolve(prompt, position_offset=0)


def _count_positions(prompt: PreparedPrompt, target: Target, memory: list[Tensor]) -> PreparedPrompt:
    return evolve(prompt, positions=torch.arange(len(prompt.token_ids)).expand(3, -1))


@pytest.mark.parametrize("spoil", [_forget_the_image, _keep_the_first_image, _drop_the_offset, _count_positions])
def test_a_broken_way_is_found(spoil: Callable[[PreparedPrompt, Target, list[Tensor]], PreparedPrompt]) -> None:
    target = target_of(3)
    prompts = prompts_of(target)
    memory: list[Tensor] = []
    spoiled = [spoil(prompt, target, memory) if prompt.media else prompt for prompt in prompts]
    found = [outcome.token_ids for outcome in run(engine_of(target, None), spoiled)]
    expected = [list(greedy_after(target, prompt, COUNT - place % 3)) for place, prompt in enumerate(prompts)]
    assert found != expected
    for one, two, prompt in zip(found, expected, prompts, strict=True):
        assert one == two or prompt.media, "text is not touched"
