"""Weights that the tests of the command share."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from outrider.interfaces import ModelPair
from tests.cli.support import Command, Parts


@pytest.fixture(scope="session")
def parts(tiny_pair: ModelPair) -> Parts:
    return Parts.of(tiny_pair)


@pytest.fixture
def outrider(parts: Parts, monkeypatch: pytest.MonkeyPatch) -> Command:
    return Command(parts, monkeypatch, CliRunner())
