"""Every way in which a CPU can run the loop: directly, and by the steps of the ladder on tapes that show stale memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from outrider.graphs import GraphOptions, Steps
from outrider.interfaces import GraphRunner
from outrider_backends.breakable import breakable_runner
from outrider_backends.eager import EagerRunner
from outrider_backends.tape import TapeMedium, tape_runner

__all__ = ["RUNNERS"]

RUNNERS: Mapping[str, Callable[[], GraphRunner]] = {
    "eager": EagerRunner,
    "rounds": lambda: tape_runner(GraphOptions(poison=True), medium=TapeMedium(debug=True)),
    "phases": lambda: tape_runner(GraphOptions(poison=True), Steps(rounds=False), TapeMedium(debug=True)),
    "breakable": lambda: breakable_runner(GraphOptions(poison=True), (TapeMedium(debug=True),)),
}
