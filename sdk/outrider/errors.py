"""Every error Outrider raises on purpose, in one tree.

::

    OutriderError
    ├── CheckpointError        a directory, config or tensor file cannot be used as what was asked
    │   └── NoLoaderError      no registered loader recognises the checkpoint
    ├── BindError              two parts (target, draft, backend) do not fit each other
    ├── ConfigurationError     an option or a combination of options cannot be honoured
    │   └── PluginError        an installed implementation cannot be imported or created
    ├── InputError             a request, prompt or input file is not valid
    │   └── ContextLengthError the prompt leaves no room for a new token
    ├── CapacityError          the KV memory can never hold the request, or the device the KV memory or a prompt's media
    ├── NonFiniteLogitsError   a model produced NaN or infinite logits for one request
    ├── RequestFailedError     one or more requests of a batch failed; carries the completions
    ├── OutputError            a result cannot be written
    ├── GraphError             a captured graph, or its buffers, are used otherwise than they were declared
    │   └── CaptureError       a body cannot be captured: the lines that prevent it, and what to write instead
    ├── ClosedError            something was used after ``close()``
    └── ConformanceError       an implementation breaks the contract of its Protocol

A message says what was asked, what was found, what is allowed and what to do. A check that finds several
faults reports all of them at once (`Problems`).
"""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Self

__all__ = [
    "BindError",
    "CapacityError",
    "CaptureError",
    "CheckpointError",
    "ClosedError",
    "ConfigurationError",
    "ConformanceError",
    "ContextLengthError",
    "GraphError",
    "InputError",
    "NoLoaderError",
    "NonFiniteLogitsError",
    "OutputError",
    "OutriderError",
    "PluginError",
    "Problems",
    "RequestFailedError",
]


class OutriderError(Exception):
    """Base of every error that Outrider raises on purpose."""


class CheckpointError(OutriderError):
    """A checkpoint directory, its config or its tensors cannot be used as what was asked."""


class NoLoaderError(CheckpointError):
    """No registered loader recognises the checkpoint."""


class BindError(OutriderError):
    """Two parts that were to work together do not fit: both sides and the remedy are named."""


class ConfigurationError(OutriderError):
    """An option, or a combination of options, cannot be honoured."""


class PluginError(ConfigurationError):
    """An installed implementation cannot be imported or created; names its package, its entry point and the cause."""


class InputError(OutriderError):
    """A request, a prompt or a line of an input file is not valid."""


class ContextLengthError(InputError):
    """The prompt leaves no room for a new token in the context of the target."""


class CapacityError(OutriderError):
    """The KV memory can never hold the request, however long it waits; or the device cannot hold the KV memory."""


class NonFiniteLogitsError(OutriderError):
    """A model produced NaN or infinite logits; names the request and the phase."""


class RequestFailedError(OutriderError):
    """One or more requests of a batch failed; the others finished and are kept in ``completions``."""

    def __init__(self, message: str, completions: Sequence[object]) -> None:
        super().__init__(message)
        self.completions: tuple[object, ...] = tuple(completions)


class OutputError(OutriderError):
    """A result cannot be written."""


class GraphError(OutriderError):
    """A captured graph, or the buffers under it, are used otherwise than they were declared; both sides are named."""


class CaptureError(GraphError):
    """A body cannot be captured: every line that prevents it, with what to write instead."""


class ClosedError(OutriderError):
    """A runner, engine or file was used after it was closed."""


class ConformanceError(OutriderError):
    """An implementation breaks the contract of the Protocol it claims."""


class Problems:
    """Collects the faults one check finds and raises them together on leaving the ``with`` block.

    >>> with Problems("draft does not fit the target", BindError) as problems:
    ...     if draft_hidden != target_hidden:
    ...         problems.add(f"width {draft_hidden}, the target has {target_hidden}")
    """

    def __init__(self, title: str, error: type[OutriderError]) -> None:
        self._title = title
        self._error = error
        self._found: list[str] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.raise_any()

    def __len__(self) -> int:
        return len(self._found)

    @property
    def found(self) -> tuple[str, ...]:
        """The faults noted so far, in order."""
        return tuple(self._found)

    def add(self, message: str) -> None:
        """Note one fault: what was asked, what was found, what is allowed and what to do."""
        self._found.append(message)

    def raise_any(self) -> None:
        """Raise the error with every noted fault; nothing happens when there is none."""
        if not self._found:
            return
        if len(self._found) == 1:
            raise self._error(f"{self._title}: {self._found[0]}")
        lines = "".join(f"\n  - {message}" for message in self._found)
        raise self._error(f"{self._title}: {len(self._found)} problems{lines}")
