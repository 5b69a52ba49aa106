"""What histories and the audit log mark."""

from __future__ import annotations

import pytest
from markupsafe import Markup

from app.console.shell.checks import differences


@pytest.mark.parametrize(
    ("old", "new", "marked"),
    [
        ("A cat sat on a mat", "A dog sat on a mat", ("cat", "dog")),
        ("Fine as it is", "Fine as it is!", ("", "!")),
        ("2026-11-20 12:00", "2026-11-20 12:30", ("0", "3")),
        ("one", "two", None),
        (None, "new", None),
        ("", "new", None),
        (Markup("<i>the same</i> a"), Markup("<i>the same</i> b"), None),
    ],
)
def test_text_differences_mark_changed_part(
    old: str | None, new: str | None, marked: tuple[str, str] | None
) -> None:
    found = differences(old, new)
    assert (found and tuple(part.marked for part in found)) == marked
    for text, part in zip((old, new), found or (), strict=False):
        assert f"{part.before}{part.marked}{part.after}" == text
