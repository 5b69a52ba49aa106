"""Lists that are searched by words."""

# ruff: noqa: RUF001 - words of other scripts

from __future__ import annotations

import os
from random import Random
from typing import Any
from unicodedata import normalize

import pytest
from flask import Flask

from app.collections import definitions
from app.context import tenancy
from app.db import db, words
from app.records.read import search
from tests.builders import Caller, make_collection, make_record
from tests.mailbox import run_jobs

SEARCHED = {"search": True}
PROBES = int(os.environ.get("TEST_PROBES", "200"))
TITLE = {"name": "title", "type": "text", "options": SEARCHED}
BODY = {"name": "body", "type": "text", "options": SEARCHED}


@pytest.fixture
def notes(root: Caller) -> None:
    make_collection(root, "notes", [TITLE, BODY, {"name": "status", "type": "text"}])


def add(caller: Caller, *titles: str, **more: Any) -> None:
    for title in titles:
        make_record(caller, "notes", title=title, **more)


def listed(caller: Caller, text: str, **query: Any) -> Any:
    return caller.get("records/notes", query_string={"search": text, **query})


def titles(caller: Caller, text: str, **query: Any) -> list[str]:
    answer = listed(caller, text, **query)
    assert answer.status_code == 200, answer.json
    assert answer.json["total"] == len(answer.json["items"])
    return [item["title"] for item in answer.json["items"]]


CASES = [
    ("word", ["a word here", "words"], ["another"]),
    ("wor* here", ["a word here"], ["words"]),
    ('"word"', ["a word here"], ["words"]),
    ('"a word"', ["a word here"], ["word a"]),
    ("word -here", ["word", "word there"], ["a word here", "words"]),
    ('word -"is here"', ["word here is"], ["word is here"]),
    ("STRASSE", ["Straße", "strasse"], ["strabe"]),
    ("straße", ["STRASSE"], []),
    ("cafe\u0301", ["Café", "CAFE", "cafe\u0301"], ["cave"]),
    ("istanbul", ["İstanbul", "ISTANBUL", "ıstanbul"], ["instabil"]),
    ("ёлка", ["ЕЛКА", "Ёлка"], ["палка"]),
    ("москва", ["МОСКВА", "москвавед"], ["омск"]),
    ("東京", ["東京タワー", "新東京国際"], ["京東"]),
    ("京", ["東京タワー"], ["大阪"]),
    ("東京 タワー", ["東京のタワー"], ["東京"]),
    ("ﾀﾜｰ", ["東京タワー"], ["タワ"]),
    ("😀", ["hi 😀", "😀😀"], ["hi", "😃"]),
    ("👍🏽", ["👍", "ok👍🏿"], ["👎"]),
    ("foo-bar", ["Foo, bar", "foo bar baz"], ["bar foo", "foo x bar"]),
    ("ann@acme", ["mail ann@acme.example"], ["ann or acme"]),
    ("العربية", ["العَرَبِيَّة"], ["عربي"]),
    ('"unbalanced quo', ["an unbalanced quo vadis"], ["unbalanced quota"]),
]


@pytest.mark.parametrize(("text", "found", "others"), CASES)
def test_search_finds(
    notes: None, alice: Caller, bob: Caller, text: str, found: list[str], others: list[str]
) -> None:
    add(alice, *found, *others)
    assert sorted(titles(alice, text)) == sorted(normalize("NFC", one) for one in found)


def test_rank_comes_from_the_record_alone(notes: None, alice: Caller) -> None:
    add(alice, "old", body="harbour")
    add(alice, "harbour once", "harbour, harbour and harbour", "nothing", "harbours")
    add(alice, "in the body", body="The harbour at night, the harbour by day")
    expected = ["harbour, harbour and harbour", "harbour once", "in the body", "harbours", "old"]
    assert titles(alice, "harbour") == expected
    assert titles(alice, "harbour", sort="title") == sorted(expected)
    only = [one for one in expected if "harbour" in one]
    assert titles(alice, "harbour", sort="title", filter="body = null") == sorted(only)


