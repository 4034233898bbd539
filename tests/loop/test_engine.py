"""The engine as an embedder uses it: submit, admit, prefill, run_round and read on their own."""

from __future__ import annotations

import pytest

from outrider.drafting.builders import ChainBuilder
from outrider.errors import CapacityError, ClosedError, ConfigurationError, ContextLengthError, InputError
from outrider.kv import PagedMemory
from outrider.loop.build import EngineOptions, build_engine
from outrider.loop.engine import Engine
from outrider.types import OutputWants, RequestId, SamplingParams
from outrider.types.request import Emission, Request
from outrider_backends.eager import EagerRunner
from outrider_backends.sdpa import SdpaBackend
from tests.support.engines import Outcome, drive, engine_of, outcomes, run
from tests.support.reference import greedy
from tests.support.toy_drafts import self_pair

TARGET, DRAFT = self_pair(seed=5)
K = 3
PROMPTS = ((0, 5, 9, 22), (0, 31, 4), (0, 7, 7, 3, 2), (0, 12))


def engine(batch: int = 4, num_pages: int | None = None, in_flight: int = 0) -> Engine:
    options = EngineOptions(batch, page_size=4, num_pages=num_pages, rounds_in_flight=in_flight, max_stop_ids=2)
    return engine_of(TARGET, ChainBuilder(DRAFT, K), options)


def request(index: int, count: int = 9) -> Request:
    return Request(PROMPTS[index], count)


def text(index: int, count: int = 9) -> list[int]:
    return list(greedy(TARGET, PROMPTS[index], count))


def test_the_four_verbs_one_by_one() -> None:
    made = engine()
    assert not made.has_work
    one = made.submit(request(0))
    assert (made.num_waiting, made.num_running, made.has_work) == (1, 0, True)
    assert made.read() == []
    assert made.admit() == (one,)
    assert made.admit() == ()
    assert (made.num_waiting, made.num_running) == (0, 1)
    made.run_round()  # nothing runs before its prefill
    assert made.read() == []
    made.prefill()
    assert made.read(leave=1) == [], "one result may stay under way"
    assert made.read() == [Emission(one, (text(0)[0],))]
    made.prefill()  # nothing is admitted
    made.run_round()
    assert made.read() == [Emission(one, tuple(text(0)[1 : K + 2]), accept_length=K + 1)]
    made.run_round()
    assert made.read() == [Emission(one, tuple(text(0)[K + 2 :]), accept_length=K + 1, finish_reason="length")]
    assert not made.has_work
    made.run_round()
    assert made.read() == []


def test_several_results_may_be_under_way_and_are_read_in_order() -> None:
    made = engine()
    one = made.submit(request(0))
    made.admit()
    made.prefill()
    for _ in range(4):
        made.run_round()
    emissions = made.read(leave=2)
    assert [len(emission.token_ids) for emission in emissions] == [1, K + 1, K + 1]
    assert [emission.finish_reason for emission in emissions] == [None, None, "length"]
    assert made.read() == [], "rounds after its end give it nothing"
    assert not made.has_work
    assert {emission.request_id for emission in emissions} == {one}


def test_waiting_requests_get_the_rows_of_finished_ones_in_order() -> None:
    made = engine(batch=2)
    ids = [made.submit(request(index, 2 + 3 * index)) for index in range(4)]
    assert made.admit() == tuple(ids[:2])
    found: dict[RequestId, Outcome] = {}
    order: list[RequestId] = list(ids[:2])
    while made.has_work:
        order += made.admit()
        made.prefill()
        made.run_round()
        outcomes(made.read(), found)
        assert made.num_running <= 2
    assert order == ids
    assert [found[request_id].token_ids for request_id in ids] == [text(index, 2 + 3 * index) for index in range(4)]


def test_submissions_while_others_run() -> None:
    made = engine(batch=3)
    found: dict[RequestId, Outcome] = {}
    ids: list[RequestId] = []
    for index in (0, 1, 2, 3, 0, 1):
        ids.append(made.submit(request(index, 12)))
        outcomes(made.step(), found)
    drive(made, found)
    assert [found[request_id].token_ids for request_id in ids] == [text(index, 12) for index in (0, 1, 2, 3, 0, 1)]


