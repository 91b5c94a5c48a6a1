"""Find out whether a program continues after an exception at a line of its outermost code. Pure.

An exception that is not caught there has ended the program, whatever it wrote afterwards.
"""

from __future__ import annotations

import ast
import builtins
import warnings
from collections.abc import Iterator

_LEAVES = {"exit", "_exit", "abort", "quit", "kill"}


def is_handled(source: str, line: int, exception: str) -> bool:
    """Return whether a handler around this line, outside of functions, may catch an exception of
    that class and continue. Source that can't be parsed has no handlers."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Of somebody else's escapes in texts.
            tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return any(
        _may_catch(handler, exception) and not _ends_the_program(handler)
        for block in _tries(tree.body, line)
        for handler in block.handlers
    )


def _tries(body: list[ast.stmt], line: int) -> Iterator[ast.Try | ast.TryStar]:
    """Yield the `try` statements that guard the line, without those in functions."""
    for statement in body:
        if not statement.lineno <= line <= (statement.end_lineno or statement.lineno):
            continue
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
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
