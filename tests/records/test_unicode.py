"""One word in several Unicode forms is one value, wherever it is written, asked for or compared."""

from __future__ import annotations

import unicodedata
from io import BytesIO
from typing import Any

import pytest
import sqlalchemy as sa

from app import db
from app.accounts.models import Group, User
from app.collections.models import Collection
from app.context import tenancy
from tests.builders import Caller, make_collection, make_drawer, make_record

pytestmark = pytest.mark.both_databases

WORDS = {
    "latin": "Zoë Müller",
    "vietnamese": "Việt",
    "cyrillic": "Йод ёлка",
    "japanese": "がぎぐ",
    "korean": "한국어",
    "chinese": "漢字",
    "arabic": "آأؤ",
    "emoji": "👩🏽‍🚀",
    "turkish": "İzmir ığüş",
    "marks in another order": "a\u0323\u0307",
}
WORD = pytest.mark.parametrize("word", WORDS.values(), ids=WORDS)


def forms(word: str) -> tuple[str, str]:
    """The word in NFC and NFD."""
    return unicodedata.normalize("NFC", word), unicodedata.normalize("NFD", word)


def found(caller: Caller, **query: str) -> list[str]:
    """The texts of the records of a list."""
    answer = caller.get("records/posts", query_string=query)
    assert answer.status_code == 200, answer.json
    return [one["title"] for one in answer.json["items"]]


@WORD
def test_unicode_text_is_stored_and_found_in_any_form(
    root: Caller, alice: Caller, word: str
) -> None:
    make_collection(root)
    nfc, nfd = forms(word)
    for sent in (nfc, nfd):
        made = make_record(alice, title=sent)
        assert made["title"] == nfc
        answer = alice.patch(f"records/posts/{made['id']}", {"title": sent})
        assert answer.json["title"] == nfc
    for asked in (nfc, nfd):
        assert found(alice, title=asked) == [nfc, nfc]
        for condition in ("= '{}'", "~ '%{}%'", "IN ['{}']", ">= '{}'", "~ concat('%', '{}')"):
            assert found(alice, filter=f"title {condition.format(asked)}") == [nfc, nfc]
        assert found(alice, filter=f"title != '{asked}'") == []


@WORD
def test_unicode_unique_value_is_one_in_any_form(root: Caller, alice: Caller, word: str) -> None:
    schema = [{"name": "title", "type": "text", "unique": True}]
    make_collection(root, schema=schema)
    nfc, nfd = forms(word)
    make_record(alice, title=nfd)
    assert alice.post("records/posts", {"title": nfc}).status_code == 409
    upsert = "records/posts/batch?mode=upsert&on=title"
    answer = alice.post(upsert, {"records": [{"title": nfc}]})
    assert answer.status_code == 200, answer.json
    assert found(alice) == [nfc]


@WORD
def test_unicode_import_stores_nfc(root: Caller, alice: Caller, word: str) -> None:
    make_collection(root)
    nfc, nfd = forms(word)
    file = f"title\n{nfd}\n{nfc}\n".encode()
    answer = alice.post("records/posts/import", data=file, content_type="text/csv")
    assert answer.status_code in (200, 201), answer.json
    assert found(alice) == [nfc, nfc]


@WORD
def test_unicode_rules_compare_in_any_form(root: Caller, alice: Caller, word: str) -> None:
    nfc, nfd = forms(word)
    rules = {
        "list_rule": f"title = '{nfd}'",  # decided by the database
        "create_rule": f"@request.data.title = '{nfd}'",  # and by Python
    }
    make_collection(root, **rules)
    for sent in (nfc, nfd):
        make_record(alice, title=sent)
    assert alice.post("records/posts", {"title": f"{nfc}x"}).status_code == 403
    assert found(alice) == [nfc, nfc]


@WORD
def test_unicode_choices_are_one_in_any_form(root: Caller, alice: Caller, word: str) -> None:
    nfc, nfd = forms(word)
    schema: list[dict[str, Any]] = [
        {"name": "title", "type": "select", "options": {"choices": [nfd]}},
        {"name": "many", "type": "multi_select", "options": {"choices": [nfd, "other"]}},
        {"name": "word", "type": "text", "options": {"choices": [nfd]}, "default": nfd},
    ]
    made = make_collection(root, schema=schema)
    assert made["schema"][0]["options"]["choices"] == [nfc]
    for sent in (nfc, nfd):
        record = make_record(alice, title=sent, many=[sent], word=sent)
        assert (record["title"], record["many"], record["word"]) == (nfc, [nfc], nfc)
        assert make_record(alice)["word"] == nfc
        assert found(alice, filter=f"@contains(many, '{sent}')")[0] == nfc
    assert alice.post("records/posts", {"many": [nfc, nfd]}).status_code == 400
    if nfc != nfd:
        schema[0]["options"]["choices"] = [nfc, nfd]
        answer = root.post("collections", {"name": "others", "schema": schema})
        assert answer.status_code == 400


