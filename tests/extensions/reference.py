"""`python -m tests.extensions.reference` writes docs/extend.md, from docstrings."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from itertools import pairwise
from textwrap import dedent
from typing import Any

from app import extend
from app.extend import fields, http, tables, testing
from app.extensions.tables import Rows
from app.web.access import ViewAccess
from tests.project import PROJECT

PAGE = PROJECT / "docs" / "extend.md"
TEXT = """# The names of `app.extend`

What extensions may import, made from its docstrings by `python -m tests.extensions.reference`.
[extensions.md](extensions.md) says how to use them, and what
[holds between versions](extensions.md#versions).
"""
KIT = (testing.Instance, testing.Account, testing.Client)
ERRORS = {
    "Conflict": "A conflict with stored data: 409.",
    "Forbidden": "A caller without the right: 403.",
    "InvalidValues": "Values that break validation rules: 400, with `details`.",
    "NotFound": "An object that does not exist, or that the caller may not know of: 404.",
}


def sections() -> Iterator[str]:
    """The page, piece by piece."""
    yield TEXT
    named = {name: getattr(extend, name) for name in extend.__all__}
    levels = [name for name, one in named.items() if isinstance(one, ViewAccess)]
    functions = {name: one for name, one in named.items() if inspect.isfunction(one)}
    classes = {name: one for name, one in named.items() if inspect.isclass(one)}
    yield "## Decorators and functions\n"
    for name, function in functions.items():
        yield from _function(name, function)
    yield "## Access levels\n"
    yield f"For `access=` of endpoints and pages: {', '.join(f'`{one}`' for one in levels)}.\n"
    yield "## Classes\n"
    for name, one in classes.items():
        yield from _class(name, one)
    yield "## Fields of schemas\n"
    yield f"{inspect.getdoc(fields)}\n"
    kinds = {name: getattr(fields, name) for name in fields.__all__}
    own = {name: kind for name, kind in kinds.items() if kind.__module__.startswith("app.")}
    others = ", ".join(f"`fields.{name}`" for name in kinds if name not in own)
    yield f"{others} are those of [marshmallow](https://marshmallow.readthedocs.io).\n"
    for name, kind in own.items():
        yield from _function(f"fields.{name}", kind)
    yield "## app.extend.http\n"
    for name in ("request", "get", "post"):
        yield from _function(name, getattr(http, name))
    for one in (http.HttpResponse, http.HttpError):
        yield from _class(one.__name__, one)
    yield "## app.extend.tables\n"
    yield f"For a model: {', '.join(f'`{one}`' for one in tables.__all__)}.\n"
    for one in (tables.Table, Rows):
        yield from _class(one.__name__, one)
    yield "## app.extend.testing\n"
    for one in KIT:
        yield from _class(one.__name__, one)


def _function(name: str, function: Any, level: str = "###") -> Iterator[str]:
    signature = inspect.signature(function)
    parameters = [one for one in signature.parameters.values() if one.name != "self"]
    # Without types: those of `app` mean nothing to readers, and the text names the others.
    shown = signature.replace(
        parameters=[one.replace(annotation=inspect.Parameter.empty) for one in parameters],
        return_annotation=inspect.Signature.empty,
    )
    yield f"{level} {name}\n"
    text = re.sub(r"ViewAccess\(.*?'([a-z ]+)'.*?\)(?=[,)])", r"\1", str(shown))
    text = re.sub(r"\*, load_default=.*metadata=None", "**options", text)  # of marshmallow
    yield f"`{name}{text.replace('signed in', 'signed_in')}`\n"
    yield f"{inspect.getdoc(function)}\n"


def _class(name: str, kind: Any) -> Iterator[str]:
    yield f"### {name}\n"
    yield f"{ERRORS.get(name) or inspect.getdoc(kind)}\n"
    if name in (*ERRORS, "Schema"):
        return
    yield from _attributes(kind)
    for key, one in vars(kind).items():
        if isinstance(one, property) and not key.startswith("_"):
            yield f"#### {key}\n"
            yield f"{inspect.getdoc(one)}\n"
        elif callable(one) and not key.startswith("_"):
            yield from _function(key, inspect.unwrap(one), "####")


def _attributes(kind: Any) -> Iterator[str]:
    """Those with a text below them, in the class or its `__init__`."""
    (tree,) = ast.parse(dedent(inspect.getsource(kind))).body
    assert isinstance(tree, ast.ClassDef)
    functions = [one for one in tree.body if isinstance(one, ast.FunctionDef)]
    for body in (tree.body, *(one.body for one in functions if one.name == "__init__")):
        for one, below in pairwise([*body, ast.Pass()]):
            target = one.target if isinstance(one, ast.AnnAssign) else None
            target = one.targets[0] if isinstance(one, ast.Assign) else target
            name = ast.unparse(target).removeprefix("self.") if target else "_"
            is_text = isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant)
            if is_text and name.isidentifier() and not name.startswith("_"):
                yield f"#### {name}\n"
                yield f"{inspect.cleandoc(str(below.value.value))}\n"  # type: ignore[attr-defined]


def main() -> None:
    """Write the page."""
    PAGE.write_text("\n".join(sections()))


if __name__ == "__main__":
    main()
