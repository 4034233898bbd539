"""Which tokens of which prompts each pass takes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from outrider.loop.prompts import PrefillPrompt, spans_of


@given(st.lists(st.integers(1, 9), min_size=1, max_size=6), st.data())
def test_spans_run_every_prompt_once_in_order(lengths: list[int], data: st.DataObject) -> None:
    prompts = [PrefillPrompt((1,) * length) for length in lengths]
    num_done = 0
    found: list[int] = []
    while prompts:
        budget = data.draw(st.integers(1, 12))
        spans = spans_of(prompts, num_done, budget)
        assert sum(span.size for span in spans) == min(budget, sum(len(each.token_ids) for each in prompts) - num_done)
        assert all(span.completes for span in spans[:-1])
        assert [span.index for span in spans] == list(range(len(spans)))
        assert [span.start for span in spans] == [num_done, *[0] * (len(spans) - 1)]
        ended = [span.total for span in spans if span.completes]
        found += ended
        num_done = 0 if spans[-1].completes else spans[-1].end
        prompts = prompts[len(ended) :]
    assert found == lengths
