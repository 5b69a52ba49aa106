"""A backslash in a pattern can be said, in filters and in the console's search."""

from __future__ import annotations

from app.console.records.references import escape_like
from app.console.records.references import matches as console_search
from tests.builders import Caller, make_collection, make_record

VALUES = ["C:\\temp\\x", "C:x", "C:%x", "C:\\%x", "C:\\"]
# By the number of backslashes in the text of the filter: two in quotes are one of the pattern.
STARTS = {0: VALUES, 1: [], 2: [], 3: VALUES[:1] + VALUES[3:], 4: VALUES[:1] + VALUES[3:], 5: []}


def test_pattern_backslash_escapes_itself(root: Caller, alice: Caller) -> None:
    make_collection(root, "files", [{"name": "s", "type": "text"}])
    for value in VALUES:
        make_record(alice, "files", s=value)

    def found(text: str) -> set[str]:
        answer = alice.get("records/files", query_string={"filter": text})
        assert answer.status_code == 200, answer.json
        return {record["s"] for record in answer.json["items"]}

    for count, expected in STARTS.items():
        assert found(f's ~ "C:{chr(92) * count}%"') == {*expected}, count
    assert found('s ~ "C:\\%x"') == {"C:%x"}
    assert found('s ~ "C:\\\\\\\\\\%x"') == {"C:\\%x"}
    for text, expected in [("\\", {*VALUES} - {"C:x", "C:%x"}), ("%", {"C:%x", "C:\\%x"})]:
        assert found(console_search(f"%{escape_like(text)}%", ["s"])) == expected
    assert found(console_search(f"%{escape_like(':' + chr(92))}", ["s"])) == {"C:\\"}
