"""The trained pair loaded once, models that misbehave on purpose, and a way to run the command with either."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import cast

import pytest
import torch
from attrs import evolve, frozen
from click.testing import CliRunner, Result

from outrider import ChainBuilder, EngineOptions, RequestSettings, SpeculativeModel, TextDelta, registry
from outrider.checkpoint import Checkpoint
from outrider.cli import main
from outrider.errors import NonFiniteLogitsError
from outrider.generation.drafting import AUTO, DraftingOptions
from outrider.generation.load import runner_options
from outrider.generation.model import Prompt, PromptLike
from outrider.interfaces import AttnBackend, GraphRunner, LoadOptions, ModelPair, Target
from outrider.types import Role

Spoil = Callable[[Iterator[TextDelta]], Iterator[TextDelta]]
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": ""}
PROMPTS = ("def main():", "import numpy as np\n", "class Point:\n    def", "for i in range(10):", "x = [")


@frozen(eq=False)
class Parts:
    """What a `SpeculativeModel` is made of; the weights are loaded once."""

    target: Target
    builder: ChainBuilder
    attention: AttnBackend

    @classmethod
    def of(cls, pair: ModelPair) -> Parts:
        options = LoadOptions(torch.device("cpu"), torch.float32)
        target = registry.load_target(Checkpoint(pair.target), options)
        draft = registry.load_draft(Checkpoint(pair.drafts[0]), options).bind(target)
        return cls(target, ChainBuilder(draft, 5), registry.attention("sdpa"))

    def reference(self, prompt: PromptLike, max_new_tokens: int) -> tuple[str, list[int]]:
        """Text and ids of the target alone: no draft, no batch, no stream."""
        model = SpeculativeModel(self.target, attention=self.attention, runner=lambda: registry.runner("eager"))
        completion = model.generate(prompt, max_new_tokens=max_new_tokens)
        return completion.text, list(completion.token_ids)


class Spoiled(SpeculativeModel):
    """A model whose deltas pass through ``spoil``; keeps the prompts and settings it was asked."""

    def __init__(
        self,
        parts: Parts,
        options: EngineOptions | None,
        spoil: Spoil,
        drafter: bool,
        runner: Callable[[], GraphRunner],
    ) -> None:
        super().__init__(
            parts.target,
            parts.builder if drafter else None,
            attention=parts.attention,
            runner=runner,
            options=options,
        )
        self.spoil = spoil
        self.asked: list[tuple[list[Prompt], RequestSettings | None]] = []

    def stream_batch(
        self, prompts: Iterable[PromptLike], *, settings: RequestSettings | None = None, raise_errors: bool = True
    ) -> Iterator[TextDelta]:
        wanted = [Prompt.of(prompt) for prompt in prompts]
        self.asked.append((wanted, settings))
        return self.spoil(super().stream_batch(wanted, settings=settings, raise_errors=raise_errors))


def untouched(deltas: Iterator[TextDelta]) -> Iterator[TextDelta]:
    return deltas


def interrupt_after(prompts: int = 1 << 30, deltas: int = 1 << 30) -> Spoil:
    """Ctrl-C when so many prompts are done, or so many deltas were given."""

    def spoil(source: Iterator[TextDelta]) -> Iterator[TextDelta]:
        done = 0
        for number, delta in enumerate(source, start=1):
            yield delta
            done += delta.completion is not None
            if done == prompts or number == deltas:
                raise KeyboardInterrupt

    return spoil


def fail_prompt(index: int) -> Spoil:
    """The model gives NaN for one prompt at its end."""

    def spoil(deltas: Iterator[TextDelta]) -> Iterator[TextDelta]:
        for delta in deltas:
            if delta.index == index and delta.completion is not None:
                failed = evolve(
                    delta.completion, finish_reason="error", error=NonFiniteLogitsError("NaN in the logits")
                )
                yield evolve(delta, completion=failed)
            else:
                yield delta

    return spoil


def wrong_token(place: int) -> Spoil:
    """One token of every prompt that is long enough is another than the target's."""

    def spoil(deltas: Iterator[TextDelta]) -> Iterator[TextDelta]:
        for delta in deltas:
            completion = delta.completion
            if completion is not None and len(completion.token_ids) > place:
                ids = list(completion.token_ids)
                ids[place] += 1
                completion = evolve(completion, token_ids=tuple(ids))
            yield evolve(delta, completion=completion)

    return spoil


@frozen(eq=False)
class Command:
    """``outrider`` in this process, on weights that are already loaded."""

    parts: Parts
    monkeypatch: pytest.MonkeyPatch
    runner: CliRunner

    def __call__(
        self,
        *arguments: str | Path,
        stdin: str | bytes | None = None,
        spoil: Spoil = untouched,
        drafter: bool = True,
    ) -> Ran:
        models: list[Spoiled] = []
        loads: list[dict[str, object]] = []

        def load(
            *_: object,
            options: EngineOptions,
            runner: str,
            role: Role,
            capture_tokens: tuple[int, ...] | None,
            capture_requests: tuple[int, ...] | None,
            **keywords: object,
        ) -> Spoiled:
            loads.append({name: value for name, value in keywords.items() if name in DraftingOptions.names()})
            name = "eager" if runner == AUTO else runner
            wanted = runner_options(role, capture_tokens, capture_requests)
            models.append(Spoiled(self.parts, options, spoil, drafter, lambda: registry.runner(name, wanted)))
            return models[-1]

        with self.monkeypatch.context() as patch:
            patch.setattr(importlib.import_module("outrider.cli.generate"), "load", load)
            result = self.runner.invoke(main, [str(argument) for argument in arguments], input=stdin)
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return Ran(result, models, loads)


@frozen(eq=False)
class Ran:
    """What a command did, the models it loaded, and what it asked of their drafting."""

    result: Result
    models: list[Spoiled]
    loads: list[dict[str, object]]

    @property
    def code(self) -> int:
        return self.result.exit_code

    @property
    def out(self) -> str:
        return self.result.stdout

    @property
    def err(self) -> str:
        return self.result.stderr


def parsed(lines: str) -> list[dict[str, object]]:
    return [cast("dict[str, object]", json.loads(line)) for line in lines.splitlines()]


def lengths(line: dict[str, object]) -> list[int]:
    """The ``accept_lengths`` of a result line."""
    return cast("list[int]", line["accept_lengths"])


def write_lines(path: Path, *lines: object) -> Path:
    """A JSONL file; strings are written as they are."""
    path.write_text("".join(f"{line if isinstance(line, str) else json.dumps(line)}\n" for line in lines))
    return path


def start(*arguments: str | Path, stdout: int = subprocess.PIPE) -> subprocess.Popen[bytes]:
    """``python -m outrider`` as a process of its own."""
    command = [sys.executable, "-m", "outrider", *map(str, arguments)]
    return subprocess.Popen(command, stdout=stdout, stderr=subprocess.PIPE, env=ENVIRONMENT)
