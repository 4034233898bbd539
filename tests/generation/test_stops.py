"""A request ends where looking at plain decoding's text after every token ends it, whatever a round brings at once."""

from __future__ import annotations

from functools import cache

import pytest
import torch
from attrs import evolve

from outrider import Completion, Prompt, RequestSettings
from tests.generation.variants import PROMPTS, alone, codec, model
from tests.text.test_stops import Ending, naive

LENGTH = 40
RUNS = [
    ("plain", 0),
    ("chain", 0),
    ("chain", 1),
    ("dynamic tree", 1),
    ("static tree", 0),
    ("standalone", 0),
    ("standalone", 1),
]


@cache
def uncut(prompt: str) -> Completion:
    return model("plain").generate(prompt, max_new_tokens=LENGTH)


def inside_a_token(text: str, ids: tuple[int, ...]) -> str:
    """A stop that begins and ends within tokens of several characters, and spans a border."""
    for place in range(4, len(ids) - 1):
        first, second = codec().decode([ids[place]]), codec().decode([ids[place + 1]])
        stop = first[-1] + second[:1]
        if len(first) > 1 and len(second) > 1 and text.find(stop) > 3:
            return stop
    raise AssertionError("no such place")


def cases(prompt: str) -> list[RequestSettings]:
    """Stops of every kind and at every place of a round."""
    base = RequestSettings(max_new_tokens=LENGTH, logprobs=1, hidden_states="full")
    done = uncut(prompt)
    ids, text = done.token_ids, done.text
    places = [evolve(base, stop_sequences=(ids[end - 2 : end],)) for end in range(2, 14)]
    split = inside_a_token(text, ids)
    return [
        *places,
        evolve(base, stop=(codec().decode(ids[:1])[:1],)),
        evolve(base, stop=(split,)),
        evolve(base, stop=(split,), include_stop=True),
        evolve(base, stop=(text[20:27], text[9:12], "\x00")),
        evolve(base, stop=(text[12:30],), stop_sequences=(ids[3:5], (1, 2, 3))),
        evolve(base, stop_sequences=((ids[7],), ids[5:8]), include_stop=True),
        evolve(base, stop=(text[-3:] + "?", "\x00")),
        evolve(base, eos_token_ids=(ids[9],), stop=(text[-6:],)),
        evolve(base, eos_token_ids=(ids[9],), stop=(codec().decode(ids[:10])[-3:],), include_stop=True),
        evolve(base, eos_token_ids=(ids[9],), stop=(text[4:7],)),
        evolve(base, stop=(text[-8:],), hidden_states="last", max_draft_tokens=2),
        evolve(base, stop=(text[15:19],), hidden_states="last", logprobs=None),
    ]


def expected(prompt: str, settings: RequestSettings) -> tuple[Ending, str]:
    """The naive answer: end ids and the limit cut the plain ids, then every beginning of them is decoded."""
    ids = uncut(prompt).token_ids
    ends = [place for place, token in enumerate(ids) if token in (settings.eos_token_ids or (0,))]
    reason = "eos" if ends else "length"
    ending, _ = naive(settings.stops(), codec(), ids[: ends[0] + 1] if ends else ids)
    return ending, reason if ending.stop is None else "stop"


