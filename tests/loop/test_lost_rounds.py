"""Rounds that raise when rows have moved, results interrupted as they arrive, constraints that raise: no text has a hole."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from attrs import define
from torch import Tensor

from outrider.drafting.builders import ChainBuilder, TreeBuilder
from outrider.interfaces import DrafterBuilder, TokenConstraint
from outrider.loop.build import EngineOptions
from outrider.loop.engine import Engine
from outrider.loop.outputs import round_result
from outrider.loop.readback import Arrived, PendingResult
from outrider.loop.row_owners import Batch
from outrider.text import TokenAutomaton
from outrider.types import CaptureHiddenMode, RequestId
from outrider.types.outputs import OutputWants, StepResult
from outrider.types.request import Emission, Request
from tests.support.engines import Outcome, drive, engine_of, outcomes
from tests.support.misbehaving import out_of_memory
from tests.support.reference import greedy
from tests.support.toy_drafts import self_pair
from tests.support.toy_target import ToySizes

TARGET, DRAFT = self_pair(seed=21, sizes=ToySizes(heads=4, kv_heads=2))
PROMPTS = ((0, 3), (0, 4, 4), (0, 2, 3, 4, 5), (0, 47, 13))
TEXTS = [greedy(TARGET, prompt, 12) for prompt in PROMPTS]
CHAIN, TREE = ChainBuilder(DRAFT, 3), TreeBuilder(DRAFT, 3, 2, 6)
BUILDERS: dict[str, DrafterBuilder | None] = {"plain": None, "chain": CHAIN, "tree": TREE}
ERRORS = {"memory": out_of_memory(), "interrupt": KeyboardInterrupt()}


def engine(name: str, in_flight: int, rows: int = 3) -> Engine:
    return engine_of(TARGET, BUILDERS[name], EngineOptions(rows, page_size=2, rounds_in_flight=in_flight))


@define
class Cue:
    """Raises ``error`` at the next call, once."""

    error: BaseException | None = None

    def __call__(self) -> None:
        error, self.error = self.error, None
        if error is not None:
            raise error


def raise_after_the_round(monkeypatch: pytest.MonkeyPatch, cue: Cue) -> None:
    """As where there is no memory for what is wanted beside the tokens."""

    def fail(*args: object) -> StepResult:
        cue()
        return round_result(*args)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType] - whatever it is called with

    monkeypatch.setattr("outrider.loop.round.round_result", fail)


def raise_at_the_copy(monkeypatch: pytest.MonkeyPatch, cue: Cue) -> None:
    """As where there is no pinned memory to copy a result to."""
    launched = Engine._launched  # pyright: ignore[reportPrivateUsage] - between the round and its result under way

    def fail(self: Engine, pending: PendingResult, batch: Batch) -> None:
        cue()
        launched(self, pending, batch)

    monkeypatch.setattr(Engine, "_launched", fail)


@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("in_flight", [0, 1, 2])
@pytest.mark.parametrize("name", BUILDERS)
@pytest.mark.parametrize("prepare", [raise_after_the_round, raise_at_the_copy])
def test_a_round_that_raises_when_rows_have_moved_cancels_them(
    prepare: Callable[[pytest.MonkeyPatch, Cue], None],
    name: str,
    in_flight: int,
    error: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What it gave is lost, so these requests cannot go on; what was under way before it arrives, and others go on."""
    cue = Cue()
    prepare(monkeypatch, cue)
    made = engine(name, in_flight)
    ids = [made.submit(Request(prompt, 12)) for prompt in PROMPTS]
    found: dict[RequestId, Outcome] = {}
    for _ in range(2):
        outcomes(made.step(), found)
    cue.error = ERRORS[error]
    with pytest.raises(type(cue.error)):
        made.run_round()
    assert (made.num_running, made.num_waiting) == (0, 1)
    drive(made, found)
    for request_id, text in zip(ids, TEXTS, strict=True):
        outcome = found[request_id]
        assert tuple(outcome.token_ids) == text[: len(outcome.token_ids)]
        assert outcome.token_ids
        whole = request_id == ids[-1]
        assert (outcome.reason, len(outcome.token_ids) == 12) == ("length" if whole else "cancelled", whole)


