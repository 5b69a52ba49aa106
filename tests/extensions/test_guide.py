"""docs/extensions.md shows code that loads, and docs/extend.md is that of the docstrings.

tests/system/test_extension_guide.py runs what the page begins with.
"""

from __future__ import annotations

import re
from typing import Any

from app import extend
from app.extend import fields
from app.extensions import loading, registry
from app.extensions.registry import Kind
from tests.extensions import reference
from tests.project import PROJECT

BLOCK = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)
DECLARES = re.compile(r"^(@|class |\w+ = setting)", re.MULTILINE)


def test_reference_is_current() -> None:
    assert reference.PAGE.read_text() == "\n".join(reference.sections())


def test_code_of_the_page_is_loaded() -> None:
    blocks = BLOCK.findall((PROJECT / "docs" / "extensions.md").read_text())
    assert len(blocks) > 8
    known = {name: getattr(extend, name) for name in extend.__all__}

    def shop() -> None:
        namespace = {**known, "Any": Any, "fields": fields, "__name__": __name__}
        for block in blocks:
            code = compile(
                block.replace("\nPRICE_URL.value\n", "\n"),
                "docs/extensions.md",
                "exec",
                dont_inherit=True,
            )
            if DECLARES.search(block):
                exec(code, namespace)  # noqa: S102 - of our own page

    with loading.loaded(shop):
        missing = [kind for kind in Kind if not registry.of(kind)]
    # They are in the files of the guide, or alike.
    assert missing == [
        Kind.BEFORE_UPDATE,
        Kind.BEFORE_DELETE,
        Kind.AFTER_UPDATE,
        Kind.AFTER_DELETE,
        Kind.FIELD_TYPE,
    ]