@pytest.mark.parametrize("stage", ["waiting", "admitted", "prefilled", "running", "finished"])
@pytest.mark.parametrize("victim", [0, 1, 2])
def test_cancel_at_every_stage(stage: str, victim: int) -> None:
    """The others are not touched, whichever row becomes free; a request that has ended stays as it ended."""
    made = engine(batch=4)
    ids = [made.submit(request(index)) for index in range(3)]
    found: dict[RequestId, Outcome] = {}
    verbs = {"waiting": 0, "admitted": 1, "prefilled": 2, "running": 3}
    for verb in (made.admit, made.prefill, made.run_round)[: verbs.get(stage, 0)]:
        verb()
    if stage == "finished":
        drive(made, found)
    made.cancel(ids[victim])
    made.cancel(ids[victim])
    later = made.submit(request(3))
    drive(made, found)
    for index in range(3):
        if index == victim and stage != "finished":
            # What was under way when it was cancelled is dropped.
            assert found[ids[index]] == Outcome([], [], "cancelled")
        else:
            assert (found[ids[index]].token_ids, found[ids[index]].reason) == (text(index), "length")
    assert found[later].token_ids == text(3)


@pytest.mark.parametrize("free", [0, 1, 2])
def test_a_row_that_becomes_free_between_admit_and_prefill(free: int) -> None:
    """Running rows come first, admitted ones after them, without a gap: the hole is filled from both."""
    for gone in ("cancelled", "finished"):
        made = engine(batch=4)
        counts = [9, 9, 9]
        if gone == "finished":
            counts[free] = 1
        ids = [made.submit(request(index, counts[index])) for index in range(2 if free < 2 else 3)]
        made.admit()
        made.prefill()
        late = [made.submit(request(index)) for index in (3, 0)][: 4 - len(ids)]
        assert made.admit() == tuple(late)
        if gone == "cancelled":
            made.cancel(ids[free])
        found: dict[RequestId, Outcome] = {}
        outcomes(made.read(), found)
        made.prefill()
        drive(made, found)
        for index, request_id in enumerate(ids):
            if index != free:
                assert found[request_id].token_ids == text(index)
        assert [found[request_id].token_ids for request_id in late] == [text(3), text(0)][: len(late)]


def test_cancelling_an_admitted_request_moves_those_behind_it() -> None:
    made = engine(batch=4)
    running = made.submit(request(0))
    made.step()
    ids = [made.submit(request(index)) for index in (1, 2, 3)]
    made.admit()
    made.cancel(ids[0])
    found = drive(made)
    assert [found[request_id].token_ids for request_id in ids[1:]] == [text(2), text(3)]
    assert found[running].token_ids == text(0)[1 + K + 1 :], "the first step gave one token and a round"


def test_unknown_requests_are_cancelled_without_effect() -> None:
    made = engine()
    made.cancel(RequestId(7))
    assert not made.has_work


def test_what_can_never_be_held_is_refused_and_what_must_wait_is_not() -> None:
    made = engine(num_pages=2 + 5)  # 20 slots
    with pytest.raises(CapacityError, match=r"may need 21 KV slots \(prompt 4, up to 13 new tokens, 4 for drafting\)"):
        made.submit(request(0, 13))
    ids = [made.submit(request(0, 12)), made.submit(request(1, 12))]
    assert made.admit() == (ids[0],)
    found = drive(made)
    assert [found[request_id].token_ids for request_id in ids] == [text(0, 12), text(1, 12)]


def test_a_large_request_is_not_overtaken_for_ever() -> None:
    """First come, first served: small requests behind it wait with it."""
    made = engine(num_pages=2 + 6)
    ids = [made.submit(request(0, 4)), made.submit(request(2, 14)), made.submit(request(1, 2))]
    assert made.admit() == (ids[0],)
    found = drive(made)
    assert [found[request_id].token_ids for request_id in ids] == [text(0, 4), text(2, 14), text(1, 2)]


def test_faulty_requests_are_refused_with_all_faults() -> None:
    made = engine()
    with pytest.raises(InputError) as raised:
        made.submit(Request((), 0, draft_cap=-1, eos_ids=(1, 2, 3)))
    for part in ("the prompt is empty", "max_new_tokens is 0", "draft_cap is -1", "3 end ids, the engine holds 2"):
        assert part in str(raised.value)
    with pytest.raises(InputError, match=r"token ids -1, 48 are outside the vocabulary 0..47 of toy"):
        made.submit(Request((0, -1, 48)))
    with pytest.raises(ContextLengthError, match=r"96 tokens, the context holds 96 .* shorten it to 95"):
        made.submit(Request((0,) * 96))
    assert not made.has_work
    assert run(made, [request(0)])[0].token_ids == text(0)


def test_a_closed_engine_says_so_and_closes_twice() -> None:
    made = engine()
    made.submit(request(0))
    made.close()
    made.close()
    for verb in (made.admit, made.prefill, made.run_round, made.step, lambda: made.submit(request(0))):
        with pytest.raises(ClosedError, match="closed"):
            verb()


