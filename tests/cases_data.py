"""The cases with right answers in ``tests/cases``, typed."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import TypedDict, cast

from attrs import frozen

__all__ = ["GreedyCase", "TreeCase", "chain_lengths", "greedy_cases", "tree_cases"]

CASES = Path(__file__).resolve().parent / "cases"


@frozen
class GreedyCase:
    """A prompt and the target's own greedy continuation."""

    prompt: tuple[int, ...]
    token_ids: tuple[int, ...]


@frozen
class TreeCase:
    """A dynamic tree, and the tokens per target pass it gives for the first prompts."""

    width: int
    depth: int
    num_tokens: int
    accept_lengths: tuple[tuple[int, ...], ...]


class _GreedyLine(TypedDict):
    prompt_token_ids: list[int]
    token_ids: list[int]


class _Lengths(TypedDict):
    accept_lengths: list[list[int]]


class _Tree(_Lengths):
    width: int
    depth: int
    drafted_tokens: int


@cache
def greedy_cases() -> tuple[GreedyCase, ...]:
    """All prompts with their continuations: 64 tokens, or up to id 0."""
    text = (CASES / "greedy.jsonl").read_text(encoding="utf-8")
    lines = [cast("_GreedyLine", json.loads(line)) for line in text.splitlines()]
    return tuple(GreedyCase(tuple(line["prompt_token_ids"]), tuple(line["token_ids"])) for line in lines)


def chain_lengths(name: str) -> tuple[tuple[int, ...], ...]:
    """Tokens per target pass of each prompt, from the chain case ``name``."""
    return _rows(cast("_Lengths", _read(name)))


def tree_cases() -> tuple[TreeCase, ...]:
    """All dynamic trees."""
    cases = cast("list[_Tree]", _read("eagle3-tree"))
    return tuple(TreeCase(case["width"], case["depth"], case["drafted_tokens"], _rows(case)) for case in cases)


def _read(name: str) -> object:
    return json.loads((CASES / f"{name}.json").read_text(encoding="utf-8"))


def _rows(lengths: _Lengths) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(row) for row in lengths["accept_lengths"])
