"""A whole engine on the Triton backend, in the interpreter: prefill, draft steps, verification and commit."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from outrider import ChainBuilder, EngineOptions, SpeculativeModel, TreeBuilder
from outrider.interfaces import BoundDraft, DrafterBuilder
from outrider_backends.eager import EagerRunner
from outrider_backends.triton import create
from tests.backends.triton.scenes import needs_interpreter
from tests.cases_data import greedy_cases
from tests.support.pair import trained_pair

pytestmark = needs_interpreter

NEW_TOKENS = 4
BUILDERS: dict[str, Callable[[BoundDraft], DrafterBuilder]] = {
    "chain": lambda draft: ChainBuilder(draft, 2),
    "tree": lambda draft: TreeBuilder(draft, width=2, depth=2, num_tokens=4),
}


@pytest.mark.parametrize("name", BUILDERS)
def test_text_is_the_targets_own(name: str) -> None:
    cases = sorted(greedy_cases(), key=lambda case: len(case.prompt))[:1]
    model = SpeculativeModel(
        trained_pair().target,
        BUILDERS[name](trained_pair().eagle3),
        attention=create(),
        runner=EagerRunner,
        options=EngineOptions(max_batch_size=1, max_length=128),
    )
    result = model.generate_batch([case.prompt for case in cases], max_new_tokens=NEW_TOKENS)
    assert [each.token_ids for each in result.completions] == [case.token_ids[:NEW_TOKENS] for case in cases]
