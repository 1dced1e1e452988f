"""Which definitions of the package no public name and no command reaches, by following names through the imports."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

PUBLIC = ("cepam", "cepam.fl", "cepam.flower", "cepam.flare", "cepam.privacy", "cepam.secure", "cepam.torch",
          "cepam.verify", "cepam.cli", "cepam.__main__")  # fmt: skip
"""The rooms of docs/reference, the commands, and their process."""
REGISTERED = {"app", "register_model"}
"""Decorators that hand a definition to whoever calls it."""
TARGET = re.compile(r"cepam(\.\w+)*:\w+")
Definition = tuple[str, str]


@dataclass
class Module:
    """What a module defines and hands on, what its names stand for, and what else runs when it is imported."""

    name: str
    definitions: dict[str, ast.stmt] = field(default_factory=dict)
    imported: dict[str, Definition] = field(default_factory=dict)
    statements: list[ast.stmt] = field(default_factory=list)
    registered: set[str] = field(default_factory=set)
    public: set[str] = field(default_factory=set)


def read(package: Path) -> dict[str, Module]:
    """Every module of a package by its dotted name."""
    made = {}
    for path in sorted(package.rglob("*.py")):
        parts = path.relative_to(package.parent).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        made[name] = _module(name, ast.parse(path.read_text()))
    return made


def _module(name: str, tree: ast.Module) -> Module:
    made = Module(name)
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            made.imported |= {each.asname or each.name: (node.module, each.name) for each in node.names}
        elif isinstance(node, ast.Import):
            made.imported |= {each.asname: (each.name, "") for each in node.names if each.asname}
    for statement in tree.body:
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            made.definitions[statement.name] = statement
            if statement.name.startswith("__") or REGISTERED & {ast.unparse(each).partition("(")[0].partition(".")[0]
                                                                for each in statement.decorator_list}:  # fmt: skip
                made.registered.add(statement.name)
        elif isinstance(statement, ast.Assign | ast.AnnAssign):
            targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            names = {each.id for target in targets for each in ast.walk(target) if isinstance(each, ast.Name)}
            made.definitions |= dict.fromkeys(names, statement)
            if "__all__" in names and statement.value is not None:
                made.public = set(ast.literal_eval(statement.value))
        elif not isinstance(statement, ast.Import | ast.ImportFrom):
            made.statements.append(statement)
    return made


def _resolved(modules: dict[str, Module], place: Definition) -> Definition | None:
    """Where a name is defined, through modules that only pass it on; (module, "") for a module; None outside."""
    module, name = place
    if f"{module}.{name}" in modules:
        return f"{module}.{name}", ""
    if module not in modules:
        return None
    if not name or name in modules[module].definitions:
        return place
    onward = modules[module].imported.get(name)
    return None if onward is None or onward == place else _resolved(modules, onward)


def _uses(modules: dict[str, Module], module: Module, node: ast.AST) -> Iterator[Definition]:
    """What the names, dotted names and `module:name` texts below a node stand for."""
    bases = {id(each.value) for each in ast.walk(node) if isinstance(each, ast.Attribute)}
    for each in ast.walk(node):
        found: Definition | None = None
        if isinstance(each, ast.Name):
            own = each.id in module.definitions
            place = (module.name, each.id) if own else module.imported.get(each.id)
            found = None if place is None else _resolved(modules, place)
            if found is not None and not found[1] and id(each) not in bases:  # a module as a value: all that it has
                yield from ((found[0], name) for name in modules[found[0]].definitions)
        elif isinstance(each, ast.Attribute) and isinstance(each.value, ast.Name):
            place = module.imported.get(each.value.id)
            base = None if place is None else _resolved(modules, place)
            found = _resolved(modules, (base[0], each.attr)) if base is not None and not base[1] else None
        elif isinstance(each, ast.Constant) and isinstance(each.value, str) and TARGET.fullmatch(each.value):
            at, _, name = each.value.partition(":")
            found = _resolved(modules, (at, name))
        if found is not None:
            yield found


def unreached(package: Path) -> dict[str, list[ast.stmt]]:
    """By module the functions and classes that nothing public reaches."""
    modules = read(package)
    waiting = [(room, name) for room in PUBLIC for name in ("", *(modules[room].public or modules[room].definitions))]
    reached: set[Definition] = set()
    while waiting:
        place = _resolved(modules, waiting.pop())
        if place is None or place in reached:
            continue
        reached.add(place)
        module = modules[place[0]]
        if (place[0], "") not in reached:
            waiting.append((place[0], ""))
        nodes = [module.definitions[place[1]]] if place[1] else module.statements
        waiting += [use for node in nodes for use in _uses(modules, module, node)]
        waiting += [(module.name, name) for name in module.registered]
    found = {}
    for module in modules.values():
        left = [node for name, node in module.definitions.items()
                if (module.name, name) not in reached and not isinstance(node, ast.Assign | ast.AnnAssign)]  # fmt: skip
        if left:
            found[module.name] = left
    return found
