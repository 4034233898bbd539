"""Picking a loader: each is asked, and what the user is told when none or several answer."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TypeVar

import pytest

from outrider.errors import CheckpointError, ConfigurationError, NoLoaderError, PluginError
from outrider.interfaces import DraftLoader, TargetLoader
from outrider.registry import DRAFTS, TARGETS, Group, Registry, describe, load_draft, load_target
from tests.registry.fakes import CPU, BrokenTargets, FakeDrafts, FakeTargets, FaultyTargets, NoDraft, write_checkpoint

T = TypeVar("T")


def _maker(loader: T) -> Callable[[], T]:
    return lambda: loader


class OnlyRegistered(Registry):
    """A registry that ignores what is installed, so that a test knows every loader there is."""

    def __init__(self, targets: dict[str, TargetLoader], drafts: dict[str, DraftLoader]) -> None:
        super().__init__()
        self._installed = {TARGETS.name: {}, DRAFTS.name: {}}
        for name, target in targets.items():
            self.register(TARGETS, name, _maker(target))
        for name, draft in drafts.items():
            self.register(DRAFTS, name, _maker(draft))


def broken_import() -> TargetLoader:
    raise ImportError("no module named kernels")


def test_the_one_loader_that_recognises_a_checkpoint_loads_it(tmp_path: Path) -> None:
    registry = OnlyRegistered(
        {"a": FakeTargets("a", "not of a"), "b": FakeTargets("b"), "c": FakeTargets("c", "not of c")},
        {"d": FakeDrafts("d", "not of d"), "e": FakeDrafts("e", draft=(draft := NoDraft()))},
    )
    checkpoint = write_checkpoint(tmp_path / "model")
    assert load_target(checkpoint, CPU, registry=registry).stack.spec.name == "b"
    assert load_draft(checkpoint, CPU, registry=registry) is draft


@pytest.mark.parametrize("load", [load_target, load_draft])
def test_when_none_recognises_it_every_reason_is_given(tmp_path: Path, load: object) -> None:
    registry = OnlyRegistered(
        {"a": FakeTargets("a", "it has wings"), "b": FakeTargets("b", "it has fins")},
        {"c": FakeDrafts("c", "it has scales"), "d": FakeDrafts("d", "it has fur")},
    )
    checkpoint = write_checkpoint(tmp_path / "odd-model", "OddForCausalLM")
    is_target = load is load_target
    with pytest.raises(NoLoaderError) as caught:
        (load_target if is_target else load_draft)(checkpoint, CPU, registry=registry)
    said = str(caught.value)
    reasons = ["'a': it has wings", "'b': it has fins"] if is_target else ["'c': it has scales", "'d': it has fur"]
    group: Group[Callable[[], TargetLoader]] | Group[Callable[[], DraftLoader]] = TARGETS if is_target else DRAFTS
    for part in ("odd-model", "OddForCausalLM", *reasons, f"'{group.name}'", "register"):
        assert part in said


def test_with_no_loader_installed_that_is_the_reason(tmp_path: Path) -> None:
    checkpoint = write_checkpoint(tmp_path / "model")
    with pytest.raises(NoLoaderError, match="no target loader is installed"):
        load_target(checkpoint, CPU, registry=OnlyRegistered({}, {}))


def test_an_exchanged_target_and_draft_are_pointed_out(tmp_path: Path) -> None:
    checkpoint = write_checkpoint(tmp_path / "model")
    registry = OnlyRegistered({"llama": FakeTargets("llama")}, {"eagle": FakeDrafts("eagle", "it is an ordinary LM")})
    with pytest.raises(NoLoaderError, match=r"target loader 'llama' recognises it: were .* exchanged"):
        load_draft(checkpoint, CPU, registry=registry)
    registry = OnlyRegistered({"llama": FakeTargets("llama", "it has no layers")}, {"eagle": FakeDrafts("eagle")})
    with pytest.raises(NoLoaderError, match=r"draft loader 'eagle' recognises it: were .* exchanged"):
        load_target(checkpoint, CPU, registry=registry)


def test_several_that_recognise_it_are_named_and_one_can_be_picked(tmp_path: Path) -> None:
    checkpoint = write_checkpoint(tmp_path / "model")
    registry = OnlyRegistered({"a": FakeTargets("a"), "b": FakeTargets("b"), "c": FakeTargets("c", "no")}, {})
    with pytest.raises(ConfigurationError, match=r"2 target loaders recognise it: a, b; pick one with loader="):
        load_target(checkpoint, CPU, registry=registry)
    assert load_target(checkpoint, CPU, loader="b", registry=registry).stack.spec.name == "b"
    with pytest.raises(NoLoaderError, match="'c' that was asked for does not recognise it: no"):
        load_target(checkpoint, CPU, loader="c", registry=registry)
    with pytest.raises(ConfigurationError, match="unknown target loader 'd'; known are: 'a', 'b', 'c'"):
        load_target(checkpoint, CPU, loader="d", registry=registry)


def test_a_broken_loader_keeps_no_other_from_loading_and_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    checkpoint = write_checkpoint(tmp_path / "model")
    registry = OnlyRegistered({"buggy": BrokenTargets("buggy"), "good": FakeTargets("good")}, {})
    registry.register(TARGETS, "absent", broken_import)
    with caplog.at_level(logging.WARNING):
        assert load_target(checkpoint, CPU, registry=registry).stack.spec.name == "good"
    assert "'absent' (registered in code) cannot be created: ImportError: no module named kernels" in caplog.text
    assert "'buggy' failed while it looked (KeyError: 'hidden_size')" in caplog.text
    with pytest.raises(PluginError, match="no module named kernels"):
        load_target(checkpoint, CPU, loader="absent", registry=registry)


def test_when_none_fits_a_broken_loader_is_among_the_reasons(tmp_path: Path) -> None:
    checkpoint = write_checkpoint(tmp_path / "model")
    registry = OnlyRegistered({"buggy": BrokenTargets("buggy"), "other": FakeTargets("other", "not mine")}, {})
    registry.register(TARGETS, "absent", broken_import)
    with pytest.raises(NoLoaderError) as caught:
        load_target(checkpoint, CPU, registry=registry)
    assert "no module named kernels" in str(caught.value)
    assert "KeyError: 'hidden_size'" in str(caught.value)
    assert "'other': not mine" in str(caught.value)


def test_a_faulty_checkpoint_is_told_from_one_that_nobody_recognises(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """No package would mend it, so none is advised; a loader that can read it all the same does."""
    checkpoint = write_checkpoint(tmp_path / "model")
    targets: dict[str, TargetLoader] = {"other": FakeTargets("other", "not mine"), "reader": FaultyTargets("reader")}
    registry = OnlyRegistered(targets, {"draft": FakeDrafts("draft", "not mine either")})
    for read in (partial(load_target, checkpoint, CPU), partial(describe, checkpoint)):
        with pytest.raises(CheckpointError) as caught:
            read(registry=registry)
        assert not isinstance(caught.value, NoLoaderError)
        assert str(caught.value) == "model.safetensors: not complete; copy it again"
    assert caplog.text == ""
    good = OnlyRegistered({**targets, "good": FakeTargets("good")}, {})
    assert load_target(checkpoint, CPU, registry=good).stack.spec.name == "good"


def test_a_description_comes_from_whoever_recognises_it(tmp_path: Path) -> None:
    checkpoint = write_checkpoint(tmp_path / "model")
    both = OnlyRegistered({"a": FakeTargets("a")}, {"b": FakeDrafts("b"), "c": FakeDrafts("c", "no")})
    found = describe(checkpoint, registry=both)
    assert (found.kind, found.notes) == ("target of a", ("a note", "recognised by the draft loader 'b' as well"))
    draft = OnlyRegistered({"a": FakeTargets("a", "no")}, {"b": FakeDrafts("b")})
    assert describe(checkpoint, registry=draft).kind == "draft of b"
    neither = OnlyRegistered({"a": FakeTargets("a", "too tall")}, {"b": FakeDrafts("b", "too short")})
    with pytest.raises(NoLoaderError, match=r"(?s)'a': too tall.*'b': too short"):
        describe(checkpoint, registry=neither)
