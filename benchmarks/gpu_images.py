"""Speed with images: the embedded pair that reads digits, half of its prompts about an image.

``python -m benchmarks.gpu_images [OUT_DIR]`` from the checkout, with sdk, backends and adapters on the path
(``scripts/gpu`` does it); see ``--help``. ``--device cpu`` measures eager rounds in float32; with ``--quick`` it walks through
everything, with tapes in the place of CUDA graphs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import torch
from attrs import evolve, field, frozen

from benchmarks._backends import EAGER, WHOLE_ROUND, attention, runner
from benchmarks._cases import Case
from benchmarks._digits import (
    DRAFTS,
    Question,
    Reading,
    SeeingPair,
    load_seeing_pair,
    read_rows,
    seeing_contestant,
)
from benchmarks._goal import Goal
from benchmarks._gpu_options import GpuOptions, parser, read
from benchmarks._hub_images import seeing_peer
from benchmarks._progress import timed
from benchmarks._race import Contestant, Result, WrongTextError, agreement
from benchmarks._report import Table
from benchmarks._speed import TRANSFORMERS, Entrant, Group, measure
from outrider import EngineOptions, SpeculativeModel

__all__ = [
    "Field",
    "Seen",
    "digit_goals",
    "digits_table",
    "images_table",
    "models_of",
    "name_of",
    "speed_goals",
    "steps_on",
]

OFF = "drafting off"
BREAKABLE = "breakable"
BATCHES = (1, 8)
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
_NUM_ROWS = 150
_TIMES_OFF = 1.5
_MAX_LENGTH = 512


def name_of(draft: str, step: str) -> str:
    """What a row is called."""
    return f"{draft}, {step}"


def steps_on(device: torch.device, quick: bool) -> tuple[str, ...]:
    """How drafts are run: on a card by graphs too; tapes are no faster than what they replay, and take part in tries alone."""
    return (EAGER, BREAKABLE, WHOLE_ROUND) if device.type == "cuda" or quick else (EAGER,)


def models_of(pair: SeeingPair, steps: Sequence[str], backend: str) -> dict[str, SpeculativeModel]:
    """Every draft on each of ``steps``, by `name_of`; breakable graphs with a chain of 5 alone."""
    return {
        name_of(draft, step): SpeculativeModel(
            pair.target,
            build(pair.draft),
            attention=attention(backend),
            runner=partial(runner, step),
            options=EngineOptions(max_batch_size=max(BATCHES), max_length=_MAX_LENGTH),
        )
        for draft, build in DRAFTS.items()
        for step in steps
        if step != BREAKABLE or draft == "chain 5"
    }


@frozen
class Seen:
    """What was found in one dtype. ``readings``: how rows were read, by draft; empty before it was asked for."""

    dtype: str
    groups: tuple[Group, ...]
    readings: Mapping[str, Reading] = field(factory=lambda: dict[str, Reading]())


@frozen(eq=False)
class Field:
    """All who are compared in one dtype, and what they are asked."""

    dtype: str
    questions: tuple[Question, ...]
    peer: Contestant
    models: Mapping[str, SpeculativeModel]

    @classmethod
    def made(cls, name: str, device: torch.device, backend: str, steps: Sequence[str]) -> Field:
        """transformers, and every draft on each of ``steps``."""
        pair = load_seeing_pair(device, DTYPES[name])
        questions = pair.questions()
        peer = seeing_peer(TRANSFORMERS, device, DTYPES[name], questions)
        return cls(name, questions, peer, models_of(pair, steps, backend))

    def measure(self, batch: int, options: GpuOptions) -> Group:
        """Race all of them, ``batch`` questions at once.

        Raises:
            WrongTextError: in float32, texts that are not those of transformers.
        """
        # One prompt at a time takes longest; two of them, one about an image, tell enough.
        some = self.questions[:2] if options.quick or batch == 1 else self.questions
        asked = [question.token_ids for question in some]
        parts = [asked[start : start + batch] for start in range(0, len(asked), batch)]
        reference = [ids for part in parts for ids in self.peer.generate(part).token_ids]
        cases = [Case(prompt, ids) for prompt, ids in zip(asked, reference, strict=True)]
        entrants = [Entrant(self.peer)]
        entrants += [Entrant(seeing_contestant(name, model, self.questions)) for name, model in self.models.items()]
        # Half precision has exact ties, which batches of other shapes break otherwise: no text is the right one.
        exact = DTYPES[self.dtype] is torch.float32
        return measure(self.dtype, entrants, cases, batch, options.repeats, options.device, check=exact)

    def read(self, step: str, count: int) -> dict[str, Reading]:
        """How every draft on ``step`` reads ``count`` rows."""
        found: dict[str, Reading] = {}
        for draft in DRAFTS:
            with timed(f"{self.dtype}, {draft}: {count} rows read"):
                found[draft] = read_rows(self.models[name_of(draft, step)], count)
        return found


def _plain_speed(group: Group, name: str) -> float:
    """Tokens a second of plain decoding, run as the contestant ``name`` is; NaN where nothing was run so."""
    step = name.rpartition(", ")[2]
    speeds = {row.result.name: row.result.tokens_per_second for row in group.rows}
    return speeds.get(name_of(OFF, step), float("nan"))


def images_table(groups: Sequence[Group]) -> Table:
    """One row per group and contestant. "× drafting off" is over plain decoding on the same step of the ladder."""
    rows: list[tuple[str, ...]] = []
    for group in groups:
        same_as = group.rows[0].result.tokens_per_second
        for row in group.rows:
            result = row.result
            plain = _plain_speed(group, result.name)
            rows.append((group.name, str(group.batch), *_cells(result, same_as, plain, group)))
    columns = ("dtype", "batch", "contestant", "tokens/s", "× transformers", "× drafting off", "acceptance length")
    return Table((*columns, "ms/round", "spread", "same tokens"), tuple(rows), frozenset({0, 2}))


def _cells(result: Result, transformers: float, plain: float, group: Group) -> tuple[str, ...]:
    return (
        result.name,
        f"{result.tokens_per_second:.0f}",
        f"{result.tokens_per_second / transformers:.2f}",
        f"{result.tokens_per_second / plain:.2f}" if plain == plain else "",
        f"{result.acceptance_length:.2f}",
        f"{result.ms_per_pass:.2f}",
        f"±{result.spread:.0%}",
        f"{agreement(result.answer, group.same_as):.0%}",
    )


def digits_table(found: Sequence[Seen]) -> Table:
    """How rows were read with every draft, and in how many of them it said what drafting off says."""
    rows = [
        (
            seen.dtype,
            draft,
            f"{reading.digits:.2%}",
            f"{reading.rows:.1%}",
            f"{reading.acceptance_length:.2f}",
            f"{_equal(reading, seen.readings[OFF])} of {len(reading.texts)}",
        )
        for seen in found
        for draft, reading in seen.readings.items()
    ]
    columns = ("dtype", "draft", "digits right", "rows right", "acceptance length", "same text as drafting off")
    return Table(columns, tuple(rows), frozenset({0, 1}))


def _equal(reading: Reading, plain: Reading) -> int:
    return sum(one == other for one, other in zip(reading.texts, plain.texts, strict=True))


def speed_goals(found: Sequence[Seen], step: str) -> list[Goal]:
    """What is wanted of the fastest draft on ``step``, over drafting off there."""
    wanted: list[Goal] = []
    for seen in found:
        for group in seen.groups:
            plain = name_of(OFF, step)
            drafted = [name_of(draft, step) for draft in DRAFTS if draft != OFF]
            best = max((row.result for row in group.rows if row.result.name in drafted), key=_speed)
            ratio = best.tokens_per_second / _plain_speed(group, plain)
            text = f"{seen.dtype}, batch {group.batch}, {best.name} (the fastest draft), over drafting off"
            wanted.append(Goal(text, _TIMES_OFF, ratio))
    return wanted


def digit_goals(found: Sequence[Seen]) -> list[Goal]:
    """What is wanted of the digits, in float32."""
    wanted: list[Goal] = []
    for seen in found:
        if seen.dtype == "float32":
            least = min(reading.digits for reading in seen.readings.values())
            same = min(_equal(reading, seen.readings[OFF]) / len(reading.texts) for reading in seen.readings.values())
            wanted.append(Goal("float32, part of the digits that are read right", 0.97, least))
            wanted.append(Goal("float32, part of the rows with the text of drafting off", 1.0, same))
    return wanted


def _speed(result: Result) -> float:
    return result.tokens_per_second


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, and write the report where asked."""
    options = read(parser("gpu_images", __doc__, repeats=2).parse_args(arguments))
    if options is None:
        return 1
    on_card = options.device.type == "cuda"
    steps = steps_on(options.device, options.quick)
    dtypes = list(DTYPES) if on_card or options.quick else ["float32"]
    report = options.report("gpu_images" if on_card else "images")
    report.add(
        f"Greedy, answers to their end, half of the prompts with an image, attention by {options.attention}, medians of "
        "repetitions in which the contestants take turns."
    )
    with timed("models loaded"):
        fields = [Field.made(dtype, options.device, options.attention, steps) for dtype in dtypes]
    found: list[Seen] = []
    wrong = False
    for one in fields:
        found.append(Seen(one.dtype, ()))
        for batch in BATCHES:
            try:
                group = one.measure(batch, options)
            except WrongTextError as error:
                wrong = True
                report.add(f"{one.dtype}, batch {batch}: {error}")
                continue
            found[-1] = evolve(found[-1], groups=(*found[-1].groups, group))
            print(f"{images_table([group])}\n", flush=True)
            report.put("speed", images_table([group for seen in found for group in seen.groups]), show=False)
    report.put("goals of speed", "\n".join(map(str, speed_goals(found, steps[-1]))))
    report.add(f"Rows of digits of writers that were held out, {steps[-1]}, batch {max(BATCHES)}:")
    for place, one in enumerate(fields):
        count = _rows_of(one.dtype, options)
        found[place] = evolve(found[place], readings=one.read(steps[-1], count))
        print(f"{digits_table(found[place : place + 1])}\n", flush=True)
        report.put("digits", digits_table(found[: place + 1]), show=False)
    report.put("goals of digits", "\n".join(map(str, digit_goals(found))))
    options.finish(report)
    return int(wrong)


def _rows_of(dtype: str, options: GpuOptions) -> int:
    """How many rows are read: on a card in half precision, of which nothing is wanted, fewer."""
    if options.quick:
        return 8
    return _NUM_ROWS if dtype == "float32" else _NUM_ROWS // 4


if __name__ == "__main__":
    raise SystemExit(main())
