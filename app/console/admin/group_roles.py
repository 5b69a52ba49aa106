"""The roles by group of a form: rows of a group and a role, the first match applies."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

from app.console.shell import forms
from app.console.shell.forms import Form
from app.errors import InvalidValues, problem
from app.types import JSONMapping, JSONObject
from app.web.languages import gettext

FIELD = "sso_group_roles"
MAX_ROWS = 201  # one more than the API takes, which then says so
DO = re.compile(r"(more|up)(?:\.([0-9]{1,3}))?")


def values(mappings: Sequence[JSONMapping]) -> dict[str, str]:
    """The form's values for a stored mapping, with an empty row at the end."""
    found = _rows([(str(one["group"]), str(one["role"])) for one in mappings])
    return {**found, **_rows([("", "")], len(mappings))}


def add_submitted(form: Form) -> Form:
    number = forms.row_count(forms.text("rows"), MAX_ROWS)
    pairs = [(forms.text(f"group_{n}"), forms.text(f"role_{n}")) for n in range(number)]
    form.values |= _rows(pairs) or {"rows": "0"}
    return form


def rearranged(form: Form, do: str) -> bool:
    """Whether a button was pressed that adds or moves a row; the form is changed."""
    match = DO.fullmatch(do)
    if match is None:
        return False
    pairs = _pairs(form)
    if match[1] == "more":
        pairs.append(("", ""))
    elif match[2]:
        forms.move_row(pairs, int(match[2]), "up")
    form.values |= _rows(pairs[:MAX_ROWS])
    return True


def body(form: Form) -> list[JSONObject]:
    """The mapping that the form submits; empty rows are left out. Raises InvalidValues."""
    filled = [(n, pair) for n, pair in enumerate(_pairs(form)) if any(pair)]
    problems = [
        problem(f"{name}_{n}", "required", gettext("Required."))
        for n, pair in filled
        for name, text in zip(("group", "role"), pair, strict=True)
        if not text
    ]
    if problems:
        raise InvalidValues(problems)
    return [{"group": group, "role": role} for _, (group, role) in filled]


def count(form: Form) -> int:
    """The number of rows."""
    return int(form["rows"] or 0)


def names(form: Form) -> set[str]:
    return {group for group, _ in _pairs(form) if group}


def rows_without(form: Form, groups: Collection[str]) -> set[int]:
    """The numbers of the rows that name none of these groups."""
    return {n for n, (group, _) in enumerate(_pairs(form)) if group and group not in groups}


def _pairs(form: Form) -> list[tuple[str, str]]:
    return [(form[f"group_{n}"], form[f"role_{n}"]) for n in range(count(form))]


def _rows(pairs: Sequence[tuple[str, str]], start: int = 0) -> dict[str, str]:
    found = dict[str, str]()
    for n, (group, role) in enumerate(pairs, start):
        found |= {f"group_{n}": group, f"role_{n}": role, "rows": str(n + 1)}
    return found