def test_long_texts_rank_among_short_ones(notes: None, alice: Caller) -> None:
    for number in (1, 3, 2, 4):
        add(alice, f"of {number}", body="harbour " * number + "calm " * (number % 2 * 500))
    for text in ("harbour", '"harbour"'):
        assert titles(alice, text) == ["of 4", "of 3", "of 2", "of 1"]


@pytest.mark.parametrize("most", [10_000, 4])
def test_pages_and_cursors_go_through_all(
    notes: None, alice: Caller, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    monkeypatch.setattr(search, "MAX_RANKED", most)
    for number in range(9):
        add(alice, f"{'sea ' * (number % 3 + 1)}{number}")
    newest = [f"{'sea ' * (number % 3 + 1)}{number}" for number in range(9)][::-1]
    few = most > 9
    expected = sorted(newest, key=lambda one: -one.count("sea")) if few else newest
    total = 9 if few else None
    for start in range(0, 9, 2):
        page = listed(alice, "sea", skip=start, limit=2).json
        assert [one["title"] for one in page["items"]] == expected[start : start + 2]
        assert page["total"] == total
    found, query = list[str](), {"cursor": ""}
    while query:
        page = listed(alice, "sea", limit=2, **query).json
        found += [one["title"] for one in page["items"]]
        query = {"cursor": page["next_cursor"]} if page["has_more"] else {}
    assert found == expected
    back, query = list[str](), {"cursor_before": ""}
    while query:
        page = listed(alice, "sea", limit=2, **query).json
        back = [one["title"] for one in page["items"]] + back
        query = {"cursor_before": page["prev_cursor"]} if page["prev_cursor"] else {}
    assert back == expected
    cursor = listed(alice, "sea", limit=2, cursor="").json["next_cursor"]
    assert listed(alice, "se*", cursor=cursor).status_code == 400


def test_words_follow_the_record(notes: None, alice: Caller) -> None:
    made = make_record(alice, "notes", title="first", body="alpha beta")
    path = f"records/notes/{made['id']}"
    assert titles(alice, "alpha first") == ["first"]
    alice.patch(path, {"title": "second"})
    assert (titles(alice, "first"), titles(alice, "second alpha")) == ([], ["second"])
    alice.put(path, {"body": "gamma"})
    assert (titles(alice, "second"), listed(alice, "gamma").json["total"]) == ([], 1)
    both = [made["id"], make_record(alice, "notes", title="other", body="delta")["id"]]
    changes = [{"id": both[0], "data": {"title": "x1"}}, {"id": both[1], "data": {"body": "x2"}}]
    assert alice.patch("records/notes/batch", {"records": changes}).status_code == 200
    assert sorted(titles(alice, "x*")) == ["other", "x1"]
    assert titles(alice, "gamma x1") == ["x1"]
    assert (titles(alice, "delta"), titles(alice, "other")) == ([], ["other"])
    alice.delete(path)
    assert titles(alice, "x1") == []


def test_accounts_search_their_own(notes: None, alice: Caller, charlie: Caller) -> None:
    add(alice, "secret plan")
    add(charlie, "plan")
    assert titles(alice, "plan") == ["secret plan"]
    assert (titles(charlie, "plan"), titles(charlie, "secret")) == (["plan"], [])


def test_fields_that_a_caller_does_not_see_are_not_searched(
    root: Caller, alice: Caller, bob: Caller
) -> None:
    hidden = {**BODY, "readable_if": "@has_role(admin)"}
    masked = {**BODY, "name": "phone", "pii": True, "mask_type": "full"}
    make_collection(root, "notes", [TITLE, hidden, masked])
    add(alice, "open", body="hush", phone="555")
    add(alice, "555 hush")
    assert titles(bob, "hush") == ["555 hush"]
    assert titles(bob, "-hush open") == ["open"]
    assert titles(bob, "555") == ["555 hush"]  # alice is in `pii_access`
    assert sorted(titles(alice, "555")) == ["555 hush", "open"]
    assert sorted(titles(alice, "hush")) == ["555 hush", "open"]


BAD = ["", " "]
NOTHING = ["*", "-", '"', '""', "- - *", "-word", "\x00", ".", '-"a b"']
TOO_LONG = ["x" * 1001, "a " * 51, "東" * 60]


def test_bad_searches(notes: None, root: Caller, alice: Caller) -> None:
    add(alice, "one", "two")
    for text in BAD:
        assert listed(alice, text).json["total"] == 2
    for text in NOTHING:
        answer = listed(alice, text)
        assert answer.status_code in (400, 422), text
        assert '"search"' in answer.text
    for text in TOO_LONG:
        answer = listed(alice, text)
        assert (answer.status_code, answer.json["details"][0]["code"]) == (400, "too_long")
    for text in ("'", "it's", "a'':*&|!()", "<b>", "one%", "{x} : y", "^one", "NEAR(a b)", "AND"):
        assert listed(alice, text).status_code in (200, 400)
    assert listed(alice, "one", highlight="maybe").status_code == 422
    assert alice.get("records/notes?highlight=1").status_code == 400
    blank = alice.get("records/notes?highlight=1&search=%20")
    assert (blank.status_code, blank.json["items"]) == (
        200,
        alice.get("records/notes").json["items"],
    )
    make_collection(root, "plain", [{"name": "title", "type": "text"}])
    answer = alice.get("records/plain?search=one")
    assert answer.json["details"][0]["message"] == search.NOT_SEARCHABLE


def test_aggregates_and_exports_are_searched(notes: None, alice: Caller) -> None:
    add(alice, "red boat", "red car", "blue boat")
    answer = alice.get("records/notes/aggregate?functions=count()&search=boat").json
    assert answer["results"] == [{"count": 2}]
    text = alice.get("records/notes/export?format=csv&fields=title&search=red").text
    assert [line.split(",")[1] for line in text.splitlines()] == ["title", "red car", "red boat"]


def path_of(root: Caller, name: str) -> str:
    id = next(c["id"] for c in root.get("collections").json["items"] if c["name"] == name)
    return f"collections/{id}"


def change(root: Caller, collection: str = "notes", **body: Any) -> Any:
    answer = root.patch(path_of(root, collection), body)
    assert answer.status_code == 200, answer.json
    return answer.json


def test_a_field_becomes_searchable_and_no_longer_is(
    app: Flask, root: Caller, alice: Caller, charlie: Caller
) -> None:
    plain = {"name": "title", "type": "text"}
    make_collection(root, "notes", [plain, {**plain, "name": "body"}])
    add(alice, "early bird", body="worm")
    add(charlie, "bird")
    assert listed(alice, "bird").status_code == 400
    change(root, schema=[TITLE])
    assert (titles(alice, "bird"), titles(charlie, "bird")) == (["early bird"], ["bird"])
    change(root, schema=[BODY])
    assert titles(alice, "bird worm") == ["early bird"]
    change(root, schema=[{"name": "title", "options": {}}])
    assert (titles(alice, "bird"), titles(alice, "worm")) == ([], ["early bird"])
    add(alice, "late", body="bird")
    assert titles(alice, "bird") == ["late"]
    change(root, schema=[{"name": "body", "options": {}}])
    assert listed(alice, "bird").status_code == 400
    with app.app_context():
        assert not {c for c in definitions.get("notes").table.c if c.name.startswith("_")}


def test_words_follow_renames_and_removals(root: Caller, alice: Caller) -> None:
    long = {**BODY, "name": "b" * 63}
    make_collection(root, "notes", [TITLE, long])
    make_record(alice, "notes", **{"title": "blue moon", long["name"]: "tide"})
    change(root, schema=[{"name": "heading", "rename_from": "title"}])
    found = listed(alice, "moon tide").json["items"]
    assert [one["heading"] for one in found] == ["blue moon"]
    change(root, name="papers", schema=[{"name": "text", "rename_from": long["name"]}])
    query = {"search": "moon tide"}
    assert alice.get("records/papers", query_string=query).json["total"] == 1
    make_record(alice, "papers", heading="x", text="moon")
    assert alice.get("records/papers?search=moon").json["total"] == 2
    removal = {"remove_fields": ["text"]}
    plan = root.post(f"{path_of(root, 'papers')}/plan", removal).json
    change(root, "papers", **removal, plan_hash=plan["plan_hash"])
    assert alice.get("records/papers?search=moon").json["total"] == 1
    assert alice.get("records/papers?search=tide").json["total"] == 0
    make_collection(root, "notes", [TITLE])
    add(alice, "moon")
    assert titles(alice, "moon") == ["moon"]
    assert root.delete(path_of(root, "papers")).status_code == 200
    make_collection(root, "papers", [TITLE])
    assert alice.get("records/papers?search=moon").json["total"] == 0


def highlights(caller: Caller, text: str, **query: Any) -> list[Any]:
    answer = listed(caller, text, highlight="1", **query).json
    return [one["_highlights"] for one in answer["items"]]


def test_highlights(notes: None, alice: Caller) -> None:
    long = "word " * 400 + "<b>Ünder</b> the bridge " + "tail " * 4000 + "end"
    add(alice, "Under <the> sea & sky", body=long)
    add(alice, "東京タワーへ行く", body="cafe\u0301s & 👍🏽!")
    assert highlights(alice, "under the")[0]["title"] == (
        "<mark>Under</mark> &lt;<mark>the</mark>&gt; sea &amp; sky"
    )
    body = highlights(alice, "unde")[0]["body"]
    assert (body[:8], body[-8:]) == ("... word", "tail ...")
    assert "&lt;b&gt;<mark>Ünder</mark>&lt;/b&gt; the bridge" in body
    assert highlights(alice, "end")[0]["body"] == "... " + "tail " * 11 + "<mark>end</mark>"
    assert highlights(alice, "京タ")[0] == {"title": "東<mark>京タ</mark>ワーへ行く"}
    assert highlights(alice, "行")[0] == {"title": "東京タワーへ<mark>行</mark>く"}
    assert highlights(alice, "CAFÉS 👍")[0] == {
        "body": "<mark>cafés</mark> &amp; <mark>👍</mark>🏽!"
    }
    assert highlights(alice, "cafe", fields="title") == [{}]
    query = {"search": "sea", "highlight": "1", "cursor": ""}
    assert "_highlights" in alice.get("records/notes", query_string=query).json["items"][0]
    assert "_highlights" not in listed(alice, "sea", highlight="0").json["items"][0]


def test_highlights_look_once_at_a_limited_part(
    notes: None, alice: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    bodies = ["ab cd " * 450, "cd ab", "abc ab-cd"]
    records = [{"title": str(number), "body": body} for number, body in enumerate(bodies)]
    alice.post("records/notes/batch", {"records": records})
    seen = list[str]()
    marked = words.marked
    monkeypatch.setattr(words, "marked", lambda text: seen.append(text) or marked(text))
    shown = highlights(alice, " ".join(['"ab cd"'] * 15 + ["ab"] * 20))
    monkeypatch.undo()
    assert len(seen) == 4  # two records, each with two fields
    assert [one["body"][:30] for one in shown] == [
        "<mark>ab cd</mark> <mark>ab cd",
        "<mark>abc</mark> <mark>ab-cd</",
    ]
    monkeypatch.setattr(search, "MAX_LOOKED_AT", 2800)
    shown = highlights(alice, "ab", sort="title", fields="body")
    assert [len(one) for one in shown] == [1, 1, 1]
    assert shown[1:] == [
        {"body": "cd <mark>ab</mark>"},
        {"body": "<mark>abc</mark> <mark>ab</mark>-cd"},
    ]
    monkeypatch.setattr(search, "MAX_LOOKED_AT", 2702)
    assert [len(one) for one in highlights(alice, "ab", sort="title", fields="body")] == [1, 0, 0]


def pages_of_index(app: Flask) -> bytes:
    """The bytes of the index of words, as they are stored."""
    with app.app_context(), tenancy.as_owner():
        connection = db.session.connection()
        if connection.dialect.name == "sqlite":
            query = 'SELECT block FROM "fts_col_notes$_data"'
        else:
            query = (
                "SELECT pg_read_binary_file(pg_relation_filepath(indexrelid)) FROM pg_index"
                " WHERE indrelid = 'col_notes'::regclass"
                " AND indexrelid::regclass::text LIKE '%ft_col%'"
            )
            connection.exec_driver_sql("CHECKPOINT")
        options = {"no_parameters": True}
        rows = connection.exec_driver_sql(query, execution_options=options).all()
        return b"".join(bytes(row[0]) for row in rows)


@pytest.mark.not_on_citus("it reads the pages of an index, which only superusers may write out")
def test_an_erased_text_leaves_no_word_in_the_index(
    app: Flask, notes: None, root: Caller, alice: Caller
) -> None:
    add(alice, *(f"kept{number}" for number in range(20)))
    erased = make_record(alice, "notes", title="xylophone", body="quetzal")
    add(alice, *(f"later{number}" for number in range(20)))
    assert b"xylophone" in pages_of_index(app)
    answer = alice.post(f"records/notes/{erased['id']}/erase")
    assert answer.status_code == 200, answer.json
    run_jobs(app)
    run_jobs(app)
    left = pages_of_index(app)
    assert b"later0" in left
    assert b"xylophone" not in left
    assert b"quetzal" not in left
    assert "kept1" in titles(alice, "kept1*")


@pytest.mark.long
def test_hidden_records_and_fields_change_nothing(root: Caller, alice: Caller, bob: Caller) -> None:
    """What a caller finds is as in a collection without what it may not see."""
    hidden = {**BODY, "readable_if": "@has_role(admin)"}
    rule = {"list_rule": "secret != true || @has_role(admin)"}
    secret = {"name": "secret", "type": "boolean"}
    make_collection(root, "notes", [hidden, TITLE, secret], **rule)
    make_collection(root, "visible", [TITLE, secret], **rule)
    rng, some = Random(7), ["red", "redder", "blue", "東京", "Straße", "😀", "sea"]
    for _ in range(60):
        title, body = (" ".join(rng.choices(some, k=rng.randint(1, 6))) for _ in range(2))
        is_secret = rng.random() < 0.4
        make_record(alice, "notes", title=title, body=body, secret=is_secret)
        if not is_secret:
            make_record(alice, "visible", title=title, secret=False)

    def probe(collection: str, query: dict[str, Any]) -> Any:
        page = bob.get(f"records/{collection}", query_string=query).json
        shown = [(one["title"], one["_highlights"]) for one in page["items"]]
        return shown, page.get("total")

    for number in range(PROBES):
        terms = rng.choices([*some, "re*", '"red sea"', "strasse", "京"], k=rng.randint(1, 2))
        text = " ".join([*terms, *(["-blue"] if number % 3 == 0 else [])])
        query = {"search": text, "highlight": "1", "limit": "7", "skip": str(number % 2 * 7)}
        assert probe("notes", query) == probe("visible", query), query


SCRIPTS = {
    "latin": "naïve café Ångström jalapeño crème",
    "cyrillic": "ёлка Москва ЩУКА подъезд щука",
    "german": "Straße STRASSE Grüße öffnen Übung",
    "turkish": "İstanbul ısı Iğdır şeker ÇAY",
    "japanese": "東京タワー 京都 タワーマンション ひらがな 行く",
    "emoji": "😀 👍🏽 🇩🇪 ❤️ 👨‍👩‍👧",
}


@pytest.mark.long
def test_both_databases_find_what_the_words_say(notes: None, alice: Caller) -> None:
    """300 queries; what each has to find is computed without a database."""
    rng, texts = Random(11), list[str]()
    for _ in range(80):
        own = rng.choice([*SCRIPTS.values()]).split()
        texts.append(" ".join(rng.choices(own, k=rng.randint(1, 4))))
    for start in range(0, len(texts), 40):
        body = {"records": [{"title": one} for one in texts[start : start + 40]]}
        assert alice.post("records/notes/batch", body).status_code == 201
    for number in range(300):
        own = rng.choice([*SCRIPTS.values()]).split()
        word, other = rng.choice(own), rng.choice(own)
        cut = word[: rng.randint(1, len(word))]
        text = rng.choice([word, word.upper(), f"{cut}*", f'"{word} {other}"', f"{word} {other}"])
        if number % 5 == 0:
            text = f"{text} -{other}"
        wanted, unwanted = search.terms(text)
        marked = [(one, words.marked(one)) for one in texts]
        expected = [
            one
            for one, stored in marked
            if all(term.text in stored for term in wanted)
            and not any(term.text in stored for term in unwanted)
        ]
        if wanted:
            page = listed(alice, text, limit=100).json
            assert sorted(one["title"] for one in page["items"]) == sorted(
                normalize("NFC", one) for one in expected
            ), text
