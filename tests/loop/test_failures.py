"""What one request does wrong, or the device, does not reach the others; and the engine goes on."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from outrider.drafting.builders import ChainBuilder, TreeBuilder
from outrider.errors import NonFiniteLogitsError
from outrider.interfaces import NULL_PAGE, DrafterBuilder, Target
from outrider.loop.build import EngineOptions
from outrider.loop.row_owners import Admission, RowOwners
from outrider.loop.rows import RowSetup, RowStore
from outrider.types import HiddenTap, RequestId
from outrider.types.request import Request
from tests.support.engines import Outcome, drive, engine_of, outcomes, run
from tests.support.misbehaving import RaisingStack, out_of_memory, poisoned_target
from tests.support.reference import greedy
from tests.support.toy_drafts import ToyDraft
from tests.support.toy_target import toy_target

SOUND = toy_target()
PROMPTS = ((3, 1), (4, 4, 4), (1, 2, 3, 4, 5), (47, 0, 13), (9,), (30, 31))


def builders(target: Target, poison: int) -> dict[str, DrafterBuilder | None]:
    """Drafters that never propose ``poison``."""
    ids = tuple(token for token in range(48) if token != poison)
    draft = ToyDraft(target, taps=(HiddenTap.at(1), HiddenTap.final_norm()), recurrent=True, ids=ids)
    return {"plain": None, "chain": ChainBuilder(draft, 3), "tree": TreeBuilder(draft, 3, 2, 6)}


def never_seen() -> int:
    """A token that no prompt holds and no continuation reaches."""
    seen = {token for prompt in PROMPTS for token in (*prompt, *greedy(SOUND, prompt, 20))}
    return next(token for token in range(48) if token not in seen)


@pytest.mark.parametrize("name", ["plain", "chain", "tree"])
def test_nan_in_a_prompt_ends_that_request_in_prefill(name: str) -> None:
    poison = never_seen()
    target = poisoned_target(poison)
    engine = engine_of(target, builders(target, poison)[name], EngineOptions(max_batch_size=3, page_size=2))
    requests = [Request(prompt, 12) for prompt in (PROMPTS[0], (5, poison, 6), *PROMPTS[1:])]
    found = run(engine, requests)
    bad = found.pop(1)
    assert (bad.token_ids, bad.reason, bad.accept_lengths) == ([], "error", [])
    assert isinstance(bad.error, NonFiniteLogitsError)
    assert "request 1: " in str(bad.error)
    assert "in the prefill pass" in str(bad.error)
    for prompt, outcome in zip(PROMPTS, found, strict=True):
        assert tuple(outcome.token_ids) == greedy(SOUND, prompt, 12)
    # Rows and pages that held NaN are used again.
    for prompt, outcome in zip(PROMPTS, run(engine, [Request(prompt, 12) for prompt in PROMPTS]), strict=True):
        assert tuple(outcome.token_ids) == greedy(SOUND, prompt, 12)


@pytest.mark.parametrize("in_flight", [0, 1])
@pytest.mark.parametrize("name", ["plain", "chain", "tree"])
def test_nan_in_a_round_ends_that_request_after_what_was_sound(name: str, in_flight: int) -> None:
    """The target turns to NaN on a token that only one of the requests generates."""
    texts = [greedy(SOUND, prompt, 12) for prompt in PROMPTS]
    victim, place = next(
        (index, place)
        for index, text in enumerate(texts)
        for place in range(2, 11)
        if all(text[place] not in (*PROMPTS[i], *texts[i]) for i in range(len(PROMPTS)) if i != index)
        and text[place] not in (*PROMPTS[index], *text[:place])
    )
    target = poisoned_target(texts[victim][place])
    options = EngineOptions(max_batch_size=4, page_size=2, rounds_in_flight=in_flight)
    engine = engine_of(target, builders(target, texts[victim][place])[name], options)
    for _ in range(2):  # the second time in rows and pages that held NaN
        found = run(engine, [Request(prompt, 12) for prompt in PROMPTS])
        for index, outcome in enumerate(found):
            if index == victim:
                assert tuple(outcome.token_ids) == texts[index][: place + 1]
                assert outcome.reason == "error"
                assert "in the verify pass" in str(outcome.error)
                assert all(outcome.accept_lengths), "a round that verified nothing has no acceptance length"
            else:
                assert (tuple(outcome.token_ids), outcome.reason) == (texts[index], "length")


def test_nan_at_a_drafted_node_that_is_rejected_stays_in_its_request() -> None:
    """Attention that multiplies by a mask carries NaN of one node to its siblings, but never to another request."""
    poison = never_seen()
    target = poisoned_target(poison)
    others = tuple(token for token in range(0, 48, 7) if token != poison)
    draft = ToyDraft(target, ids=(poison, *others))
    sound = 0
    for builder in (ChainBuilder(draft, 3), TreeBuilder(draft, 2, 2, 6)):
        found = run(engine_of(target, builder), [Request(prompt, 12) for prompt in PROMPTS])
        for prompt, outcome in zip(PROMPTS, found, strict=True):
            text = greedy(SOUND, prompt, 12)
            assert tuple(outcome.token_ids) == text[: len(outcome.token_ids)]
            assert outcome.reason in ("length", "error")
            sound += outcome.reason == "length"
    assert sound


@pytest.mark.parametrize("error", [out_of_memory(), KeyboardInterrupt()], ids=["memory", "interrupt"])
@pytest.mark.parametrize("budget", [3, 8])
def test_a_pass_over_prompts_that_raises_cancels_its_requests_and_the_others_go_on(
    error: BaseException, budget: int
) -> None:
    """Even one that was begun by an earlier pass, and cannot be run a second time; those behind it have lost nothing."""
    stack = RaisingStack()
    target = Target(stack, stack.weights)
    draft = ToyDraft(target, taps=(HiddenTap.at(1),), recurrent=True)
    options = EngineOptions(max_batch_size=5, page_size=2, max_prefill_tokens=budget)
    engine = engine_of(target, ChainBuilder(draft, 2), options)
    found: dict[RequestId, Outcome] = {}
    running = [engine.submit(Request(PROMPTS[index], 12)) for index in (0, 1)]
    for _ in range(2):
        outcomes(engine.step(), found)
    assert engine.num_prefilling == 0
    lost = [engine.submit(Request(PROMPTS[index], 12)) for index in (2, 3)]
    spared = engine.submit(Request(PROMPTS[5], 12))
    engine.admit()
    if budget == 3:
        engine.prefill()
    stack.fail = lambda rows: error
    with pytest.raises(type(error)):
        engine.prefill()
    stack.fail = lambda rows: None
    assert (engine.num_running, engine.num_prefilling) == (3, 1)
    later = [engine.submit(Request(PROMPTS[index], 12)) for index in (3, 4)]
    drive(engine, found)
    assert [found[request_id] for request_id in lost] == [Outcome([], [], "cancelled")] * 2
    for request_id, index in zip((*running, spared, *later), (0, 1, 5, 3, 4), strict=True):
        assert tuple(found[request_id].token_ids) == greedy(SOUND, PROMPTS[index], 12)


@pytest.mark.parametrize("error", [out_of_memory(), KeyboardInterrupt()], ids=["memory", "interrupt"])
@pytest.mark.parametrize("place", [0, 1, 2])
def test_an_admission_that_raises_cancels_its_request_and_the_others_go_on(
    error: BaseException, place: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither its row nor its pages stay taken, wherever in the batch it would have stood."""
    engine = engine_of(SOUND, builders(SOUND, never_seen())["chain"], EngineOptions(max_batch_size=4, page_size=2))
    admit = RowOwners.admit
    seen: list[Admission] = []

    def fail(owners: RowOwners, admission: Admission) -> None:
        seen.append(admission)
        if len(seen) == place + 1:
            raise error
        admit(owners, admission)

    monkeypatch.setattr(RowOwners, "admit", fail)
    ids = [engine.submit(Request(prompt, 12)) for prompt in PROMPTS]
    found: dict[RequestId, Outcome] = {}
    with pytest.raises(type(error)):
        engine.admit()
    assert (engine.num_running, engine.num_waiting) == (place, len(PROMPTS) - place - 1)
    drive(engine, found)
    for index, request_id in enumerate(ids):
        if index == place:
            assert found[request_id] == Outcome([], [], "cancelled")
        else:
            assert tuple(found[request_id].token_ids) == greedy(SOUND, PROMPTS[index], 12)


