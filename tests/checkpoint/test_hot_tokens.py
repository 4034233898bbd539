"""Hot-token lists: what is read, what is refused, and that order survives and repeats do not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from outrider.checkpoint import HotTokens, check_hot_tokens, load_hot_tokens
from outrider.errors import CheckpointError, Problems

VOCAB = 40


def check(*listed: int) -> HotTokens:
    with Problems("list", CheckpointError) as problems:
        return check_hot_tokens(listed, VOCAB, problems)


@given(st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=60))
def test_they_keep_their_order_and_lose_their_repeats(listed: list[int]) -> None:
    hot = check(*listed)
    assert sorted(hot.ids) == sorted(set(listed))
    first_places = [listed.index(token) for token in hot.ids]
    assert first_places == sorted(first_places)
    assert len(hot.ids) + hot.num_repeats == len(listed)


def test_they_are_a_value() -> None:
    assert check(7, 7, 2) == HotTokens((7, 2), 1)


@pytest.mark.parametrize("listed", [(), (3, VOCAB), (-1, 3)])
def test_ids_that_the_vocabulary_lacks_are_refused(listed: tuple[int, ...]) -> None:
    with pytest.raises(CheckpointError, match=r"empty|1 hot tokens are outside the target's 0 to 39"):
        check(*listed)


def test_a_json_list_is_read_as_it_stands(tmp_path: Path) -> None:
    file = tmp_path / "hot.json"
    file.write_text(json.dumps([5, 3, 5]))
    assert load_hot_tokens(file) == (5, 3, 5)


@pytest.mark.parametrize("stored", [[5, 3, 5], torch.tensor([5, 3, 5])], ids=["list", "tensor"])
def test_a_pickled_list_is_read_by_opt_in_only(stored: object, tmp_path: Path) -> None:
    file = tmp_path / "list.pt"
    torch.save(stored, file)
    with pytest.raises(CheckpointError, match=r"list\.pt: a pickled token file can run code"):
        load_hot_tokens(file)
    assert load_hot_tokens(file, allow_pickle=True) == (5, 3, 5)


WRONG = {
    '{"a": 1}': "holds a dict, expected a list",
    "[1, 2.5]": "entry 1 is 2.5",
    "[true]": "entry 0 is True",
    "[3, -1]": "entry 1 is -1; a target token id is a whole number from 0",
    "[null]": "entry 0 is None",
    "[]": "the list is empty",
    "[": "cannot be read as a token list",
    '"text"': "holds a str",
}


@pytest.mark.parametrize(("content", "message"), WRONG.items())
def test_any_other_content_is_refused_and_the_file_is_named(content: str, message: str, tmp_path: Path) -> None:
    file = tmp_path / "bad.json"
    file.write_text(content)
    with pytest.raises(CheckpointError) as caught:
        load_hot_tokens(file)
    assert str(file) in str(caught.value)
    assert message in str(caught.value)


def test_a_missing_file_and_a_tensor_of_fractions_are_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"absent\.json: cannot be read"):
        load_hot_tokens(tmp_path / "absent.json")
    torch.save(torch.tensor([0.5]), tmp_path / "half.pt")
    with pytest.raises(CheckpointError, match="whole number"):
        load_hot_tokens(tmp_path / "half.pt", allow_pickle=True)
