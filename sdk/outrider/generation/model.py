"""`SpeculativeModel`: text in, text out, over an engine."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence

from attrs import evolve
from typing_extensions import Unpack

from outrider import registry
from outrider.errors import InputError, OutriderError, RequestFailedError
from outrider.generation.completion import BatchResult, Completion, Statistics, TextDelta, totals
from outrider.generation.fields import unknown_names
from outrider.generation.progress import NoText, PromptProgress
from outrider.generation.prompts import ImageLike, Prompt, PromptLike, Video, encode_prompt
from outrider.generation.settings import RequestSettings, SettingKeywords
from outrider.interfaces import (
    AttnBackend,
    CaptureProgress,
    ConstraintFactory,
    DrafterBuilder,
    GraphRunner,
    Target,
    TextCodec,
    TokenConstraint,
    Verifier,
)
from outrider.loop.build import EngineOptions, build_engine
from outrider.loop.engine import Engine
from outrider.text.stops import StopMatcher
from outrider.types import CaptureHiddenMode, CaptureSummary, OutputWants, RequestId
from outrider.types.request import Emission, Request

__all__ = ["ImageLike", "Prompt", "PromptLike", "SpeculativeModel", "Video"]

GRAMMAR = "xgrammar"
"""The installed implementation of grammars that settings use."""


class SpeculativeModel:
    """A target with an optional drafter, ready to generate. Not thread-safe.

    Made by `outrider.load` from directories, or from parts: any `Target`, any `DrafterBuilder`, any backends.
    """

    def __init__(
        self,
        target: Target,
        drafter: DrafterBuilder | None = None,
        *,
        attention: AttnBackend,
        runner: Callable[[], GraphRunner],
        verifier: Verifier | None = None,
        options: EngineOptions | None = None,
        notes: Sequence[str] = (),
    ) -> None:
        """``runner`` makes a fresh runner for each engine. ``verifier`` ``None`` is `ExactVerifier`."""
        self.target = target
        self.drafter = drafter
        self._attention = attention
        self._runner = runner
        self._verifier = verifier
        self.notes: tuple[str, ...] = tuple(notes)
        """Choices that loaders made where a checkpoint is silent or contradicts itself, each with its reason."""
        self._options = EngineOptions() if options is None else options
        self._grammars: ConstraintFactory | None = None
        self.engine: Engine = build_engine(
            target, drafter, attention=attention, runner=runner(), verifier=verifier, options=self._options
        )
        self.captured: CaptureSummary | None = None
        """What the last `capture` did."""
        # Several streams may be open at once: each step's emissions go to the stream that submitted the request.
        self._inboxes: dict[RequestId, deque[Emission]] = {}

    def capture(self, progress: CaptureProgress | None = None) -> CaptureSummary:
        """Capture every size before the first prompt, as `Engine.capture` does and raises; what was captured."""
        self.captured = self.engine.capture(progress)
        return self.captured

    def without_draft(self) -> SpeculativeModel:
        """The same target (the same weights) decoding plainly, with an engine of its own."""
        return SpeculativeModel(
            self.target,
            attention=self._attention,
            runner=self._runner,
            verifier=self._verifier,
            options=self._options,
        )

    def generate(
        self,
        prompt: PromptLike,
        *,
        images: Iterable[ImageLike] = (),
        videos: Iterable[Video] = (),
        **settings: Unpack[SettingKeywords],
    ) -> Completion:
        """The completion of one prompt, about ``images`` and ``videos`` if there are any (`Prompt`); ``settings`` as in
        `RequestSettings`.

        Raises:
            InputError: the prompt, a medium or a setting is not valid.
            RequestFailedError: the request failed (non-finite logits).
        """
        return self.generate_batch([Prompt.of(prompt, images, videos)], **settings).completions[0]

    def generate_batch(
        self, prompts: Iterable[PromptLike], *, raise_errors: bool = True, **settings: Unpack[SettingKeywords]
    ) -> BatchResult:
        """Completions of many prompts, batched as rows come free.

        With ``raise_errors`` false a prompt that cannot be run, or fails, becomes a completion with an ``error``. When the
        user interrupts, what was finished is returned, marked as interrupted.

        Raises:
            InputError: a prompt or a setting is not valid.
            RequestFailedError: some requests failed; carries all completions.
        """
        wanted = [Prompt.of(prompt) for prompt in prompts]
        base = _settings(settings)
        started = time.perf_counter()
        done: dict[int, Completion] = {}
        partial: dict[int, tuple[list[int], list[str]]] = {index: ([], []) for index in range(len(wanted))}
        interrupted = False
        try:
            for delta in self.stream_batch(wanted, settings=base, raise_errors=raise_errors):
                ids, texts = partial[delta.index]
                ids.extend(delta.token_ids)
                texts.append(delta.text)
                if delta.completion is not None:
                    done[delta.index] = delta.completion
        except KeyboardInterrupt:
            interrupted = True
        for index, (ids, texts) in partial.items():
            if index not in done:
                done[index] = self._cancelled(index, ids, "".join(texts))
        completions = tuple(done[index] for index in range(len(wanted)))
        statistics = totals(completions, self.engine.draft_depth, time.perf_counter() - started)
        result = BatchResult(completions, statistics, interrupted)
        if raise_errors and result.failed:
            errors = "; ".join(str(completion.error) for completion in result.failed)
            message = f"{len(result.failed)} of {len(completions)} requests failed: {errors}"
            raise RequestFailedError(message, completions) from result.failed[0].error
        return result

    def stream(
        self,
        prompt: PromptLike,
        *,
        images: Iterable[ImageLike] = (),
        videos: Iterable[Video] = (),
        **settings: Unpack[SettingKeywords],
    ) -> Iterator[TextDelta]:
        """The text of one prompt as it grows, one delta a round; the last one carries the completion."""
        return self.stream_batch([Prompt.of(prompt, images, videos)], settings=_settings(settings))

    def stream_batch(
        self,
        prompts: Iterable[PromptLike],
        *,
        settings: RequestSettings | None = None,
        raise_errors: bool = True,
    ) -> Iterator[TextDelta]:
        """Deltas of many prompts as they grow, interleaved. Leaving the iterator early ends the requests.

        Other streams of this model may be open meanwhile; they share the engine's rows. Prompts are taken from ``prompts``
        as rows come free, so it may be long or endless.
        """
        base = RequestSettings() if settings is None else settings
        base.check()
        source = enumerate(Prompt.of(prompt) for prompt in prompts)
        active: dict[RequestId, PromptProgress] = {}
        arrived: deque[Emission] = deque()
        exhausted = False
        try:
            while True:
                while not exhausted and self._wants_prompts():
                    item = next(source, None)
                    if item is None:
                        exhausted = True
                        break
                    index, prompt = item
                    try:
                        request_id, progress = self._submit(index, prompt, base)
                    except OutriderError as error:
                        if raise_errors:
                            raise
                        yield TextDelta(index, "", (), self._refused(index, error))
                        continue
                    active[request_id] = progress
                    self._inboxes[request_id] = arrived
                if exhausted and not active:
                    return
                if not arrived:
                    self._deliver(self.engine.step())
                while arrived:
                    emission = arrived.popleft()
                    running = active.get(emission.request_id)
                    if running is None:
                        continue  # it ended with a stop, and the device was a round ahead
                    delta = running.take(emission)
                    if delta.completion is not None:
                        del active[emission.request_id]
                        del self._inboxes[emission.request_id]
                        if emission.finish_reason is None:
                            self.engine.cancel(emission.request_id)
                    yield delta
        finally:
            for request_id in active:
                del self._inboxes[request_id]
                self.engine.cancel(request_id)
            if active:
                self._deliver(self.engine.read())

    def close(self) -> None:
        """Free the engine. May be called twice.

        A stream that is open goes on with what it has: its requests end as "cancelled", and a prompt that was not begun
        raises `ClosedError` as any other does now.
        """
        self.engine.close()
        self._deliver(self.engine.read())

    def _wants_prompts(self) -> bool:
        """Whether another prompt could run now, or be the next to run."""
        engine = self.engine
        return engine.num_waiting == 0 or engine.num_waiting + engine.num_running < engine.limits.max_batch_size

    def _deliver(self, emissions: Iterable[Emission]) -> None:
        for emission in emissions:
            inbox = self._inboxes.get(emission.request_id)
            if inbox is not None:
                inbox.append(emission)

    def _submit(self, index: int, prompt: Prompt, base: RequestSettings) -> tuple[RequestId, PromptProgress]:
        settings = base if prompt.settings is None else prompt.settings
        settings.check(self.target.stack.spec.vocab_size)
        longest = self.engine.limits.context_length - 1
        encoded = encode_prompt(self.target, prompt, index, longest, self.engine.runner)
        request = Request(
            encoded.token_ids,
            settings.max_new_tokens,
            settings.sampling(),
            eos_ids=settings.eos_ids(),
            draft_cap=settings.max_draft_tokens,
            wants=_wants(settings),
        )
        matcher = StopMatcher(settings.stops(), self._codec(settings))
        request_id = self.engine.submit(request, encoded.prepared, self._constraint(settings))
        hidden_mode = settings.wants().hidden
        return request_id, PromptProgress(index, encoded.token_ids, matcher, hidden_mode, self.engine.draft_depth)

    def _codec(self, settings: RequestSettings) -> TextCodec:
        if self.target.codec is not None:
            return self.target.codec
        if settings.stop:
            raise InputError(f"{self.target.stack.spec.name} has no tokenizer, so no stop string can be found")
        return NoText()

    def _constraint(self, settings: RequestSettings) -> TokenConstraint | None:
        grammar = settings.grammar()
        if grammar is None:
            return None
        if self._grammars is None:
            if self.target.tokenizer_file is None:
                raise InputError(f"{self.target.stack.spec.name} has no tokenizer.json, which a grammar needs")
            load = registry.constraints(GRAMMAR)
            vocab_size = self.target.stack.spec.vocab_size
            self._grammars = load(self.target.tokenizer_file, vocab_size, self.target.eos_ids)
        return self._grammars.compile(grammar)

    def _refused(self, index: int, error: OutriderError) -> Completion:
        return evolve(self._cancelled(index, [], ""), finish_reason="error", error=error)

    def _cancelled(self, index: int, token_ids: list[int], text: str) -> Completion:
        nothing = Statistics(len(token_ids), 0, (), self.engine.draft_depth, 0.0)
        return Completion(index, (), tuple(token_ids), text, "cancelled", (), nothing)


def _settings(values: SettingKeywords) -> RequestSettings:
    unknown = unknown_names("settings", values, RequestSettings.names())
    if unknown is not None:
        raise InputError(unknown)
    return RequestSettings().override(values)


def _wants(settings: RequestSettings) -> OutputWants:
    """What the engine must give: where a stop may cut a round, the state to keep is known only afterwards."""
    wants = settings.wants()
    if wants.hidden is CaptureHiddenMode.LAST and (settings.stop or settings.stop_sequences):
        return evolve(wants, hidden=CaptureHiddenMode.FULL)
    return wants
