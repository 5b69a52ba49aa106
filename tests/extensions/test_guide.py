"""docs/extend.md is that of the docstrings."""

from __future__ import annotations

from tests.extensions import reference


def test_reference_is_current() -> None:
    assert reference.PAGE.read_text() == "\n".join(reference.sections())
