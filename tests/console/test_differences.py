"""What the history of a record marks."""

from __future__ import annotations

import pytest

from app.console.records.differences import compared


@pytest.mark.parametrize(
    ("old", "new", "shown"),
    [
        ("A cat sat", "A dog sat", ("A <mark>cat</mark> sat", "A <mark>dog</mark> sat")),
        ("Fine", "Fine!", ("Fine", "Fine<mark>!</mark>")),
        ("<b>", "<i>", ("&lt;<mark>b</mark>&gt;", "&lt;<mark>i</mark>&gt;")),
        ("one", "two", ("one", "two")),
        (None, "new", ("", "new")),
        (10, 12, ("1<mark>0</mark>", "1<mark>2</mark>")),
    ],
)
def test_what_differs_is_marked(old: object, new: object, shown: tuple[str, str]) -> None:
    assert tuple(map(str, compared({"old_value": old, "new_value": new}).values())) == shown