@pytest.mark.parametrize("in_flight", [0, 1, 2])
@pytest.mark.parametrize("name", BUILDERS)
def test_an_interrupt_while_the_host_waits_loses_nothing(
    name: str, in_flight: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That is where it is nearly always; here at every second step."""
    cue = Cue()
    wait = PendingResult.wait

    def fail(self: PendingResult) -> list[Arrived]:
        arrived = wait(self)
        cue()
        return arrived

    monkeypatch.setattr(PendingResult, "wait", fail)
    made = engine(name, in_flight)
    ids = [made.submit(Request(prompt, 12)) for prompt in PROMPTS]
    found: dict[RequestId, Outcome] = {}
    interrupted = steps = 0
    while made.has_work:
        steps += 1
        cue.error = KeyboardInterrupt() if steps % 2 else None
        try:
            outcomes(made.step(), found)
        except KeyboardInterrupt:
            interrupted += 1
    assert interrupted > 3
    assert [tuple(found[request_id].token_ids) for request_id in ids] == TEXTS


class _Raising(TokenConstraint):
    """``inner``, whose verbs first ask the cue of that verb."""

    def __init__(self, inner: TokenConstraint, masks: Cue, moves: Cue) -> None:
        self._inner, self._masks, self._moves = inner, masks, moves

    @property
    def vocab_size(self) -> int:
        return self._inner.vocab_size

    @property
    def is_complete(self) -> bool:
        return self._inner.is_complete

    def fill_mask(self, out: Tensor) -> None:
        self._masks()
        self._inner.fill_mask(out)

    def advance(self, token_id: int) -> bool:
        self._moves()
        return self._inner.advance(token_id)

    def rollback(self, num_tokens: int) -> None:
        self._inner.rollback(num_tokens)

    def fork(self) -> TokenConstraint:
        return _Raising(self._inner.fork(), self._masks, self._moves)


def only(text: tuple[int, ...]) -> TokenAutomaton:
    """Allows ``text`` and nothing after it, so that whoever loses count goes wrong."""
    follows = {place: {token: place + 1} for place, token in enumerate(text)}
    return TokenAutomaton({**follows, len(text): {}}, (), 48, (47,))


@define
class LateCue(Cue):
    """Waits for the call after ``calls`` more."""

    calls: int = 0

    def __call__(self) -> None:
        if self.error is not None:
            self.calls -= 1
            if self.calls < 0:
                super().__call__()


@pytest.mark.parametrize("verb", ["masks", "moves"])
@pytest.mark.parametrize("calls", [0, 1, 2])
@pytest.mark.parametrize("name", ["chain", "tree"])
def test_a_constraint_that_is_interrupted_in_a_tree_stands_where_it_stood(name: str, calls: int, verb: str) -> None:
    """The round can be run again, and masks are those of the text that was emitted."""
    masks, moves = LateCue(), LateCue()
    made = engine(name, 0)
    request_id = made.submit(Request(PROMPTS[1], 12), constraint=_Raising(only(TEXTS[1]).constraint(), masks, moves))
    found: dict[RequestId, Outcome] = {}
    outcomes(made.step(), found)
    cue = {"masks": masks, "moves": moves}[verb]
    cue.error, cue.calls = KeyboardInterrupt(), calls
    with pytest.raises(KeyboardInterrupt):
        made.run_round()
    drive(made, found)
    assert tuple(found[request_id].token_ids) == TEXTS[1]


@pytest.mark.parametrize("place", [0, 1, 2])
@pytest.mark.parametrize("in_flight", [0, 1])
def test_a_constraint_that_raises_as_tokens_arrive_cancels_its_request_alone(place: int, in_flight: int) -> None:
    """Rows before it and after it in the same result lose nothing, and the error reaches the caller."""
    moves = Cue()
    made = engine("plain", in_flight)  # whose rounds move no constraint but as tokens arrive
    constraint = _Raising(only(TEXTS[place]).constraint(), Cue(), moves)
    ids = [
        made.submit(Request(prompt, 12), constraint=constraint if index == place else None)
        for index, prompt in enumerate(PROMPTS[:3])
    ]
    found: dict[RequestId, Outcome] = {}
    for _ in range(2):
        outcomes(made.step(), found)
    made.run_round()
    moves.error = RuntimeError("a grammar's own fault")
    with pytest.raises(RuntimeError, match="own fault"):
        made.read()
    drive(made, found)
    for index, request_id in enumerate(ids):
        if index == place:
            assert found[request_id].reason == "cancelled"
        else:
            assert tuple(found[request_id].token_ids) == TEXTS[index]


@pytest.mark.parametrize("length", [1, 2, 3, 5, 6])
@pytest.mark.parametrize("mode", [CaptureHiddenMode.LAST, CaptureHiddenMode.FULL])
def test_a_text_ends_before_a_dead_end_wherever_that_falls_in_a_round(length: int, mode: CaptureHiddenMode) -> None:
    """The first token that is not allowed is none of the text, nor is what a round drafted after it; states and
    log-probabilities agree.
    """
    dead = only(TEXTS[0][:length])
    expected: list[Tensor] = []
    for name in BUILDERS:
        made = engine(name, 0)
        made.submit(Request(PROMPTS[0], 12, wants=OutputWants(1, mode)), constraint=dead.constraint())
        emissions: list[Emission] = []
        while made.has_work:
            emissions += made.step()
        assert sum([each.token_ids for each in emissions], ()) == TEXTS[0][:length]
        assert emissions[-1].finish_reason == "error"
        assert "is not allowed" in str(emissions[-1].error)
        assert sum(len(each.logprobs) for each in emissions) == length
        states = [each.hidden for each in emissions if each.hidden is not None]
        found = torch.cat(states) if mode is CaptureHiddenMode.FULL else states[-1]
        expected.append(found)
        assert found.shape[0] == (1 if mode is CaptureHiddenMode.LAST else len(PROMPTS[0]) + length - 1)
        assert torch.allclose(found, expected[0], atol=1e-4)
