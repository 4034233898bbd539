"""The prompts that are measured, with the right continuation of each: those of ``tests/cases``."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TypeAlias, cast

from attrs import frozen

__all__ = [
    "CASES_DIRECTORY",
    "Case",
    "TokenIds",
    "TreeCase",
    "chain_lengths",
    "greedy_cases",
    "groups_of",
    "measured_cases",
    "tree_cases",
]

CASES_DIRECTORY = Path(__file__).resolve().parent.parent / "tests" / "cases"

TokenIds: TypeAlias = tuple[int, ...]


@frozen
class Case:
    """A prompt, and the target's own greedy continuation of it."""

    prompt: TokenIds
    continuation: TokenIds


@frozen
class TreeCase:
    """What rounds with one dynamic tree accept: ``accept_lengths[p]`` round by round for prompt p."""

    width: int
    depth: int
    num_tokens: int
    accept_lengths: tuple[TokenIds, ...]


def greedy_cases() -> tuple[Case, ...]:
    """The eight prompts with their continuations of 64 tokens."""
    lines = (CASES_DIRECTORY / "greedy.jsonl").read_text(encoding="utf-8").splitlines()
    records = [cast("dict[str, list[int]]", json.loads(line)) for line in lines if line.strip()]
    return tuple(Case(tuple(record["prompt_token_ids"]), tuple(record["token_ids"])) for record in records)


def groups_of(cases: Sequence[Case], batch: int) -> list[list[TokenIds]]:
    """The prompts of ``cases``, ``batch`` at a time."""
    return [[case.prompt for case in cases[start : start + batch]] for start in range(0, len(cases), batch)]


def measured_cases(batch: int, singles: int, *, quick: bool = False) -> tuple[Case, ...]:
    """What is measured on a card, ``batch`` prompts at once; ``singles`` of them where one at a time takes longest."""
    cases = greedy_cases()
    if quick:
        return cases[: 1 + batch // 4]
    return cases[:singles] if batch == 1 else cases


def chain_lengths(name: str) -> tuple[TokenIds, ...]:
    """What rounds of the chain in ``name`` (``eagle3-chain5``, ``eagle1-chain4``) accept, prompt by prompt."""
    record = cast("dict[str, list[list[int]]]", _json(f"{name}.json"))
    return _tuples(record["accept_lengths"])


def tree_cases() -> tuple[TreeCase, ...]:
    """The dynamic trees whose acceptance is known, for the first four prompts."""
    found: list[TreeCase] = []
    for record in cast("list[dict[str, object]]", _json("eagle3-tree.json")):
        width, depth, drafted = (cast("int", record[name]) for name in ("width", "depth", "drafted_tokens"))
        found.append(TreeCase(width, depth, drafted, _tuples(cast("list[list[int]]", record["accept_lengths"]))))
    return tuple(found)


def _json(name: str) -> object:
    return cast("object", json.loads((CASES_DIRECTORY / name).read_text(encoding="utf-8")))


def _tuples(rows: Sequence[Sequence[int]]) -> tuple[TokenIds, ...]:
    return tuple(tuple(row) for row in rows)
