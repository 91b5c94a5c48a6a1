"""Find out from the source whether a program continues after an exception. Pure.

An exception that is not caught in the outermost code has ended the program, whatever it wrote
afterwards. So has one whose handler exits.
"""

from __future__ import annotations

import ast
import builtins
import warnings
from collections.abc import Iterator

_FUNCTIONS = ast.FunctionDef | ast.AsyncFunctionDef
_LEAVES = {"exit", "_exit", "abort", "quit", "kill"}


def parsed(source: str) -> ast.Module | None:
    """Parse the source of a module for `is_handled` and the like; None: it can't be parsed."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # About escapes in the program's texts.
            return ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def is_handled(tree: ast.Module | None, line: int, exception: str) -> bool:
    """Return whether a handler around this line may catch the exception, and continue.

    `exception` is the name of its class. Only handlers outside of functions are considered. Source
    that can't be parsed has none.
    """
    return tree is not None and any(
        _may_catch(handler, exception) and not _ends_the_program(handler)
        for block in _tries(tree.body, line)
        for handler in block.handlers
    )


def is_within_with(tree: ast.Module | None, line: int) -> bool:
    """Return whether a `with` statement, outside of functions, is around this line.

    Its context manager may handle an exception.
    """
    return tree is not None and _has_with(tree.body, line)


def exits_after(tree: ast.Module | None, line: int, exception: str, code: int) -> bool:
    """Return whether the innermost handler around this line that may match may exit with `code`.

    `exception` is the name of the class that the handler has to catch. Only handlers in the same
    function as the line count. False if the source can't be parsed (`tree` None).
    """
    if tree is None:
        return False
    nodes = list(ast.walk(tree))
    starts = [node.lineno for node in nodes if isinstance(node, _FUNCTIONS) and _covers(node, line)]
    blocks = [
        node
        for node in nodes
        if isinstance(node, ast.Try | ast.TryStar)
        and node.body[0].lineno <= line <= (node.body[-1].end_lineno or line)
        and node.lineno > max(starts, default=0)
    ]
    for block in sorted(blocks, key=lambda node: -node.lineno):
        for handler in block.handlers:
            if _may_catch(handler, exception):
                return _exits_with(handler.body[-1], code)
    return False


def _covers(node: ast.stmt, line: int) -> bool:
    return node.lineno <= line <= (node.end_lineno or node.lineno)


def _exits_with(statement: ast.stmt, code: int) -> bool:
    """Return whether this last statement of a handler may end the program with `code`.

    An exit whose status is no literal number may have any code. A function that returns the code
    counts as a `main` whose result is the exit code.
    """
    match statement:
        case ast.Return(value=ast.Constant(value=int(number))):
            return number == code
        case ast.Expr(value=ast.Call(func=function, args=words)):
            if ast.unparse(function).rpartition(".")[2] not in _LEAVES:
                return False
        case ast.Raise(exc=ast.Call(func=ast.Name(id="SystemExit"), args=words)):
            pass
        case _:
            return False
    match words:
        case [ast.Constant(value=int(number))]:
            return number == code
        case _:
            return True


def _tries(body: list[ast.stmt], line: int) -> Iterator[ast.Try | ast.TryStar]:
    """Yield the `try` statements whose `try` part has the line, but none within functions."""
    for statement in body:
        if not _covers(statement, line):
            continue
        if isinstance(statement, _FUNCTIONS):
            continue
        if isinstance(statement, ast.Try | ast.TryStar):
            first, last = statement.body[0].lineno, statement.body[-1].end_lineno
            if first <= line <= (last or first):
                yield statement
        for name in ("body", "orelse", "finalbody"):
            yield from _tries(getattr(statement, name, None) or [], line)
        for handler in getattr(statement, "handlers", ()):
            yield from _tries(handler.body, line)
        for case in getattr(statement, "cases", ()):
            yield from _tries(case.body, line)


def _has_with(body: list[ast.stmt], line: int) -> bool:
    for statement in body:
        if not _covers(statement, line) or isinstance(statement, _FUNCTIONS):
            continue
        if isinstance(statement, ast.With | ast.AsyncWith):
            return True
        parts = (getattr(statement, name, None) or [] for name in ("body", "orelse", "finalbody"))
        inner = [*parts, *(handler.body for handler in getattr(statement, "handlers", ()))]
        inner += [case.body for case in getattr(statement, "cases", ())]
        return any(_has_with(part, line) for part in inner)
    return False


def _may_catch(handler: ast.ExceptHandler, exception: str) -> bool:
    if handler.type is None:
        return True
    kinds = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    return any(_may_be(ast.unparse(kind), exception) for kind in kinds)


def _may_be(kind: str, exception: str) -> bool:
    """Return whether `exception` may be a subclass of `kind`, judged by the names."""
    wanted, raised = _builtin(kind), _builtin(exception)
    if wanted is None:
        return raised is None or kind.rpartition(".")[2] == exception
    if raised is not None:
        return issubclass(raised, wanted)
    # Programs derive their own classes from these, but hardly from those that end a program.
    return not issubclass(wanted, KeyboardInterrupt | SystemExit | GeneratorExit)


def _builtin(name: str) -> type[BaseException] | None:
    found = getattr(builtins, name, None)
    return found if isinstance(found, type) and issubclass(found, BaseException) else None


def _ends_the_program(handler: ast.ExceptHandler) -> bool:
    """Return whether the last statement of the handler raises or exits."""
    match handler.body[-1]:
        case ast.Raise():
            return True
        case ast.Expr(value=ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name))):
            return name in _LEAVES
        case _:
            return False
