"""Target and draft, trained for seconds on a little text: what training computes is what others compute from the files."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from random import Random
from typing import Protocol, cast

import torch
from attrs import frozen
from safetensors.torch import load_file, save_file  # pyright: ignore[reportUnknownVariableType] - PathLike is left bare
from torch import Tensor
from transformers import LlavaForConditionalGeneration

from examples.digits.dialogue import asked, random_dialogue
from examples.digits.distil import said, train_draft
from examples.digits.draft import EagleHead
from examples.digits.draft_files import save_draft
from examples.digits.evaluate import CHAIN, accepted_counts, emitted_by_passes, generate
from examples.digits.model import Reader
from examples.digits.pool import Batch, Pool, make_pool
from examples.digits.render import PLAIN, normalized
from examples.digits.scans import load_scans
from examples.digits.schedule import Course
from examples.digits.talk import FIXED
from examples.digits.target import train_target
from outrider import ChainBuilder
from outrider.checkpoint import Checkpoint
from outrider.interfaces import LoadOptions
from outrider.types.request import Request
from outrider_adapters.eagle import eagle3_loader
from outrider_adapters.llama import loader as llama_loader
from tests.examples.digits.pair import small_tokenizer
from tests.support.engines import engine_of, run

CPU = torch.device("cpu")
LEARNED = (FIXED[0], FIXED[4])


@frozen(eq=False)
class Trained:
    """A pair that has learned a few answers by heart, and how its losses went."""

    reader: Reader
    head: EagleHead
    target_losses: list[float]
    draft_losses: list[float]


def ignored(_: str) -> None:
    """Takes no notice of progress."""


@cache
def trained() -> Trained:
    torch.manual_seed(0)  # pyright: ignore[reportUnknownMemberType] - not annotated
    generator = torch.Generator().manual_seed(0)
    talk = make_pool(small_tokenizer(), [asked(questions[0], reply, []) for questions, reply in LEARNED], CPU)
    pools, scans = [talk] * 3, load_scans(CPU)[0]
    reader, target_losses = train_target(pools, scans, 4, Course(100, 5.0, 3e-3), generator, ignored)
    head, draft_losses = train_draft(reader, pools, scans, 4, Course(60, 5.0, 5e-3), generator, ignored)
    return Trained(reader, head, target_losses, draft_losses)


def one_image_pool() -> Pool:
    rng = Random(5)
    return make_pool(small_tokenizer(), [random_dialogue(rng, 1) for _ in range(6)], CPU)


def test_losses_fall() -> None:
    pair = trained()
    assert pair.target_losses[-1] < 0.1 * pair.target_losses[0]
    assert pair.draft_losses[-1] < 0.5 * pair.draft_losses[0]


class _Outputs(Protocol):
    logits: Tensor
    hidden_states: tuple[Tensor, ...]


def test_transformers_reads_the_target_and_sees_what_training_saw(tmp_path: Path) -> None:
    reader, pool = trained().reader, one_image_pool()
    reader.save(tmp_path)
    loaded: object = LlavaForConditionalGeneration.from_pretrained(tmp_path)  # pyright: ignore[reportUnknownMemberType] - untyped there
    model = cast("Callable[..., _Outputs]", loaded)
    batch = pool.take(torch.arange(len(pool)), load_scans(CPU)[1], PLAIN, torch.Generator().manual_seed(1))
    assert batch.drawing is not None
    with torch.no_grad():
        mine = said(reader, batch)
        theirs = model(
            input_ids=batch.ids,
            pixel_values=normalized(batch.drawing.pixels),
            output_hidden_states=True,
            use_cache=False,
        )
    torch.testing.assert_close(mine.logits, theirs.logits, atol=1e-4, rtol=1e-4)
    taps = torch.cat([theirs.hidden_states[tap] for tap in (1, 2, 3)], dim=-1)
    torch.testing.assert_close(mine.features, taps, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(mine.embeds, theirs.hidden_states[0], atol=1e-5, rtol=1e-5)


def test_an_image_changes_what_is_read() -> None:
    reader, pool = trained().reader, one_image_pool()
    rows, scans = torch.zeros(2, dtype=torch.int64), load_scans(CPU)[0]
    with torch.no_grad():
        logits = said(reader, pool.take(rows, scans, PLAIN, torch.Generator().manual_seed(1))).logits
    assert not torch.allclose(logits[0], logits[1])


def test_own_tokens_are_those_up_to_the_first_that_the_target_would_not_say() -> None:
    pair = trained()
    batch = Batch(*answered_by(pair.reader, LEARNED[0][0][0]), torch.zeros(0, 8, dtype=torch.int64), None)
    with torch.no_grad():
        assert torch.equal(said(pair.reader, batch).own, batch.answered)
        start = int(batch.answered[0].int().argmax())
        batch.ids[0, start + 3] = (batch.ids[0, start + 3] + 1) % 100
        own = said(pair.reader, batch).own[0]
    assert own[start : start + 3].all()
    assert not own[start + 3 :].any()


def answered_by(reader: Reader, question: str) -> tuple[Tensor, Tensor]:
    """A question with the target's own greedy answer: ids ``[1, T]``, and which of them are the answer."""
    prompt = make_pool(small_tokenizer(), [asked(question, "", [])], CPU)
    prompt_ids = prompt.ids[:, :-1]
    answer_ids = generate(reader, prompt_ids, None)
    ids = torch.cat((prompt_ids, answer_ids), dim=1)
    return ids, torch.arange(ids.shape[1])[None] >= prompt_ids.shape[1]


