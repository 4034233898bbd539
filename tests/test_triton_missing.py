"""What Triton lacks on a machine is named, with what to do."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from outrider import _triton


@pytest.fixture(autouse=True)
def nothing_remembered() -> Iterator[None]:
    _triton.missing.cache_clear()
    yield
    _triton.missing.cache_clear()


@pytest.mark.parametrize(
    ("patched", "said"),
    [
        ("importlib.util.find_spec", "pip install triton"),
        ("shutil.which", "install gcc"),
        ("sysconfig.get_config_var", "python3-dev"),
    ],
)
def test_what_is_missing_is_named(patched: str, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def find_nothing(name: str) -> None:
        return None

    def found(name: str) -> object:
        return object()

    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setattr("importlib.util.find_spec", found)
    monkeypatch.setattr(patched, find_nothing)
    problem = _triton.missing()
    assert problem is not None
    assert said in problem
