"""The engine under a scheduler of your own: who runs, when prompts are read, when results are fetched, who is dropped.

Urgent requests go first; one in the background that has had its share makes room. Run: python examples/embedding.py
"""

from __future__ import annotations

from collections import deque

from attrs import define, field

import outrider
from outrider import Engine, EngineOptions, Request
from outrider.types import RequestId


@define(eq=False)
class Job:
    """One request of the embedding program, and what it has got so far."""

    name: str
    request: Request
    urgent: bool
    token_ids: list[int] = field(factory=list[int])
    finish_reason: str | None = None


class Scheduler:
    """Feeds an engine: it is handed a request only when a row is free, so the order is decided here alone."""

    def __init__(self, engine: Engine, background_share: int) -> None:
        self._engine = engine
        self._share = background_share
        self._urgent: deque[Job] = deque()
        self._background: deque[Job] = deque()
        self._running: dict[RequestId, Job] = {}

    def add(self, job: Job) -> None:
        (self._urgent if job.urgent else self._background).append(job)

    def turn(self) -> bool:
        """Make room, fill rows, read prompts, one round, fetch what has arrived; whether anything is left to do."""
        self._make_room()
        self._fill_rows()
        self._engine.admit()
        self._engine.prefill()
        self._engine.run_round()
        # On a GPU one result stays under way while the host goes on; on a CPU everything is read at once.
        self._take(leave=self._engine.limits.rounds_in_flight if self._engine.num_running else 0)
        return bool(self._urgent or self._background) or self._engine.has_work

    def _make_room(self) -> None:
        if not self._urgent or self._engine.num_running < self._engine.limits.max_batch_size:
            return
        served = [i for i, job in self._running.items() if not job.urgent and len(job.token_ids) >= self._share]
        if served:
            self._engine.cancel(served[0])

    def _fill_rows(self) -> None:
        for _ in range(self._engine.limits.max_batch_size - self._engine.num_running):
            queue = self._urgent or self._background
            if queue:
                job = queue.popleft()
                self._running[self._engine.submit(job.request)] = job

    def _take(self, leave: int) -> None:
        for emission in self._engine.read(leave=leave):
            job = self._running[emission.request_id]
            job.token_ids += emission.token_ids
            if emission.finish_reason is not None:
                job.finish_reason = emission.finish_reason
                del self._running[emission.request_id]


def main() -> None:
    model = outrider.load(options=EngineOptions(max_batch_size=2))
    codec = model.target.codec
    assert codec is not None  # this target has a tokenizer
    scheduler = Scheduler(model.engine, background_share=12)

    def job(name: str, text: str, max_new_tokens: int, urgent: bool) -> Job:
        return Job(name, Request(tuple(codec.encode(text)), max_new_tokens=max_new_tokens), urgent)

    jobs = [job("report", "import os\n", 400, urgent=False), job("list", "x = [", 30, urgent=False)]
    jobs += [job("question", "if __name__ ==", 32, urgent=True), job("other", "for i in range(10):", 20, urgent=True)]
    for each in jobs[:2]:
        scheduler.add(each)
    for _ in range(10):
        scheduler.turn()
    for each in jobs[2:]:  # these come while both rows are taken
        scheduler.add(each)
    while scheduler.turn():
        pass
    for each in jobs:
        print(f"{each.name}: {each.finish_reason} after {len(each.token_ids)} tokens")


if __name__ == "__main__":
    main()