@pytest.mark.parametrize(("name", "in_flight"), RUNS)
def test_ids_text_and_all_beside_them_are_cut_at_the_same_token(name: str, in_flight: int) -> None:
    places: set[int] = set()
    # Either text by turns; both where every place of a round must have been an end.
    turn = RUNS.index((name, in_flight)) % 2
    for prompt in PROMPTS[:2] if name == "standalone" else (PROMPTS[turn],):
        wanted = cases(prompt)
        result = model(name, 4, in_flight).generate_batch([Prompt(prompt, settings) for settings in wanted])
        plain = uncut(prompt)
        whole = alone(plain.prompt_token_ids, plain.token_ids)
        for settings, done in zip(wanted, result.completions, strict=True):
            ending, reason = expected(prompt, settings)
            kept = ending.kept
            assert (done.token_ids, done.text) == (plain.token_ids[:kept], ending.text)
            assert (done.stop, done.finish_reason) == (ending.stop, reason)
            assert len(done.logprobs) == (0 if settings.logprobs is None else kept)
            for place, entry in enumerate(done.logprobs):
                assert entry.chosen == pytest.approx(float(whole.chosen[place]), abs=1e-4)
            rows = whole.num_prompt + kept - 1
            assert done.hidden_states is not None
            states = whole.hidden[:rows] if settings.hidden_states == "full" else whole.hidden[rows - 1 : rows]
            torch.testing.assert_close(done.hidden_states, states, atol=2e-3, rtol=1e-3)
            places.add(kept - 2 - sum(done.accept_lengths[:-1]))
    if name == "standalone":
        assert places == {-1, 0, 1, 2, 3, 4}, "some place of a round was never the end"


@pytest.mark.parametrize("name", ["chain", "static tree", "standalone"])
@pytest.mark.parametrize("include", [False, True])
def test_deltas_join_to_the_text_and_show_nothing_that_a_stop_takes_away(name: str, include: bool) -> None:
    plain = uncut(PROMPTS[0])
    for stop in (plain.text[10:24], inside_a_token(plain.text, plain.token_ids)):
        deltas = list(model(name).stream(PROMPTS[0], max_new_tokens=LENGTH, stop=stop, include_stop=include))
        last = deltas[-1].completion
        assert last is not None
        assert "".join(delta.text for delta in deltas) == last.text
        assert last.text == plain.text[: plain.text.find(stop) + len(stop) * include]
        assert tuple(token for delta in deltas for token in delta.token_ids) == last.token_ids


@pytest.mark.parametrize(("name", "in_flight"), [("plain", 0), ("chain", 1), ("dynamic tree", 0), ("standalone", 1)])
def test_a_stop_of_characters_of_several_bytes(name: str, in_flight: int) -> None:
    """A grammar has the target write them; their bytes are tokens of their own, so rounds end inside of characters."""
    whole = "né🦀ß" * 3
    stops: list[tuple[tuple[str, ...], str]] = [
        (("🦀",), "né"),
        (("é🦀",), "n"),
        (("ß", "🦀ß"), "né"),
        (("🦀ßn",), "né"),
        (("\ufffd",), whole),
    ]
    made = model(name, 4, in_flight)
    for stop, text in stops:
        settings = RequestSettings(max_new_tokens=60, regex="(né🦀ß){3}", stop=stop)
        prompts = [Prompt("x", settings), Prompt("x", evolve(settings, include_stop=True))]
        without, with_stop = made.generate_batch(prompts).completions
        assert (without.text, without.finish_reason) == (text, "eos" if text == whole else "stop")
        assert with_stop.token_ids == without.token_ids
        assert with_stop.text == text + (without.stop if isinstance(without.stop, str) else "")
        assert whole.startswith(with_stop.text)


def test_a_stop_leaves_its_row_to_the_next_request() -> None:
    """Many short requests over few rows: what the device computed past a stop is nobody's."""
    texts = [uncut(prompt) for prompt in PROMPTS]
    wanted = [
        Prompt(
            PROMPTS[number % 5],
            RequestSettings(max_new_tokens=LENGTH, stop=(texts[number % 5].text[number : number + 3],)),
        )
        for number in range(20)
    ]
    for in_flight in (0, 1):
        result = model("standalone", 2, in_flight).generate_batch(wanted)
        for prompt, done in zip(wanted, result.completions, strict=True):
            assert prompt.settings is not None
            ending, _ = expected(str(prompt.content), prompt.settings)
            assert (len(done.token_ids), done.text, done.stop) == (ending.kept, ending.text, ending.stop)