def test_unicode_texts_sort_by_nfc(root: Caller, alice: Caller) -> None:
    make_collection(root)
    for word in WORDS.values():
        for form in forms(word):
            make_record(alice, title=form)
    expected = sorted(form for word in WORDS.values() for form in [forms(word)[0]] * 2)
    assert found(alice, sort="title", limit="50") == expected


def test_unicode_length_limits_count_after_composition(root: Caller, alice: Caller) -> None:
    options = {"min_length": 2, "max_length": 3}
    make_collection(root, schema=[{"name": "title", "type": "text", "options": options}])
    assert make_record(alice, title="e\u0301" * 3)["title"] == "é" * 3
    assert alice.post("records/posts", {"title": "e\u0301"}).status_code == 400


def test_unicode_email_and_url_are_stored_in_nfc(root: Caller, alice: Caller) -> None:
    schema = [{"name": "title", "type": "email"}, {"name": "site", "type": "url"}]
    make_collection(root, schema=schema)
    made = make_record(alice, title="zoe\u0308@acme.example", site="https://acme.example/e\u0301")
    assert (made["title"], made["site"]) == ("zoë@acme.example", "https://acme.example/é")
    assert found(alice, title="zoe\u0308@acme.example") == ["zoë@acme.example"]


def test_unicode_pattern_ignores_case_of_ascii_letters_only(root: Caller, alice: Caller) -> None:
    make_collection(root)
    for title in ("I", "i", "İ", "\u0131", "É", "é"):
        make_record(alice, title=title)
    cases = {
        "i": ["I", "i"],
        "I": ["I", "i"],
        "İ": ["İ"],
        "\u0131": ["\u0131"],
        "é": ["é"],
        "É": ["É"],
    }
    for asked, expected in cases.items():
        assert found(alice, filter=f"title ~ '{asked}'", sort="title") == expected


def test_unicode_json_value_is_stored_as_sent(root: Caller, alice: Caller) -> None:
    make_collection(root, schema=[{"name": "data", "type": "json"}])
    assert make_record(alice, data={"e\u0301": "e\u0301"})["data"] == {"e\u0301": "e\u0301"}


def test_unicode_text_with_many_marks_is_stored_unchanged(root: Caller, alice: Caller) -> None:
    """Composing these takes Python minutes, so that they stay as they are."""
    make_collection(root)
    text = "a" + "\u0301\u0316" * 100_000
    assert make_record(alice, title=text)["title"] == text


def test_unicode_computed_value_of_old_text_can_be_sent_back(root: Caller, alice: Caller) -> None:
    field = {"name": "copy", "type": "computed", "expression": "upper(title)"}
    schema = [{"name": "title", "type": "text"}, {**field, "return_type": "text"}]
    make_collection(root, schema=schema)
    made = make_record(alice, title="e\u0301")
    with alice.app.app_context(), db.transaction() as session:
        update = sa.text("UPDATE col_posts SET title = :old")
        session.execute(update, {"old": "e\u0301"})
    seen = alice.get(f"records/posts/{made['id']}").json
    assert seen["copy"] == "E\u0301"
    answer = alice.put(f"records/posts/{made['id']}", {"title": "x", "copy": seen["copy"]})
    assert answer.status_code == 200, answer.json


def test_unicode_group_name_is_found_in_any_form(root: Caller, alice: Caller) -> None:
    made = root.post("groups", {"name": "Zoe\u0308"}).json
    assert made["name"] == "Zoë"
    assert root.get("groups", query_string={"search": "oe\u0308"}).json["total"] == 1


def test_unicode_file_name_is_stored_in_nfc(root: Caller, alice: Caller) -> None:
    make_drawer(root)
    sent = {"file": (BytesIO(b"text"), "Zoe\u0308.txt")}
    answer = alice.post("files/upload", data=sent, content_type="multipart/form-data")
    assert answer.json["file"]["name"] == "Zoë.txt"


def test_unicode_names_of_older_release_are_still_found(root: Caller, alice: Caller) -> None:
    """A group and a choice that are stored in NFD."""
    group = alice.post("groups", {"name": "Zoë"}).json["id"]
    alice.post(f"groups/{group}/members", {"user_id": alice.id})
    options = {"choices": ["Zoë"]}
    schema = [{"name": "title", "type": "select", "options": options}]
    make_collection(root, schema=schema, create_rule="@has_group('Zoë')")
    with alice.app.app_context(), tenancy.across_accounts(), db.transaction() as session:
        session.execute(sa.update(Group).where(Group.id == group).values(name="Zoe\u0308"))
        row = session.scalars(sa.select(Collection)).one()
        row.schema = [{**row.schema[0], "options": {"choices": ["Zoe\u0308"]}}]
        row.version += 1
        session.execute(sa.update(User).values(version=User.version + 1))
    assert make_record(alice, title="Zoe\u0308")["title"] == "Zoë"
    answer = alice.patch(f"groups/{group}", {"name": "Other"})
    assert answer.status_code == 409, answer.json  # the rule names it
