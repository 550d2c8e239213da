"""Places in a source tree that read the text of an exception: its parts are attributes, so no text has to be read."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

PARTS = {"call", "argument", "wanted", "got", "instead"}
# Parameters that hold exceptions, by name or by annotation.
NAMES = {"error", "exception", "exc", "failure", "refusal", "caught", "problem"}


# A file without any of these has no name that holds an exception.
_HANDLES = re.compile(rf"except .+ as |: [\w. |]*(Error|Exception)\b|\b({'|'.join(NAMES)})\b[:,)]")


def holders(nodes: list[ast.AST]) -> set[str]:
    """The names of the file that hold exceptions: those of handlers, and of parameters."""
    names = {node.name for node in nodes if isinstance(node, ast.ExceptHandler) and node.name}
    for node in nodes:
        if isinstance(node, ast.arg):
            annotation = "" if node.annotation is None else ast.unparse(node.annotation)
            if node.arg in NAMES or "Error" in annotation or "Exception" in annotation:
                names.add(node.arg)
    return names


def is_text(node: ast.AST, exceptions: set[str]) -> bool:
    """Whether an expression is the text of an exception, one of its arguments, or one of its parts."""
    match node:
        case ast.Call(func=ast.Name(id="str" | "repr"), args=[ast.Name(id=name)]):
            return name in exceptions
        case ast.JoinedStr(values=[ast.FormattedValue(value=ast.Name(id=name))]):
            return name in exceptions
        case ast.Attribute(value=ast.Name(id=name), attr=part):
            return name in exceptions and (part in PARTS or part in {"args", "msg", "message"})
        case ast.BoolOp(values=values):
            return any(is_text(value, exceptions) for value in values)
        case ast.Subscript(value=value):
            return is_text(value, exceptions)
        case _:
            return False


def readers(source: str) -> Iterator[ast.AST]:
    """The expressions that take a piece of such a text, look for one, or store the text to do so later."""
    if not _HANDLES.search(source):
        return
    nodes = list(ast.walk(ast.parse(source)))
    exceptions = holders(nodes)
    for node in nodes:
        match node:
            case ast.Attribute(value=value) | ast.Subscript(value=value) if is_text(value, exceptions):
                yield node
            case ast.Compare(ops=ops, comparators=comparators):
                contained = zip(ops, comparators, strict=True)
                if any(isinstance(op, ast.In | ast.NotIn) and is_text(x, exceptions) for op, x in contained):
                    yield node
            case ast.Call(func=ast.Attribute(value=ast.Name(id="re")), args=arguments):
                if any(is_text(x, exceptions) for x in arguments):
                    yield node
            case ast.Assign(value=value) | ast.AnnAssign(value=value) | ast.NamedExpr(value=value):
                if value is not None and is_text(value, exceptions):
                    yield node
            case _:
                pass


def readers_in(package: Path) -> dict[str, list[str]]:
    """The reading expressions of each file, as source text."""
    found = {
        str(path.relative_to(package)): [ast.unparse(node) for node in readers(path.read_text())]
        for path in sorted(package.rglob("*.py"))
    }
    return {name: expressions for name, expressions in found.items() if expressions}


def plain_raises(package: Path, kinds: set[str]) -> dict[str, list[str]]:
    """The exceptions of these classes that are made of text, in each file, as source text."""
    plain: dict[str, list[str]] = {}
    for path in sorted(package.rglob("*.py")):
        source = path.read_text()
        for node in ast.walk(ast.parse(source)) if any(kind in source for kind in kinds) else ():
            match node:
                case ast.Call(func=ast.Name(id=name), args=[ast.JoinedStr() | ast.Constant(), *_]) if (
                    name in kinds
                ):
                    plain.setdefault(str(path.relative_to(package)), []).append(ast.unparse(node))
                case _:
                    pass
    return plain
