"""``outrider generate``: text from a prompt, or result lines from a file of prompts."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import ClassVar

import click
from attrs import evolve, frozen

from outrider.cli.job import Job
from outrider.cli.jsonl import InputLine, ResultFile, check_lines, read_lines
from outrider.cli.options import drafting, drafting_options, model_options, request_settings, setting_options
from outrider.cli.render import progress_bar
from outrider.cli.running import Running, running_options
from outrider.cli.sections import SectionedCommand
from outrider.cli.terminal import read_prompt
from outrider.errors import ConfigurationError, InputError, PluginError
from outrider.generation.drafters import DraftPlan
from outrider.generation.drafting import AUTO, DraftingOptions
from outrider.generation.load import DTYPES, load, plan_drafting
from outrider.generation.model import Prompt, SpeculativeModel, Video
from outrider.generation.prompts import DEFAULT_IMAGE_PAIR
from outrider.loop.build import EngineOptions
from outrider.text.unicode import check_text

__all__ = ["generate_command"]

_EXAMPLES = """\b
Examples:
  outrider generate "def main():"
  outrider generate "def main():" --compare
  outrider generate --image digits.png "What do you see?"
  outrider generate --input prompts.jsonl --output results.jsonl --max-new-tokens 64
"""


@frozen(kw_only=True)
class _Models:
    """The flags of `model_options` and of `running_options`."""

    target: str | None
    draft: str
    drafting: DraftingOptions
    batch_size: int | None
    dtype: str
    device: str
    attention: str
    runner: str
    page_size: int
    max_length: int | None
    allow_pickle: bool
    running: Running

    def load(self, default_batch_size: int) -> SpeculativeModel:
        """The model, with a bar while it loads."""
        options = EngineOptions(
            max_batch_size=default_batch_size if self.batch_size is None else self.batch_size,
            page_size=self.page_size,
            max_length=self.max_length,
        )
        dtype = DTYPES[self.dtype]
        with progress_bar("loading") as progress:
            return load(
                self.target,
                self.draft,
                **self.drafting.keywords(),
                device=self.device,
                dtype="auto" if dtype is None else dtype,
                attention=self.attention,
                runner=self.runner,
                role=self.running.role,
                capture_tokens=self.running.capture_tokens,
                capture_requests=self.running.capture_requests,
                options=options,
                allow_pickle=self.allow_pickle,
                progress=progress,
            )

    def reading(self, lines: Sequence[InputLine]) -> _Models:
        """These models; where none is named and ``lines`` have media, those of the embedded pair that reads images."""
        media = any(line.prompt is not None and (line.prompt.images or line.prompt.videos) for line in lines)
        return evolve(self, target=DEFAULT_IMAGE_PAIR) if media and self.target is None else self

    @property
    def drafts_nothing(self) -> bool:
        return (self.draft == "none" and self.drafting.drafter == AUTO) or self.drafting.drafts_nothing


class _Generate(SectionedCommand):
    sections: ClassVar[Mapping[str, str]] = {
        "--input": "Prompts and results",
        "--target": "Models, and how they run",
        "--drafter": "Drafting and verification",
        "--max-new-tokens": "Settings of a prompt",
        "--help": "Other",
    }


@click.command("generate", cls=_Generate, short_help="Continue prompts, with drafting.", epilog=_EXAMPLES)
@click.argument("prompt", required=False)
@click.option("--input", "source", metavar="FILE", help="Prompts, one JSON object a line; - is standard input.")
@click.option(
    "--image",
    "images",
    metavar="FILE",
    multiple=True,
    help=(
        "An image that PROMPT is about; the default target is then the embedded pair that reads images. Lines of --input "
        'have "images".  [repeatable]'
    ),
)
@click.option(
    "--frame",
    "frames",
    metavar="FILE",
    multiple=True,
    help="A frame of a video that PROMPT is about, in order; needs --fps and a target that reads videos.  [repeatable]",
)
@click.option("--fps", type=float, help="How many of the --frame files are a second of the video.")
@click.option("--output", metavar="FILE", help="Result lines in JSON; - is standard output.  [default for --input: -]")
@click.option("--keep-going", is_flag=True, help="Write a line with the error for a prompt that fails, and go on.")
@click.option("--compare", is_flag=True, help="Run the same without drafting as well: same tokens, time beside time.")
@model_options
@running_options
@drafting_options
@setting_options
def generate_command(
    prompt: str | None,
    source: str | None,
    images: tuple[str, ...],
    frames: tuple[str, ...],
    fps: float | None,
    output: str | None,
    keep_going: bool,
    compare: bool,
    target: str | None,
    draft: str,
    batch_size: int | None,
    dtype: str,
    device: str,
    attention: str,
    runner: str,
    page_size: int,
    max_length: int | None,
    allow_pickle: bool,
    **tables: object,
) -> None:
    """Continue PROMPT (- reads it from standard input), or every prompt of --input.

    The text goes to standard output as it is generated, statistics go to standard error. A line of --input is
    {"prompt": "..."} or {"token_ids": [...]}, with any setting of a prompt as a further key, which overrides the flag, and
    "images": [paths from the folder of the file] or "videos": [{"frames": [paths], "fps": number}].
    A line of --output has "index", "token_ids", "text", "finish_reason", "accept_lengths" (tokens a round, bonus
    included), where asked "logprobs" ({"logprob": x, "top": [[id, x], ...]} for each token, in nats, before any sampling
    setting) and, where a prompt failed, "error"; lines come in input order, as soon as they can.
    """
    models = _Models(
        target=target,
        draft=draft,
        drafting=drafting(tables),
        batch_size=batch_size,
        dtype=dtype,
        device=device,
        attention=attention,
        runner=runner,
        page_size=page_size,
        max_length=max_length,
        allow_pickle=allow_pickle,
        running=Running.of(tables),
    )
    _check_usage(prompt, source, images, output, compare, models)
    videos = _videos(source, frames, fps)
    plan = _plan(models)
    wanted = request_settings(tables)
    if prompt is not None:
        lines = [InputLine(0, 1, Prompt(_prompt_text(prompt), images=images, videos=videos, name="PROMPT"))]
    else:
        lines = read_lines(str(source), wanted)
        if not keep_going:
            check_lines(lines)
    with ExitStack() as stack:
        path = "-" if output is None and source is not None else output
        results = None if path is None else stack.enter_context(ResultFile(path))
        model = models.reading(lines).load(EngineOptions().max_batch_size if prompt is None else 1)
        stack.callback(model.close)
        if models.target is not None or models.draft not in ("auto", "none"):
            # Of the embedded pair there is nothing to know.
            for note in model.notes:
                click.echo(f"note: {note}", err=True)
        models.running.prepare(model)
        stack.callback(models.running.tell, model)
        job = Job(model, plan.verifier, wanted, lines, keep_going, results, source, path)
        job.run(compare)


def _check_usage(
    prompt: str | None,
    source: str | None,
    images: Sequence[str],
    output: str | None,
    compare: bool,
    models: _Models,
) -> None:
    if prompt is not None and source is not None:
        raise click.UsageError("PROMPT and --input are given, only one of them can be; drop one")
    if prompt is None and source is None:
        raise click.UsageError("neither PROMPT nor --input is given; give a prompt, - for standard input, or a file")
    if images and source is not None:
        raise click.UsageError('--image is given beside --input; name images in its lines ("images": ["FILE"])')
    if compare and models.drafts_nothing:
        raise click.UsageError("--compare needs drafting, but --draft none or --num-draft-tokens 0 turns it off")
    if source not in (None, "-") and output not in (None, "-") and _same_file(str(source), str(output)):
        raise click.UsageError(f"--input and --output are the same file {output}; choose another output")


def _videos(source: str | None, frames: Sequence[str], fps: float | None) -> tuple[Video, ...]:
    if not frames and fps is None:
        return ()
    if source is not None:
        raise click.UsageError(
            '--frame or --fps is given beside --input; name videos in its lines ("videos": [{"frames": ["FILE"], "fps": 2}])'
        )
    if not frames or fps is None:
        missing = "--frame" if fps is not None else "--fps"
        raise click.UsageError(f"of --frame and --fps only one is given; a video needs {missing} as well")
    if not 0 < fps < math.inf:
        raise click.UsageError(
            f"--fps is {fps:g}, allowed are numbers above 0; say how many of the --frame files are a second"
        )
    return (Video(frames, fps),)


def _plan(models: _Models) -> DraftPlan:
    """What would be drafted and how it would be verified: checked before anything is read, opened or loaded."""
    try:
        return plan_drafting(models.target, models.draft, models.drafting)
    except PluginError:
        raise
    except ConfigurationError as error:
        raise click.UsageError(str(error)) from error


def _same_file(one: str, other: str) -> bool:
    return os.path.exists(one) and os.path.exists(other) and os.path.samefile(one, other)


def _prompt_text(prompt: str) -> str:
    text = read_prompt() if prompt == "-" else prompt
    problem = check_text(text)
    if problem is not None:
        raise InputError(f"PROMPT: {problem}")
    return text
