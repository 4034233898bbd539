from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from outrider._torch import int_rows
from outrider.text import num_mask_words, pack_mask, unpack_mask


@given(
    vocab_size=st.integers(1, 130),
    ids=st.sets(st.integers(0, 129)),
)
def test_bits_are_where_the_contract_says(vocab_size: int, ids: set[int]) -> None:
    ids = {token_id for token_id in ids if token_id < vocab_size}
    allowed = torch.zeros(2, vocab_size, dtype=torch.bool)
    allowed[1, sorted(ids)] = True
    words = pack_mask(allowed)
    assert words.dtype == torch.int32
    assert not words[0].any()
    row = int_rows(words)[1]
    assert len(row) == num_mask_words(vocab_size)
    as_bits = {
        32 * place + bit for place, word in enumerate(row) for bit in range(32) if (word & 0xFFFFFFFF) >> bit & 1
    }
    assert as_bits == ids
    assert torch.equal(unpack_mask(words, vocab_size), allowed)


def test_a_word_of_ones_allows_everything() -> None:
    assert unpack_mask(torch.full((3, 2), -1, dtype=torch.int32), 50).all()
    assert pack_mask(torch.ones(1, 64, dtype=torch.bool)).eq(torch.tensor([[-1, -1]])).all()
