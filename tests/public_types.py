"""Finds ``Any`` in public signatures and attributes, as they are written."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from pathlib import Path


def exposed_any(source: str, file: str = "<source>") -> list[str]:
    """``file:line: name`` of every public function, attribute or alias in ``source`` whose declared type holds Any.

    Public is what bears no leading underscore, in a class or at the top of a module, whatever module it is.
    """
    tree = ast.parse(source)
    spellings = _spellings_of_any(tree)
    return [f"{file}:{line}: {name}" for line, name, of in _public_types(tree) if _mentions(of, spellings)]


def exposed_any_below(directories: Iterable[Path]) -> list[str]:
    """The same for every Python file below ``directories``."""
    files = [file for top in directories for file in sorted(top.rglob("*.py"))]
    return [found for file in files for found in exposed_any(file.read_text(encoding="utf-8"), str(file))]


def _spellings_of_any(tree: ast.Module) -> frozenset[str]:
    """Local names of `typing.Any`, and of private aliases whose value mentions it."""
    found = {
        alias.asname or alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
        if alias.name == "Any"
    } | {"Any"}
    for node in tree.body:
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=value) if name.startswith("_"):
                if _mentions(value, frozenset(found)):
                    found.add(name)
            case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value) if name.startswith("_"):
                if _mentions(value, frozenset(found)):
                    found.add(name)
            case _:
                continue
    return frozenset(found)


def _public_types(scope: ast.Module | ast.ClassDef) -> Iterator[tuple[int, str, ast.expr]]:
    """Line, name and type expression of everything public that ``scope`` declares, and its public classes."""
    for node in scope.body:
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) if _is_public(name):
                for annotation in _signature(node):
                    yield node.lineno, name, annotation
                if name == "__init__":
                    yield from _instance_attributes(node)
            case ast.ClassDef(name=name) if _is_public(name):
                yield from ((node.lineno, name, base) for base in node.bases)
                yield from _public_types(node)
            case ast.AnnAssign(target=ast.Name(id=name), annotation=annotation) if _is_public(name):
                yield node.lineno, name, annotation
                if node.value is not None and _last(annotation) == "TypeAlias":
                    yield node.lineno, name, node.value
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Subscript() | ast.BinOp() | ast.Name() as value) if (
                _is_public(name)
            ):
                yield node.lineno, name, value
            case _:
                continue


def _instance_attributes(init: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[tuple[int, str, ast.expr]]:
    for node in ast.walk(init):
        match node:
            case ast.AnnAssign(target=ast.Attribute(attr=name), annotation=annotation) if _is_public(name):
                yield node.lineno, name, annotation
            case _:
                continue


def _signature(function: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[ast.expr]:
    arguments = function.args
    every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg]
    yield from (argument.annotation for argument in every if argument is not None and argument.annotation is not None)
    if function.returns is not None:
        yield function.returns


def _is_public(name: str) -> bool:
    return not name.startswith("_") or (name.startswith("__") and name.endswith("__"))


def _mentions(expression: ast.expr, spellings: frozenset[str]) -> bool:
    for node in ast.walk(expression):
        match node:
            case ast.Constant(value=str(text)):  # a quoted annotation
                try:
                    quoted = ast.parse(text, mode="eval").body
                except SyntaxError:
                    continue
                if _mentions(quoted, spellings):
                    return True
            case _:
                if _last(node) in spellings:
                    return True
    return False


def _last(node: ast.AST) -> str | None:
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
        case _:
            return None
