"""Tap ids from every place, their convention, the defaults, and what overrides them."""

from __future__ import annotations

from pathlib import Path

import pytest
from attrs import evolve

from outrider.checkpoint import Checkpoint
from outrider.errors import BindError, CheckpointError
from outrider.interfaces import LoadOptions
from outrider.types import DraftOverrides, DraftSpec, HiddenTap, TapConvention
from outrider_adapters.eagle import Eagle3Loader, EagleLoader
from outrider_adapters.eagle.taps import default_taps
from tests.adapters.eagle.checkpoints import HIDDEN, Sample, authors_eagle3, eagle1, specforge_eagle3
from tests.adapters.eagle.targets import CPU, make_target

IDS = [1, 3, 6]
PLACES: dict[str, dict[str, object]] = {
    "eagle_aux_hidden_state_layer_ids": {"eagle_aux_hidden_state_layer_ids": IDS},
    "eagle_config.eagle_aux_hidden_state_layer_ids": {"eagle_config": {"eagle_aux_hidden_state_layer_ids": IDS}},
    "dflash_config.target_layer_ids": {"dflash_config": {"target_layer_ids": IDS}},
    "eagle_config.target_layer_ids": {"eagle_config": {"target_layer_ids": IDS}},
    "target_layer_ids": {"target_layer_ids": IDS},
}


def bound_spec(
    sample: Sample, directory: Path, overrides: DraftOverrides | None = None, num_layers: int = 8
) -> DraftSpec:
    options = LoadOptions(CPU, overrides=overrides or DraftOverrides())
    loaded = Eagle3Loader().load(Checkpoint(sample.write(directory)), options)
    return loaded.bind(make_target(num_layers=num_layers)).spec


def boundaries(spec: DraftSpec) -> list[int | None]:
    return [tap.boundary for tap in spec.taps]


@pytest.mark.parametrize("place", PLACES)
def test_ids_are_read_wherever_they_stand(place: str, tmp_path: Path) -> None:
    spec = bound_spec(authors_eagle3().configured(**PLACES[place]), tmp_path)
    assert boundaries(spec) == IDS
    assert any("boundary" in note and "does not say" in note for note in spec.notes)


@pytest.mark.parametrize("other", [place for place in PLACES if place != "target_layer_ids"])
def test_places_that_disagree_are_refused_by_name(other: str, tmp_path: Path) -> None:
    sample = authors_eagle3().configured(target_layer_ids=[0, 1, 2], **PLACES[other])
    with pytest.raises(CheckpointError, match="contradicts itself") as caught:
        bound_spec(sample, tmp_path)
    message = str(caught.value)
    assert other in message
    assert "'target_layer_ids' is [0, 1, 2]" in message
    assert "[1, 3, 6]" in message


def test_places_that_agree_are_fine(tmp_path: Path) -> None:
    everywhere = {key: value for place in PLACES.values() for key, value in place.items()}
    assert boundaries(bound_spec(authors_eagle3().configured(**everywhere), tmp_path)) == IDS


def test_silent_config_takes_the_defaults_of_the_targets_depth(tmp_path: Path) -> None:
    sample = authors_eagle3()
    unbound = Eagle3Loader().load(Checkpoint(sample.write(tmp_path)), LoadOptions(CPU)).spec
    assert unbound.taps == ()
    assert any("N//2" in note for note in unbound.notes)
    assert boundaries(bound_spec(sample, tmp_path, num_layers=32)) == [2, 16, 29]


def test_defaults_never_stand_in_for_ids_that_are_there(tmp_path: Path) -> None:
    assert boundaries(bound_spec(specforge_eagle3(IDS), tmp_path, num_layers=32)) == IDS


