"""Timing contestants against each other in one process, taking turns, so that drift of the machine cancels."""

from __future__ import annotations

import gc
import math
import statistics
import time
from collections.abc import Callable, Sequence

import torch
from attrs import frozen

from benchmarks._cases import Case, TokenIds, groups_of

__all__ = ["Answer", "Contestant", "Result", "WrongTextError", "agreement", "device_wait", "race"]

_MOST_WARM_UPS = 4


@frozen
class Answer:
    """What a contestant gave for some prompts.

    ``token_ids``: one continuation per prompt. ``num_passes``: passes of the target, prefill included; requests that
    share a pass count it once. ``accept_lengths``: tokens per verification round of every request, bonus included.
    """

    token_ids: tuple[TokenIds, ...]
    num_passes: int
    accept_lengths: tuple[int, ...] = ()

    @classmethod
    def joined(cls, answers: Sequence[Answer]) -> Answer:
        """Answers to consecutive prompts as one."""
        return cls(
            tuple(ids for answer in answers for ids in answer.token_ids),
            sum(answer.num_passes for answer in answers),
            tuple(length for answer in answers for length in answer.accept_lengths),
        )

    @property
    def num_tokens(self) -> int:
        """Generated tokens of all prompts."""
        return sum(len(ids) for ids in self.token_ids)


@frozen(eq=False)
class Contestant:
    """Something that continues prompts: ``generate`` takes one batch of them and returns when all are done.

    ``preparations``: how much it has done up to now that later answers need not do again, such as capturing graphs.
    """

    name: str
    generate: Callable[[Sequence[TokenIds]], Answer]
    preparations: Callable[[], int] = lambda: 0


@frozen
class Result:
    """How one contestant did at one batch size. ``seconds[g][r]``: group of prompts g in repetition r."""

    name: str
    batch: int
    answer: Answer
    seconds: tuple[tuple[float, ...], ...]

    @property
    def total_seconds(self) -> float:
        """Time for all prompts: the sum over groups of each group's median."""
        return math.fsum(statistics.median(times) for times in self.seconds)

    @property
    def tokens_per_second(self) -> float:
        """Generated tokens per second, prefill and detokenizing included."""
        return self.answer.num_tokens / self.total_seconds

    @property
    def ms_per_pass(self) -> float:
        """Wall-clock time of a round with all that belongs to it; a prefill counts as a round."""
        return 1e3 * self.total_seconds / self.answer.num_passes

    @property
    def acceptance_length(self) -> float:
        """Tokens per verification round and request, bonus included; by passes where the rounds aren't known."""
        lengths = self.answer.accept_lengths
        if lengths:
            return sum(lengths) / len(lengths)
        groups, prompts = len(self.seconds), len(self.answer.token_ids)
        tokens_after_prefill = self.answer.num_tokens - prompts
        return tokens_after_prefill / (prompts / groups) / max(self.answer.num_passes - groups, 1)

    @property
    def spread(self) -> float:
        """Half the distance between the fastest and the slowest repetition, as a share of the median."""
        totals = [math.fsum(times) for times in zip(*self.seconds, strict=True)]
        return (max(totals) - min(totals)) / 2 / statistics.median(totals)


class WrongTextError(Exception):
    """A contestant's text is not the reference's; its speed means nothing."""


def race(
    contestants: Sequence[Contestant],
    cases: Sequence[Case],
    batch: int,
    repeats: int,
    *,
    check: bool = True,
    wait: Callable[[], None] = lambda: None,
    clock: Callable[[], float] = time.perf_counter,
    tell: Callable[[str], None] = lambda _: None,
) -> list[Result]:
    """Time every contestant on ``cases``, ``batch`` prompts at once, ``repeats`` times, taking turns group by group.

    Everybody first answers all of it untimed, until an answer prepares nothing more (four times at most); the last one is,
    with ``check``, compared with the reference. ``wait`` returns when the device is idle. ``tell`` is told who took how long.

    Raises:
        WrongTextError: some contestants' tokens differ from the reference; all of them are named.
    """
    groups = groups_of(cases, batch)
    answers: dict[str, Answer] = {}
    for one in contestants:
        started = clock()
        answers[one.name], count = _warm_up(one, groups)
        tell(f"{one.name}: {count} warm-up{'s' if count > 1 else ''}, {clock() - started:.1f} s")
    if check:
        _check(answers, cases)
    seconds: dict[str, list[list[float]]] = {one.name: [[] for _ in groups] for one in contestants}
    for turn in range(repeats):
        gc.collect()
        begun = clock()
        for index, group in enumerate(groups):
            for one in contestants:
                wait()
                started = clock()
                one.generate(group)
                wait()
                seconds[one.name][index].append(clock() - started)
        tell(f"repetition {turn + 1} of {repeats}: {clock() - begun:.1f} s")
    return [
        Result(one.name, batch, answers[one.name], tuple(tuple(times) for times in seconds[one.name]))
        for one in contestants
    ]


def agreement(answer: Answer, reference: Sequence[TokenIds]) -> float:
    """Share of places at which the answer holds the reference's token; 1.0 where there are no places."""
    pairs = [
        (ours, theirs)
        for ids, wanted in zip(answer.token_ids, reference, strict=True)
        for ours, theirs in zip(ids, wanted, strict=False)
    ]
    places = sum(max(len(ids), len(wanted)) for ids, wanted in zip(answer.token_ids, reference, strict=True))
    return sum(ours == theirs for ours, theirs in pairs) / places if places else 1.0


def device_wait(device: torch.device) -> Callable[[], None]:
    """A function that returns when all work on ``device`` is done."""
    if device.type != "cuda":
        return lambda: None
    return lambda: torch.cuda.synchronize(device)


def _warm_up(one: Contestant, groups: Sequence[Sequence[TokenIds]]) -> tuple[Answer, int]:
    """The last of as many answers as it takes to prepare everything, and how many there were."""
    for count in range(1, _MOST_WARM_UPS + 1):
        before = one.preparations()
        answer = Answer.joined([one.generate(group) for group in groups])
        if one.preparations() == before or count == _MOST_WARM_UPS:
            return answer, count
    raise AssertionError("unreachable")


def _check(answers: dict[str, Answer], cases: Sequence[Case]) -> None:
    faults: list[str] = []
    for name, answer in answers.items():
        for index, (ids, case) in enumerate(zip(answer.token_ids, cases, strict=True)):
            if ids != case.continuation:
                place = next(
                    (at for at, (one, other) in enumerate(zip(ids, case.continuation, strict=False)) if one != other),
                    min(len(ids), len(case.continuation)),
                )
                faults.append(f"{name}: prompt {index} differs from the reference at generated token {place}")
    if faults:
        raise WrongTextError("no speed is given, since not all texts are right:\n" + "\n".join(faults))
