"""Finds probes in source code: places that ask an object what it is or has, instead of relying on its declared type.

``python -m tests.probes DIR...`` prints every probe below the directories and exits with 1 when there is one.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from attrs import frozen

ROOT = Path(__file__).resolve().parent.parent
PRODUCT = tuple(ROOT / name for name in ("sdk", "backends", "adapters"))

# Anywhere by name, also when handed on: `map(getattr, ...)`.
_NAMES = frozenset({"getattr", "hasattr", "setattr", "delattr", "runtime_checkable", "attrgetter", "methodcaller"})
# Common words as well, so only as calls.
_CALLS = frozenset({"vars", "dir"})
_ATTRIBUTES = frozenset({"__dict__", "__getattr__", "__getattribute__", "__setattr__", "__delattr__"})
_CLASS_NAMES = frozenset({"__name__", "__qualname__"})


@frozen
class Probe:
    """One probe: ``rule`` says what it is."""

    file: str
    line: int
    rule: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.rule}"


def protocols_in(source: str) -> frozenset[str]:
    """Names of the classes in ``source`` that name ``Protocol`` among their bases."""
    return frozenset(
        node.name
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.ClassDef) and any("Protocol" in _names_in(base) for base in node.bases)
    )


def probes_in(source: str, file: str = "<source>", protocols: frozenset[str] = frozenset()) -> list[Probe]:
    """Every probe in ``source``; ``protocols`` are the class names that must not be tested for, without a module."""
    tree = ast.parse(source)
    parents = {child: parent for parent in ast.walk(tree) for child in ast.iter_child_nodes(parent)}
    found = [
        Probe(file, _line_of(node), rule) for node in ast.walk(tree) for rule in _rules_broken(node, parents, protocols)
    ]
    return sorted(set(found), key=lambda probe: (probe.line, probe.rule))


def probes_below(directories: Iterable[Path]) -> list[Probe]:
    """Every probe in the Python files below ``directories``; Protocols of all of them count."""
    sources = {file: file.read_text(encoding="utf-8") for top in directories for file in sorted(top.rglob("*.py"))}
    protocols = frozenset(name for source in sources.values() for name in protocols_in(source))
    return [probe for file, source in sources.items() for probe in probes_in(source, _relative(file), protocols)]


def _rules_broken(node: ast.AST, parents: dict[ast.AST, ast.AST], protocols: frozenset[str]) -> Iterator[str]:
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name) if name in _NAMES:
            yield f"{name} asks an object what it has"
        case ast.alias(name=name) if name in _NAMES:
            yield f"{name} asks an object what it has"
        case ast.Import(names=names) if any(alias.name.split(".")[0] == "inspect" for alias in names):
            yield "inspect looks into objects"
        case ast.ImportFrom(module=module) if module is not None and module.split(".")[0] == "inspect":
            yield "inspect looks into objects"
        case ast.FunctionDef(name=name) if name in _ATTRIBUTES:
            yield f"{name} answers for attributes that are not declared"
        case ast.Attribute(attr=name) if name in _ATTRIBUTES:
            yield f"{name} reaches past the declared type"
        case ast.Attribute(attr=name) if name in _CLASS_NAMES and _decides(node, parents):
            yield f"{name} decides by the name of a class"
        case ast.ExceptHandler(type=caught) if caught is not None and "AttributeError" in _names_in(caught):
            yield "except AttributeError tries whether an attribute is there"
        case ast.Call(func=function, args=arguments):
            yield from _calls_broken(function, arguments, protocols)
        case ast.MatchClass(cls=tested) if _names_in(tested) & protocols:
            yield "match tests for a Protocol"
        case _:
            return


def _calls_broken(function: ast.expr, arguments: list[ast.expr], protocols: frozenset[str]) -> Iterator[str]:
    name = _last_name(function)
    if name in _CALLS and isinstance(function, ast.Name):
        yield f"{name} lists what an object has"
    if name == "suppress" and any("AttributeError" in _names_in(argument) for argument in arguments):
        yield "suppress(AttributeError) tries whether an attribute is there"
    if name in {"isinstance", "issubclass"} and len(arguments) == 2 and _names_in(arguments[1]) & protocols:
        yield f"{name} tests for a Protocol"


def _decides(node: ast.AST, parents: dict[ast.AST, ast.AST]) -> bool:
    """Whether a class name is used for anything but being shown: compared, looked up, taken apart or kept."""
    parent = parents[node]
    while True:
        match parent:
            case ast.Compare() | ast.Match() | ast.Subscript() | ast.Assign() | ast.AnnAssign() | ast.NamedExpr():
                return True
            case ast.Attribute():  # a method of the name itself, as in `.startswith("Llama")`
                return True
            case ast.Call(func=ast.Attribute(attr="get" | "match" | "search" | "fullmatch")):  # {...}.get(name)
                return True
            case ast.FormattedValue() | ast.Call() | ast.stmt():
                return False
            case _:
                parent = parents[parent]


def _names_in(expression: ast.expr) -> frozenset[str]:
    """Every last name in an expression: of ``(a.B, C | D)``, B, C and D."""
    return frozenset(name for node in ast.walk(expression) if (name := _last_name(node)) is not None)


def _last_name(node: ast.AST) -> str | None:
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
        case _:
            return None


def _line_of(node: ast.AST) -> int:
    match node:
        case ast.stmt() | ast.expr() | ast.ExceptHandler() | ast.pattern() | ast.alias():
            return node.lineno
        case _:
            return 0


def _relative(file: Path) -> str:
    return str(file.relative_to(ROOT)) if file.is_relative_to(ROOT) else str(file)


def main(directories: list[str]) -> int:
    """Print the probes below ``directories`` (the product's, where none is given); 1 when there is one, else 0."""
    found = probes_below([Path(directory) for directory in directories] or PRODUCT)
    for probe in found:
        print(probe)
    print(f"{len(found)} probes")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
