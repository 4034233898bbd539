"""One call of ``outrider generate``, from the loaded model to the exit code."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import click
from attrs import frozen

from outrider.cli.jsonl import InputLine, ResultFile, result, source_name
from outrider.cli.render import Comparison, StatisticsRow, progress_bar, show_statistics, statistics_rows
from outrider.cli.run import Run, check_same, run_prompts, warm_up
from outrider.cli.terminal import INTERRUPTED, write_out
from outrider.errors import ConfigurationError, ConformanceError, RequestFailedError
from outrider.generation.completion import TextDelta
from outrider.generation.model import Prompt, SpeculativeModel
from outrider.generation.settings import RequestSettings
from outrider.interfaces import VerifierChoice

__all__ = ["Job"]


@frozen(eq=False)
class Job:
    """Everything of one call that is settled before the first token.

    ``source``: the file that ``lines`` come from, ``None`` for one prompt. ``path``: where ``results`` go, if anywhere.
    """

    model: SpeculativeModel
    verifier: VerifierChoice
    settings: RequestSettings
    lines: Sequence[InputLine]
    keep_going: bool
    results: ResultFile | None
    source: str | None
    path: str | None

    @property
    def streams(self) -> bool:
        """Whether the text itself goes to stdout."""
        return self.source is None and self.path != "-"

    def run(self, compare: bool) -> None:
        """Generate, write, show; then once more without drafting, if asked.

        Raises:
            RequestFailedError: some prompts failed; what finished is written.
            ConformanceError: without drafting the tokens are others.
        """
        good = [line for line in self.lines if line.prompt is not None]
        prompts = [line.prompt for line in good if line.prompt is not None]
        if self.model.drafter is None:
            self._say_undrafted(compare)
        plain_model = self.model.without_draft() if compare else None
        if plain_model is not None and self.model.captured is not None:
            plain_model.capture()
        if plain_model is not None and prompts:
            warm_up(self.model, prompts[0], self.settings)
            warm_up(plain_model, prompts[0], self.settings)
        run = self._drafted(good, prompts)
        alone = None if self.source is not None else run.completions.get(0)
        reason = None if alone is None else alone.finish_reason
        if run.interrupted or (run.failed and not self.keep_going) or plain_model is None:
            if run.completions:
                _show(run, statistics_rows(run.statistics, finish_reason=reason))
            self._check_complete(run, good)
            return
        plain = self._plain(plain_model, prompts)
        if plain.interrupted:
            show_statistics(statistics_rows(run.statistics, finish_reason=reason))
            self._check_complete(plain, good)
        mismatch: ConformanceError | None = None
        num_same: int | None = None
        comparable = [place for place, prompt in enumerate(prompts) if self._keeps_tokens(prompt)]
        try:
            num_same = check_same(run, plain, [line.index for line in good], comparable)
        except ConformanceError as error:
            mismatch = error
        comparison = Comparison(plain.statistics, num_same, len(prompts) - len(comparable))
        _show(run, statistics_rows(run.statistics, comparison, reason))
        if mismatch is not None:
            raise mismatch
        self._check_complete(run, good)

    def _drafted(self, good: Sequence[InputLine], prompts: Sequence[Prompt]) -> Run:
        if self.results is not None:
            self.results.start()
        for line in self.lines:
            if line.error is not None:
                self._write_malformed(line)
        done = len(self.lines) - len(good)

        # On a terminal that shows the result lines, a bar would stand between them.
        quiet = self.streams or (self.path == "-" and sys.stdout.isatty())
        with progress_bar("generating", len(self.lines), quiet) as progress:

            def take(delta: TextDelta) -> None:
                nonlocal done
                if self.streams and delta.text:
                    write_out(delta.text)
                if delta.completion is None:
                    return
                done += 1
                progress(done, len(self.lines))
                if self.results is not None and (delta.completion.error is None or self.keep_going):
                    index = good[delta.index].index
                    with_logprobs = self._wanted(good[delta.index].prompt).logprobs is not None
                    self.results.add(index, result(index, delta.completion, with_logprobs))

            run = run_prompts(self.model, prompts, self.settings, take, self.keep_going)
        if self.results is not None:
            self.results.release()
        if self.streams and _ran(run):
            write_out("\n")
        return run

    def _wanted(self, prompt: Prompt | None) -> RequestSettings:
        return self.settings if prompt is None or prompt.settings is None else prompt.settings

    def _keeps_tokens(self, prompt: Prompt) -> bool:
        """Whether drafting must give ``prompt`` the very tokens of the target alone."""
        return self.verifier.gives_same_tokens(greedy=self._wanted(prompt).sampling().greedy)

    def _plain(self, model: SpeculativeModel, prompts: Sequence[Prompt]) -> Run:
        done = 0
        with progress_bar("without drafting", len(prompts)) as progress:

            def take(delta: TextDelta) -> None:
                nonlocal done
                done += delta.completion is not None
                progress(done, len(prompts))

            run = run_prompts(model, prompts, self.settings, take, keep_going=True)
        model.close()
        return run

    def _write_malformed(self, line: InputLine) -> None:
        if self.results is None:
            return
        empty: dict[str, object] = {"token_ids": [], "text": "", "finish_reason": "error", "accept_lengths": []}
        self.results.add(line.index, {"index": line.index, **empty, "error": str(line.error)})

    def _say_undrafted(self, compare: bool) -> None:
        if compare:
            raise ConfigurationError("--compare is asked, but nothing drafts; name a draft with --draft")
        click.echo("note: nothing drafts, the target decodes alone", err=True)

    def _check_complete(self, run: Run, good: Sequence[InputLine]) -> None:
        """End with a message and an exit code when not all prompts finished."""
        malformed = len(self.lines) - len(good)
        if run.interrupted:
            finished = len(run.completions) - len(run.failed)
            click.echo(f"interrupted: {finished} of {len(self.lines)} prompts finished", err=True)
            click.get_current_context().exit(INTERRUPTED)
        if not run.failed and not malformed:
            return
        completions = tuple(run.completions[index] for index in sorted(run.completions))
        if self.source is not None and self.keep_going:
            raise RequestFailedError(
                f"{len(run.failed) + malformed} of {len(self.lines)} prompts failed; their result lines have an 'error'",
                completions,
            )
        first = run.failed[0]
        error = run.completions[first].error
        where = "" if self.source is None else f"{source_name(self.source)}: line {good[first].number}: "
        raise RequestFailedError(f"{where}{error}", completions) from error


def _show(run: Run, rows: Sequence[StatisticsRow]) -> None:
    """The statistics; where nothing ran they would be zeros above the error."""
    if _ran(run):
        show_statistics(rows)


def _ran(run: Run) -> bool:
    """Whether any prompt ran, or none failed; else every prompt was refused before."""
    return run.statistics.num_target_passes > 0 or not run.failed
