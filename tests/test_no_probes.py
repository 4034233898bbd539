"""The product asks no object what it is or has; each kind of probe, planted, is found."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.probes import PRODUCT, probes_below, probes_in, protocols_in

PROTOCOLS = frozenset({"Verifier", "AttnBackend"})

PROBES = [
    "getattr(model, 'language_model', model)",
    "hasattr(config, 'hot_vocab_size')",
    "setattr(model, 'head', head)",
    "delattr(model, 'head')",
    "vars(config)",
    "dir(model)",
    "list(map(getattr, models, names))",
    "probe = getattr",
    "builtins.getattr(model, 'head')",
    "from operator import attrgetter",
    "operator.attrgetter('head')(model)",
    "import inspect",
    "import inspect as look",
    "from inspect import signature",
    "config.__dict__['rope']",
    "model.__dict__.update(x)",
    "object.__getattribute__(model, 'head')",
    "object.__setattr__(model, 'head', head)",
    "class A:\n    def __getattr__(self, name): return 1",
    "try:\n    model.head\nexcept AttributeError:\n    pass",
    "try:\n    model.head\nexcept (KeyError, AttributeError) as e:\n    pass",
    "with suppress(KeyError, AttributeError):\n    model.head",
    "with contextlib.suppress(AttributeError):\n    model.head",
    "if type(model).__name__ == 'Llama': pass",
    "if model.__class__.__name__ in {'Llama', 'Qwen'}: pass",
    "if 'Llama' in type(model).__qualname__: pass",
    "ok = type(model).__name__.startswith('Llama')",
    "kind = type(model).__name__",
    "TABLE[type(model).__name__]",
    "TABLE.get(type(model).__name__)",
    "re.match('Llama.*', type(model).__name__)",
    "match type(model).__name__:\n    case 'Llama': pass",
    "if f(x) and not (type(model).__name__ != 'Llama'): pass",
    "isinstance(verifier, Verifier)",
    "isinstance(verifier, (int, interfaces.Verifier))",
    "isinstance(backend, str | AttnBackend)",
    "issubclass(kind, AttnBackend)",
    "match verifier:\n    case Verifier(): pass",
    "@runtime_checkable\nclass A(Protocol): ...",
    "@typing.runtime_checkable\nclass A(Protocol): ...",
]

NOT_PROBES = [
    "raise TypeError(f'expected an int, found a {type(x).__name__}')",
    "message = f'{type(error).__name__}: {error}'",
    "log.warning('%s failed', type(x).__name__)",
    "isinstance(x, int)",
    "if __name__ == '__main__': pass",
    "except_attribute_error = 1",
    "raise AttributeError('no such thing')",
    "self.head = head",
    "directory = vars_of",
    "class Verifier(Protocol): ...",
]


def test_the_product_holds_no_probe() -> None:
    assert [str(probe) for probe in probes_below(PRODUCT)] == []


@pytest.mark.parametrize("source", PROBES)
def test_a_planted_probe_is_found(source: str) -> None:
    assert probes_in(source, protocols=PROTOCOLS)


@pytest.mark.parametrize("source", NOT_PROBES)
def test_what_is_no_probe_passes(source: str) -> None:
    assert probes_in(source, protocols=PROTOCOLS) == []


def test_a_probe_is_found_in_a_tree_with_its_place_and_the_trees_own_protocols(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "seam.py").write_text("class Seam(Base, Protocol[T]): ...\n")
    (tmp_path / "deep" / "user.py").write_text("import x\n\nok = isinstance(x.y, Seam)\n")
    [probe] = probes_below([tmp_path])
    assert (probe.file, probe.line, probe.rule) == (
        str(tmp_path / "deep" / "user.py"),
        3,
        "isinstance tests for a Protocol",
    )


def test_every_seam_counts_as_a_protocol() -> None:
    """A scan that missed the Protocols would pass every isinstance."""
    sources = (file.read_text(encoding="utf-8") for top in PRODUCT for file in top.rglob("*.py"))
    found = {name for source in sources for name in protocols_in(source)}
    assert found >= {
        "Attend",
        "AttnBackend",
        "AttnPlan",
        "BoundDraft",
        "DraftLoader",
        "Drafter",
        "GraphBody",
        "GraphRunner",
        "KVCache",
        "LayerStackProvider",
        "LosslessVerifier",
        "LossyVerifier",
        "MediaBody",
        "MultimodalProvider",
        "PageAllocator",
        "SharedWeights",
        "StateRollback",
        "TargetLoader",
        "TextCodec",
        "UnboundDraft",
        "Verifier",
    }
