"""No public signature or attribute exposes ``Any``; that none is inferred is what ``scripts/check`` asks pyright."""

from __future__ import annotations

import pytest

from tests.probes import PRODUCT
from tests.public_types import exposed_any, exposed_any_below

EXPOSED = [
    "def run(x: Any) -> None: ...",
    "def run(x: int) -> Any: ...",
    "async def run(x: int) -> dict[str, Any]: ...",
    "def run(*args: typing.Any) -> None: ...",
    "def run(**kwargs: 'list[Any]') -> None: ...",
    "def run(*, key: Callable[..., Any]) -> None: ...",
    "from typing import Any as Whatever\ndef run(x: Whatever) -> None: ...",
    "class A:\n    config: dict[str, Any]",
    "class A:\n    def __init__(self, config: Any) -> None: ...",
    "class A:\n    def __init__(self) -> None:\n        self.config: Any = 1",
    "class A:\n    class B:\n        def run(self) -> Any: ...",
    "class A(dict[str, Any]): ...",
    "Json = dict[str, Any]",
    "Json: TypeAlias = 'dict[str, Any]'",
    "_Json = dict[str, Any]\ndef run(x: _Json) -> None: ...",
    "CONFIG: Any = 1",
]

HIDDEN = [
    "def _run(x: Any) -> Any: ...",
    "class _A:\n    x: Any",
    "class A:\n    _x: Any",
    "def run(x: object) -> None:\n    y: Any = x",
    "class A:\n    def __init__(self) -> None:\n        self._x: Any = 1",
    "def run(any: bool) -> Literal['Many']: ...",
]


def test_the_product_exposes_no_any() -> None:
    assert exposed_any_below(PRODUCT) == []


@pytest.mark.parametrize("source", EXPOSED)
def test_an_exposed_any_is_found(source: str) -> None:
    assert exposed_any(source)


@pytest.mark.parametrize("source", HIDDEN)
def test_a_private_any_is_nobodys_business(source: str) -> None:
    assert exposed_any(source) == []
