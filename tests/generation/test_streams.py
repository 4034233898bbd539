"""Streams and batches over one model: interleaved, nested, abandoned, interrupted and failing ones."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from outrider import EngineOptions, Prompt, RequestSettings, SpeculativeModel
from outrider.drafting.builders import ChainBuilder
from outrider.errors import ClosedError, InputError, NonFiniteLogitsError, RequestFailedError
from outrider.generation.completion import TextDelta
from outrider.interfaces import Target
from outrider.types import HiddenTap
from tests.support.engines import model_of
from tests.support.misbehaving import RaisingStack, out_of_memory, poisoned_target
from tests.support.reference import greedy
from tests.support.toy_drafts import ToyDraft, self_pair
from tests.support.toy_target import toy_target

TARGET, DRAFT = self_pair(seed=5)
PROMPTS = ((0, 5, 9, 22), (0, 31, 4), (0, 7, 7, 3, 2), (0, 12), (0, 40, 41))


def model(batch: int = 4, in_flight: int = 0) -> SpeculativeModel:
    return model_of(TARGET, ChainBuilder(DRAFT, 2), EngineOptions(batch, page_size=4, rounds_in_flight=in_flight))


def text(index: int, count: int) -> tuple[int, ...]:
    return greedy(TARGET, PROMPTS[index], count)


def tokens(deltas: list[TextDelta]) -> tuple[int, ...]:
    return tuple(token for delta in deltas for token in delta.token_ids)


def check_idle(made: SpeculativeModel) -> None:
    """Nothing is left of what ran before, and the model serves again."""
    assert made.engine.num_running == made.engine.num_waiting == 0
    assert made.generate(PROMPTS[0], max_new_tokens=9).token_ids == text(0, 9)


@pytest.mark.parametrize("in_flight", [0, 1])
def test_a_batch_is_its_prompts_one_by_one(in_flight: int) -> None:
    made = model(batch=3, in_flight=in_flight)
    result = made.generate_batch(PROMPTS, max_new_tokens=14)
    assert [completion.token_ids for completion in result.completions] == [text(index, 14) for index in range(5)]
    assert [completion.index for completion in result.completions] == list(range(5))
    assert result.statistics.num_tokens == 5 * 14
    assert all(completion.accept_lengths for completion in result.completions)
    check_idle(made)


def test_rows_are_filled_at_once() -> None:
    """A batch of four runs as four from the first round on, not one more each round."""
    made = model(batch=4)
    stream = made.stream_batch(PROMPTS, settings=RequestSettings(max_new_tokens=20))
    next(stream)
    assert made.engine.num_running == 4


def test_prompts_are_taken_as_rows_come_free() -> None:
    taken: list[int] = []

    def endless() -> Iterator[tuple[int, ...]]:
        for number in itertools.count():
            taken.append(number)
            yield PROMPTS[number % 5]

    made = model(batch=2)
    done = 0
    for delta in made.stream_batch(endless(), settings=RequestSettings(max_new_tokens=6)):
        if delta.completion is not None:
            assert delta.completion.token_ids == text(delta.index % 5, 6)
            done += 1
        assert len(taken) <= done + 4
        if done == 7:
            break
    check_idle(made)


@pytest.mark.parametrize("in_flight", [0, 1])
def test_two_streams_may_be_read_in_turns(in_flight: int) -> None:
    """One stream's step computes the other's tokens too: they must reach it."""
    made = model(in_flight=in_flight)
    streams = [made.stream(PROMPTS[index], max_new_tokens=15) for index in range(3)]
    found: list[list[TextDelta]] = [[], [], []]
    for place, deltas in itertools.cycle(list(enumerate(streams))):
        delta = next(deltas, None)
        if delta is not None:
            found[place].append(delta)
        if all(deltas and deltas[-1].completion for deltas in found):
            break
    assert [tokens(deltas) for deltas in found] == [text(index, 15) for index in range(3)]
    assert all(next(deltas, None) is None for deltas in streams)
    check_idle(made)


def test_generating_within_a_stream() -> None:
    made = model(batch=2)
    found: list[TextDelta] = []
    for delta in made.stream(PROMPTS[0], max_new_tokens=15):
        found.append(delta)
        assert made.generate(PROMPTS[1], max_new_tokens=8).token_ids == text(1, 8)
    assert tokens(found) == text(0, 15)
    check_idle(made)


def test_a_stream_with_a_full_batch_in_its_way_waits_for_a_row() -> None:
    made = model(batch=1)
    first = made.stream(PROMPTS[0], max_new_tokens=15)
    head = next(first)
    assert made.generate(PROMPTS[1], max_new_tokens=8).token_ids == text(1, 8)
    assert tokens([head, *first]) == text(0, 15)


@pytest.mark.parametrize("read", [0, 1, 3])
def test_an_abandoned_stream_leaves_nothing_behind(read: int) -> None:
    made = model(batch=2, in_flight=1)
    stream = iter(made.stream_batch(PROMPTS, settings=RequestSettings(max_new_tokens=30)))
    other = made.stream(PROMPTS[3], max_new_tokens=12)
    head = next(other)
    for _ in range(read):
        next(stream)
    del stream
    assert tokens([head, *other]) == text(3, 12), "the other stream goes on"
    check_idle(made)


def test_an_interrupt_returns_what_was_finished_and_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    made = model(batch=2)
    steps = itertools.count()
    step = made.engine.step

    def interrupted() -> object:
        if next(steps) == 4:
            raise KeyboardInterrupt
        return step()

    monkeypatch.setattr(made.engine, "step", interrupted)
    result = made.generate_batch(PROMPTS, max_new_tokens=9)
    monkeypatch.undo()
    assert result.interrupted
    assert [len(result.completions), result.completions[-1].token_ids] == [5, ()]
    assert {completion.finish_reason for completion in result.completions} == {"length", "cancelled"}
    for index, completion in enumerate(result.completions):
        assert completion.token_ids == text(index, 9)[: len(completion.token_ids)]
    check_idle(made)


def test_a_prompt_that_cannot_be_run_raises_or_becomes_an_error() -> None:
    made = model(batch=2)
    mixed: list[tuple[int, ...]] = [PROMPTS[0], (0, 99), PROMPTS[1], ()]
    with pytest.raises(InputError, match="token ids 99 are outside"):
        made.generate_batch(mixed, max_new_tokens=9)
    check_idle(made)
    result = made.generate_batch(mixed, raise_errors=False, max_new_tokens=9)
    assert [completion.finish_reason for completion in result.completions] == ["length", "error", "length", "error"]
    assert [completion.token_ids for completion in result.completions[::2]] == [text(0, 9), text(1, 9)]
    assert "99" in str(result.completions[1].error)
    check_idle(made)


def test_a_request_that_fails_is_named_and_the_others_are_kept() -> None:
    sound = toy_target()
    reached = [greedy(sound, prompt, 9) for prompt in PROMPTS]
    poison = next(
        token for token in range(48) if all(token not in (*p, *t) for p, t in zip(PROMPTS, reached, strict=True))
    )
    made = model_of(poisoned_target(poison), None, EngineOptions(2))
    prompts = [PROMPTS[0], (0, poison), PROMPTS[1]]
    with pytest.raises(RequestFailedError, match=r"1 of 3 requests failed: request 1: .* prefill") as raised:
        made.generate_batch(prompts, max_new_tokens=9)
    assert isinstance(raised.value.__cause__, NonFiniteLogitsError)
    assert len(raised.value.completions) == 3
    result = made.generate_batch(prompts, raise_errors=False, max_new_tokens=9)
    assert [completion.token_ids for completion in result.completions] == [reached[0], (), reached[1]]
    assert len(result.failed) == 1


@pytest.mark.parametrize("failing_pass", range(1, 7))
def test_a_model_serves_again_after_its_device_failed(failing_pass: int) -> None:
    stack = RaisingStack(seed=5, null_first=True)
    target = Target(stack, stack.weights)
    draft = ToyDraft(target, taps=(HiddenTap.at(1),), recurrent=True)
    made = model_of(target, ChainBuilder(draft, 2), EngineOptions(3, page_size=4, max_prefill_tokens=6))
    passes = itertools.count(1)
    stack.fail = lambda rows: out_of_memory() if next(passes) == failing_pass else None
    with pytest.raises(RuntimeError, match="no memory left"):
        made.generate_batch(PROMPTS, max_new_tokens=9)
    stack.fail = lambda rows: None
    check_idle(made)


def test_without_draft_is_the_same_text_and_close_ends_it_twice() -> None:
    made = model()
    plain = made.without_draft()
    assert plain.generate(PROMPTS[0], max_new_tokens=20).token_ids == text(0, 20)
    assert made.generate(PROMPTS[0], max_new_tokens=20).token_ids == text(0, 20)
    made.close()
    made.close()
    with pytest.raises(ClosedError):
        made.generate(PROMPTS[0])
    assert plain.generate(PROMPTS[0], max_new_tokens=4).token_ids == text(0, 4)


@pytest.mark.parametrize("in_flight", [0, 1])
def test_streams_open_at_close_end_as_cancelled(in_flight: int) -> None:
    made = model(batch=4, in_flight=in_flight)
    settings = RequestSettings(max_new_tokens=40)
    one, other = (made.stream_batch(PROMPTS[first : first + 2], settings=settings) for first in (0, 2))
    before = [next(one)], [next(other)]
    made.close()
    assert not made.engine.has_work
    for first, stream, shown in zip((0, 2), (one, other), before, strict=True):
        deltas = shown + list(stream)
        done = {delta.index: delta.completion for delta in deltas if delta.completion is not None}
        assert done.keys() == {0, 1}
        for index, completion in done.items():
            assert completion.finish_reason == "cancelled"
            mine = tokens([delta for delta in deltas if delta.index == index])
            assert completion.token_ids == mine == text(first + index, 40)[: len(mine)]


def test_prompts_left_at_close_are_told() -> None:
    made = model(batch=1)
    stream = made.stream_batch(PROMPTS, settings=RequestSettings(max_new_tokens=40))
    next(stream)
    made.close()
    reasons: list[str | None] = []
    with pytest.raises(ClosedError):
        reasons += (None if delta.completion is None else delta.completion.finish_reason for delta in stream)
    assert set(reasons) <= {None, "cancelled"}


def test_prompts_with_settings_of_their_own() -> None:
    own = Prompt(PROMPTS[0], RequestSettings(max_new_tokens=3))
    result = model().generate_batch((own, PROMPTS[1], Prompt(PROMPTS[2])), max_new_tokens=11)
    assert [completion.token_ids for completion in result.completions] == [text(0, 3), text(1, 11), text(2, 11)]


def test_no_prompts() -> None:
    assert model().generate_batch([]).completions == ()


@pytest.mark.parametrize("batch", [1, 2])
def test_a_stream_that_begins_while_others_hold_and_await_every_row_waits_for_its_turn(batch: int) -> None:
    made = model(batch=batch)
    settings = RequestSettings(max_new_tokens=9)
    one = made.stream_batch(PROMPTS, settings=settings)
    while made.engine.num_waiting == 0:
        next(one)
    for _ in range(2):
        other = list(made.stream_batch(PROMPTS[:2], settings=settings))
        done = {delta.index: delta.completion for delta in other if delta.completion is not None}
        assert {index: completion.token_ids for index, completion in done.items()} == {0: text(0, 9), 1: text(1, 9)}
    list(one)
    check_idle(made)