@pytest.mark.parametrize("written", [False, True])
def test_rows_that_cannot_be_written_cancel_their_requests_and_the_others_go_on(
    written: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever was written to them by then: they stand idle again, at no length."""
    stores: list[RowStore] = []
    set_rows = RowStore.set_rows

    def fail(rows: RowStore, first: int, setups: Sequence[RowSetup]) -> None:
        stores.append(rows)
        if len(stores) != 2 or written:
            set_rows(rows, first, setups)
        if len(stores) == 2:
            raise out_of_memory()

    monkeypatch.setattr(RowStore, "set_rows", fail)
    engine = engine_of(SOUND, builders(SOUND, never_seen())["chain"], EngineOptions(max_batch_size=4, page_size=2))
    first = engine.submit(Request(PROMPTS[0], 12))
    found: dict[RequestId, Outcome] = {}
    outcomes(engine.step(), found)
    lost = [engine.submit(Request(PROMPTS[index], 12)) for index in (1, 2)]
    with pytest.raises(RuntimeError, match="no memory left"):
        engine.step()
    state = stores[0].view(1, 3, 8)
    assert (state.lengths == 0).all()
    assert state.finished.all()
    assert (state.page_table == NULL_PAGE).all()
    assert engine.num_running == 1
    later = engine.submit(Request(PROMPTS[3], 12))
    drive(engine, found)
    assert [found[request_id] for request_id in lost] == [Outcome([], [], "cancelled")] * 2
    for request_id, index in ((first, 0), (later, 3)):
        assert tuple(found[request_id].token_ids) == greedy(SOUND, PROMPTS[index], 12)


def test_a_round_that_raises_can_be_run_again() -> None:
    """Nothing of the state has moved by then."""
    stack = RaisingStack()
    target = Target(stack, stack.weights)
    draft = ToyDraft(target, taps=(HiddenTap.at(1),), recurrent=True)
    engine = engine_of(target, TreeBuilder(draft, 2, 2, 5))
    ids = [engine.submit(Request(prompt, 12)) for prompt in PROMPTS[:3]]
    found: dict[RequestId, Outcome] = {}
    outcomes(engine.step(), found)
    stack.fail = lambda rows: out_of_memory()
    for _ in range(2):
        with pytest.raises(RuntimeError, match="no memory left"):
            engine.step()
    stack.fail = lambda rows: None
    drive(engine, found)
    for request_id, prompt in zip(ids, PROMPTS, strict=False):
        assert tuple(found[request_id].token_ids) == greedy(SOUND, prompt, 12)