@pytest.mark.parametrize("in_flight", [0, 1])
def test_closed_amid_its_work_every_request_ends_with_one_more_read(in_flight: int) -> None:
    made = engine(batch=2, num_pages=40, in_flight=in_flight)
    ids = [made.submit(request(index, 20)) for index in range(4)]
    shown = made.step() + made.step()
    made.cancel(ids[1])
    made.admit()  # the third has a row and its prompt was not run; the fourth waits
    assert (made.num_running, made.num_waiting) == (2, 1)
    unread = [Emission(ids[1], (), finish_reason="cancelled")]
    made.close()
    assert (made.num_running, made.num_waiting, made.has_work) == (0, 0, True)
    last = made.read()
    assert last == unread + [Emission(ids[index], (), finish_reason="cancelled") for index in (0, 2, 3)]
    assert (made.read(), made.has_work) == ([], False)
    made.close()
    made.cancel(ids[0])
    assert (made.read(), made.has_work) == ([], False), "nothing ends twice"
    for index in (0, 1):
        found = [token for emission in shown if emission.request_id == ids[index] for token in emission.token_ids]
        assert found
        assert found == text(index, 20)[: len(found)]


def test_closing_gives_pages_back_to_memory_that_others_use() -> None:
    options = EngineOptions(2, page_size=4, max_stop_ids=2)
    memory = PagedMemory(2, 40, 82, 4, TARGET.stack.spec.device)
    made = build_engine(
        TARGET, ChainBuilder(DRAFT, K), attention=SdpaBackend(), runner=EagerRunner(), options=options, memory=memory
    )
    free = memory.pages.num_free_pages
    made.submit(request(0))
    made.step()
    assert memory.pages.num_free_pages < free
    made.close()
    assert memory.pages.num_free_pages == free


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (EngineOptions(max_batch_size=0, page_size=0), ["max_batch_size is 0", "page_size is 0"]),
        (EngineOptions(max_prefill_tokens=0, max_stop_ids=0), ["max_prefill_tokens is 0", "max_stop_ids is 0"]),
        (EngineOptions(rounds_in_flight=-1), ["rounds_in_flight is -1"]),
        (EngineOptions(max_length=97), ["max_length is 97, allowed is 2 to 96 (toy)"]),
        (EngineOptions(num_pages=2), ["num_pages is 2"]),
    ],
)
def test_sizes_that_cannot_work_are_refused(options: EngineOptions, says: list[str]) -> None:
    with pytest.raises(ConfigurationError) as raised:
        engine_of(TARGET, options=options)
    assert all(part in str(raised.value) for part in says)


def test_the_smallest_engine() -> None:
    """Two positions: a prompt of one token and one new one."""
    made = engine_of(TARGET, ChainBuilder(DRAFT, K), EngineOptions(1, 1, max_length=2, max_prefill_tokens=1))
    (found,) = run(made, [Request((0,), 5)])
    assert (tuple(found.token_ids), found.reason) == (greedy(TARGET, (0,), 1), "context")


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        (
            Request(PROMPTS[0], sampling=SamplingParams(temperature=-1.0, seed=-1)),
            ["'temperature' is -1", "'seed' is -1"],
        ),
        (Request(PROMPTS[0], sampling=SamplingParams(top_k=10**30)), ["'top_k' is"]),
        (Request(PROMPTS[0], eos_ids=(-1,)), ["'eos_ids' holds -1"]),
        (Request(PROMPTS[0], wants=OutputWants(logprobs=-1)), ["wants.logprobs is -1"]),
        (
            Request(PROMPTS[0], sampling=SamplingParams(allowed_token_ids=(7,), min_new_tokens=1), eos_ids=(7,)),
            ["nothing but ids that end the output"],
        ),
    ],
)
def test_a_request_that_would_harm_its_neighbours_is_refused_at_submit(bad: Request, said: list[str]) -> None:
    made = engine()
    with pytest.raises(InputError) as raised:
        made.submit(bad)
    assert [word for word in said if word not in str(raised.value)] == []
    assert not made.has_work
    assert run(made, [request(0)])[0].token_ids == text(0)


def test_limits_beyond_every_length_are_no_limits() -> None:
    made = engine()
    ids = [
        made.submit(Request(PROMPTS[0], 9, draft_cap=10**30, wants=OutputWants(logprobs=10**30))),
        made.submit(Request(PROMPTS[1], 9, sampling=SamplingParams(min_new_tokens=10**30))),
    ]
    found = drive(made)
    assert [found[request_id].token_ids for request_id in ids] == [text(0), text(1)]


def test_reading_with_less_than_nothing_left_reads_all() -> None:
    made = engine()
    one = made.submit(request(0, 1))
    made.admit()
    made.prefill()
    assert made.read(leave=-1) == [Emission(one, tuple(text(0, 1)), finish_reason="length")]
