"""Engines from parts, and driving them to the end."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from attrs import define, field

from outrider.errors import OutriderError
from outrider.generation.model import SpeculativeModel
from outrider.interfaces import DrafterBuilder, Target
from outrider.loop.build import EngineOptions, build_engine
from outrider.loop.engine import Engine
from outrider.types import RequestId
from outrider.types.request import Emission, FinishReason, Request
from outrider_backends.eager import EagerRunner
from outrider_backends.sdpa import SdpaBackend

__all__ = ["Outcome", "drive", "engine_of", "model_of", "outcomes", "run"]


@define
class Outcome:
    """All that a request was given."""

    token_ids: list[int] = field(factory=list[int])
    accept_lengths: list[int] = field(factory=list[int])
    reason: FinishReason | None = None
    error: OutriderError | None = None


def engine_of(target: Target, drafter: DrafterBuilder | None = None, options: EngineOptions | None = None) -> Engine:
    """An engine on the CPU."""
    return build_engine(target, drafter, attention=SdpaBackend(), runner=EagerRunner(), options=options)


def model_of(
    target: Target, drafter: DrafterBuilder | None = None, options: EngineOptions | None = None
) -> SpeculativeModel:
    """A model on the CPU."""
    return SpeculativeModel(target, drafter, attention=SdpaBackend(), runner=EagerRunner, options=options)


def outcomes(emissions: Iterable[Emission], into: dict[RequestId, Outcome]) -> None:
    """Sort ``emissions`` by request; nothing may come after a request's last one."""
    for emission in emissions:
        outcome = into.setdefault(emission.request_id, Outcome())
        assert outcome.reason is None, "nothing comes after the last emission of a request"
        outcome.token_ids += emission.token_ids
        if emission.accept_length is not None:
            outcome.accept_lengths.append(emission.accept_length)
        outcome.reason, outcome.error = emission.finish_reason, emission.error


def drive(engine: Engine, into: dict[RequestId, Outcome] | None = None) -> dict[RequestId, Outcome]:
    """Step until nothing is left to do."""
    done: dict[RequestId, Outcome] = {} if into is None else into
    while engine.has_work:
        outcomes(engine.step(), done)
    return done


def run(engine: Engine, requests: Sequence[Request]) -> list[Outcome]:
    """What each of ``requests`` was given, all submitted at once; the engine must be idle."""
    ids = [engine.submit(request) for request in requests]
    done = drive(engine)
    return [done[request_id] for request_id in ids]
