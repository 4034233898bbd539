"""The pair that comes with the package."""

from __future__ import annotations

from importlib.metadata import entry_points

from outrider.checkpoint import Checkpoint
from outrider.interfaces import ModelPair
from outrider_adapters.pairs import tiny


def test_the_pair_is_where_the_package_is_and_the_first_draft_is_eagle3(tiny_pair: ModelPair) -> None:
    pair = tiny()
    assert pair == tiny_pair
    assert [Checkpoint(directory).architectures for directory in (pair.target, *pair.drafts)] == [
        ("LlamaForCausalLM",),
        ("LlamaForCausalLMEagle3",),
        ("LlamaForCausalLMEagle",),
    ]


def test_the_entry_point_gives_the_pair() -> None:
    (entry,) = [point for point in entry_points(group="outrider.pairs") if point.name == "tiny"]
    assert entry.load() is tiny