def test_the_unrolled_head_drafts_what_it_drafts_step_by_step() -> None:
    """Each row's chain, drafted for all rows at once, is the one that is drafted with nothing after that row."""
    pair = trained()
    ids, _ = answered_by(pair.reader, LEARNED[1][0][0])
    with torch.no_grad():
        embeds = pair.reader.merged(ids, None)
        features = pair.reader.read(embeds).features
        every = pair.head.drafted(features, embeds, CHAIN, pair.reader.embedding)
        for rows in (1, 4, ids.shape[1] - 1):
            alone = pair.head.drafted(features[:, : rows + 1], embeds[:, : rows + 1], CHAIN, pair.reader.embedding)
            assert torch.equal(alone[:, -1], every[:, rows - 1])
        chain = every[0, -1]
        longer = torch.cat((ids, chain[None]), dim=1)
        # Training feeds true tokens: given the chain as the true ones, it says the chain.
        more = pair.reader.read(pair.reader.merged(longer, None))
        logits = pair.head(more.features, pair.reader.merged(longer, None), CHAIN)
        row = ids.shape[1] - 2
        forced = [int(pair.head.target_ids[step[0, row].argmax()]) for step in logits]
    assert forced == [int(token) for token in chain]


def save_text_target(reader: Reader, directory: Path) -> None:
    """The decoder alone, as a Llama checkpoint."""
    reader.save(directory / "llava")
    tensors: dict[str, Tensor] = load_file(directory / "llava" / "model.safetensors")
    prefix = "language_model."
    kept = {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}
    save_file(kept, directory / "model.safetensors")
    config = Checkpoint(directory / "llava").config.section("text_config")
    assert config is not None
    values = {**config.values, "architectures": ["LlamaForCausalLM"]}
    (directory / "config.json").write_text(json.dumps(values), encoding="utf-8")


def test_outrider_accepts_what_the_simulation_accepts(tmp_path: Path) -> None:
    """The same tokens, and the same number of them in each round; so the files mean what training meant."""
    pair = trained()
    save_text_target(pair.reader, tmp_path / "target")
    save_draft(pair.head, tmp_path / "draft")
    options = LoadOptions(CPU, torch.float32)
    target = llama_loader().load(Checkpoint(tmp_path / "target"), options)
    draft = eagle3_loader().load(Checkpoint(tmp_path / "draft"), options).bind(target)
    lengths: list[int] = []
    for questions, _ in (*LEARNED, *FIXED[1:4]):
        ids, answered = answered_by(pair.reader, questions[0])
        with torch.no_grad():
            embeds = pair.reader.merged(ids, None)
            drafted = pair.head.drafted(pair.reader.read(embeds).features, embeds, CHAIN, pair.reader.embedding)
        accepted = accepted_counts(drafted, ids, answered)[0]
        expected = emitted_by_passes([bool(own) for own in answered[0]], [int(count) for count in accepted])

        prompt = tuple(int(token) for token in ids[0, ~answered[0]])
        answer = [int(token) for token in ids[0, answered[0]]]
        (outcome,) = run(engine_of(target, ChainBuilder(draft, CHAIN)), [Request(prompt, len(answer))])
        assert outcome.token_ids == answer
        assert outcome.accept_lengths[:-1] == expected[:-1]
        assert sum(expected) == len(answer) - 1
        lengths += expected
    assert max(lengths) > 2, "the pair has learned enough for this to be a test"
