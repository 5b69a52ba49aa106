"""Times within sentences: a script shows others as "33 minutes ago", which fits no preposition."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

TEMPLATES = Path(__file__).parents[2] / "templates"
WORDED = re.compile(r"\b(?:on|since|until|from|before) %\((\w+)\)s")


@pytest.mark.parametrize("path", sorted(TEMPLATES.rglob("*.html")), ids=lambda path: path.stem)
def test_template_times_behind_prepositions_are_exact(path: Path) -> None:
    for text in re.findall(r"\{\{.*?\}\}", path.read_text()):
        for name in WORDED.findall(text):
            for shown in re.findall(rf"\b{name}=ui\.time\(([^)]*)\)", text):
                assert "exact=" in shown or "clock=" in shown, text