@pytest.mark.parametrize("num_layers", range(1, 40))
def test_defaults_are_three_different_boundaries_or_none(num_layers: int) -> None:
    wanted = {2, num_layers // 2, num_layers - 3}
    taps = default_taps(num_layers)
    if num_layers <= 6:
        assert taps is None
    else:
        assert taps is not None
        assert {tap.boundary for tap in taps} == wanted
        assert len(wanted) == 3


def test_a_target_too_shallow_for_the_defaults_is_refused_with_the_remedy(tmp_path: Path) -> None:
    with pytest.raises(BindError, match=r"collide in a target of 6 layers; name the taps"):
        bound_spec(authors_eagle3(), tmp_path, num_layers=6)
    explicit = DraftOverrides(taps=(HiddenTap(1), HiddenTap(2), HiddenTap(3)))
    assert boundaries(bound_spec(authors_eagle3(), tmp_path, explicit, num_layers=6)) == [1, 2, 3]


def test_convention_is_explicit_by_override_or_by_config(tmp_path: Path) -> None:
    override = DraftOverrides(tap_convention=TapConvention.LAYER_OUTPUT)
    spec = bound_spec(specforge_eagle3(IDS), tmp_path / "override", override)
    assert boundaries(spec) == [2, 4, 7]
    assert any("given explicitly" in note for note in spec.notes)
    declared = bound_spec(specforge_eagle3(IDS).configured(tap_convention="layer_output"), tmp_path / "declared")
    assert boundaries(declared) == [2, 4, 7]
    # What the config says itself is no choice that must be told.
    assert not any("convention" in note for note in declared.notes)
    silent = bound_spec(specforge_eagle3(IDS), tmp_path / "silent")
    assert any("convention boundary" in note for note in silent.notes)


def test_explicit_taps_replace_ids_and_say_so(tmp_path: Path) -> None:
    taps = (HiddenTap(0), HiddenTap.final_norm(), HiddenTap(8))
    spec = bound_spec(specforge_eagle3(IDS), tmp_path, DraftOverrides(taps=taps))
    assert spec.taps == taps
    assert any("instead of layer ids [1, 3, 6]" in note for note in spec.notes)


REFUSED = {
    "unknown convention": (specforge_eagle3().configured(tap_convention="layers"), None, r"'layers'.*boundary, layer_"),
    "negative ids": (specforge_eagle3([-1, 3, 6]), None, "must not be negative"),
    "number of ids": (
        specforge_eagle3([2, 4]),
        None,
        r"takes 96 columns, but 2 taps .* x target hidden size 32 are 64",
    ),
    "declared number": (
        specforge_eagle3().configured(num_aux_hidden_states=4),
        None,
        "'num_aux_hidden_states' is 4, but there are 3 taps",
    ),
    "convention without ids": (
        authors_eagle3(),
        DraftOverrides(tap_convention=TapConvention.BOUNDARY),
        "names no layer ids; leave it out",
    ),
    "convention beside taps": (
        authors_eagle3(),
        DraftOverrides(taps=(HiddenTap(1),) * 3, tap_convention=TapConvention.BOUNDARY),
        "are absolute; leave it out",
    ),
    "no taps": (authors_eagle3(), DraftOverrides(taps=()), "names no taps"),
    "ids without use": (
        authors_eagle3().configured(
            eagle_config={"use_aux_hidden_state": False, "eagle_aux_hidden_state_layer_ids": IDS}
        ),
        None,
        r"'use_aux_hidden_state' is false, yet layer ids \[1, 3, 6\]",
    ),
    "wrong type": (specforge_eagle3().configured(target_layer_ids="2,4,5"), None, "expected a list of whole numbers"),
}


@pytest.mark.parametrize(("sample", "overrides", "message"), REFUSED.values(), ids=REFUSED.keys())
def test_impossible_taps_are_refused(
    sample: Sample, overrides: DraftOverrides | None, message: str, tmp_path: Path
) -> None:
    with pytest.raises(CheckpointError, match=message):
        bound_spec(sample, tmp_path, overrides)


def test_taps_outside_the_target_are_refused_with_both_sides(tmp_path: Path) -> None:
    with pytest.raises(BindError, match=r"fed boundary 9, but a target of 8 layers has boundaries 0 to 8"):
        bound_spec(specforge_eagle3([2, 4, 9]), tmp_path)
    assert boundaries(bound_spec(specforge_eagle3([0, 4, 8]), tmp_path / "edges")) == [0, 4, 8]


def test_eagle1_is_fed_the_final_hidden_state_unless_told_otherwise(tmp_path: Path) -> None:
    checkpoint = Checkpoint(eagle1().write(tmp_path))
    options = LoadOptions(CPU)
    assert EagleLoader().load(checkpoint, options).bind(make_target()).spec.taps == (HiddenTap.final_norm(),)
    before = evolve(options, overrides=DraftOverrides(taps=(HiddenTap(8),)))
    spec = EagleLoader().load(checkpoint, before).bind(make_target()).spec
    assert (spec.taps, spec.feature_width) == ((HiddenTap(8),), HIDDEN)
    for overrides in (
        DraftOverrides(taps=(HiddenTap(1), HiddenTap(2))),
        DraftOverrides(tap_convention=TapConvention.BOUNDARY),
    ):
        with pytest.raises(CheckpointError, match=r"EAGLE-1 (is fed one feature|names no layer ids)"):
            EagleLoader().load(checkpoint, evolve(options, overrides=overrides))
