"""`/directory`: what the users of an account see of each other."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
import sqlalchemy as sa
from flask import Flask

from app.accounts import directory
from app.accounts.models import User
from app.context import tenancy
from app.db import connection, transaction
from app.ids import new_id
from tests.builders import Caller, Cast, change_user, make_user
from tests.sql import statements

pytestmark = pytest.mark.both_databases
SETTINGS = "directory/settings"
TURKISH = "I\u015f\u0131l \u0130stanbul"
RUSSIAN = "\u0418\u0432\u0430\u043d\u043e\u0432 \u041f\u0451\u0442\u0440"
NAMES = ("Ann Müller-Lüdenscheidt", "Jörg Straße", TURKISH, RUSSIAN, "김민수", "Sinéad O'Brien")
ALL = ["name", "email", "role", "is_active"]


def setup(cast: Cast, **body: Any) -> dict[str, Any]:
    response = cast.root.put(SETTINGS, body)
    assert response.status_code == 200, response.json
    return dict(response.json)


def people(app: Flask, cast: Cast, **names: str) -> dict[str, str]:
    """Users of acme with these names; returns their ids."""
    found = {}
    for local, name in names.items():
        user = make_user(app, cast.alice.account_id, f"{local}@acme.example")
        change_user(app, user.id, name=name)
        found[local] = user.id
    return found


def names_of(caller: Caller, query: str = "") -> list[Any]:
    response = caller.get(f"directory{query}")
    assert response.status_code == 200, response.json
    return [one.get("name") for one in response.json["items"]]


def test_directory_shows_names_of_own_account_by_default(app: Flask, cast: Cast) -> None:
    people(app, cast, zoe="Zoe Last", ann="ann First")
    response = cast.bob.get("directory")
    assert names_of(cast.bob) == ["ann First", "Zoe Last", None, None]
    assert {tuple(one) for one in response.json["items"]} == {("id", "name")}
    assert response.json["next_cursor"] is None
    assert [one["id"] for one in cast.charlie.get("directory").json["items"]] == [cast.charlie.id]
    assert Caller(app, **{"X-Account-ID": "acme"}).get("directory").status_code == 401
    assert cast.root.acting_in("acme").get("directory").json == response.json


@pytest.mark.parametrize(
    ("search", "found"),
    [
        ("ann", ["Ann Müller-Lüdenscheidt"]),
        ("MUL", ["Ann Müller-Lüdenscheidt"]),
        ("mu\u0308ller an", ["Ann Müller-Lüdenscheidt"]),
        ("lude", ["Ann Müller-Lüdenscheidt"]),
        ("denscheidt", []),
        ("strasse", ["Jörg Straße"]),
        ("STRAß", ["Jörg Straße"]),
        ("istanbul", [TURKISH]),
        ("ISIL", [TURKISH]),
        ("\u0438\u0432\u0430\u043d", [RUSSIAN]),
        ("\u043f\u0435\u0442\u0440", [RUSSIAN]),
        ("김", ["김민수"]),
        ("o'b", ["Sinéad O'Brien"]),
        ("ann sinead", []),
        ("...", []),
        ("%", []),
        ("acme", []),  # of an address, which is not shown
    ],
)
def test_search_finds_beginnings_of_words(
    app: Flask, cast: Cast, search: str, found: list[str]
) -> None:
    people(app, cast, **{f"user{n}": name for n, name in enumerate(NAMES)})
    response = cast.bob.get("directory", query_string={"search": search})
    assert [one["name"] for one in response.json["items"]] == found


def test_search_follows_changes_of_users(app: Flask, cast: Cast) -> None:
    setup(cast, fields=["name", "email"])
    id = people(app, cast, ann="Ann")["ann"]
    assert cast.alice.patch(f"account/users/{id}", {"name": "Bea"}).status_code == 200
    assert (names_of(cast.bob, "?search=ann@"), names_of(cast.bob, "?search=be")) == (
        ["Bea"],
        ["Bea"],
    )
    assert cast.alice.delete(f"account/users/{id}").status_code == 204
    assert names_of(cast.bob, "?search=be") == []


def test_nothing_tells_of_fields_that_are_not_shown(app: Flask, cast: Cast) -> None:
    people(app, cast, secret="Ann Smith")
    for search in ("secret", "acme", "viewer", "admin", "true", "ann secret"):
        assert names_of(cast.bob, f"?search={search}") == []
    setup(cast, fields=[])
    assert names_of(cast.bob, "?search=ann") == []
    ids = [one["id"] for one in cast.bob.get("directory").json["items"]]
    assert ids == sorted(ids)
    assert cast.bob.get("directory").json["items"][0].keys() == {"id"}
    setup(cast, fields=["email", "role"])
    assert names_of(cast.bob, "?search=ann") == []
    found = cast.bob.get("directory?search=vie sec").json["items"]
    assert [(one["email"], one["role"]) for one in found] == [("secret@acme.example", "viewer")]


def test_who_does_not_pass_the_rule_sees_themself_alone(app: Flask, cast: Cast) -> None:
    setup(cast, rule="@has_role(admin)", fields=ALL)
    own = cast.bob.get("directory").json["items"]
    assert [one["id"] for one in own] == [cast.bob.id]
    assert own[0].keys() == {"id", *ALL}
    alice = cast.alice.id
    for query in (f"?ids={alice},{cast.bob.id}", "?search=acme", "?limit=1"):
        assert cast.bob.get(f"directory{query}").json["items"] == own
    assert cast.bob.get(f"directory?ids={alice}").json == {"items": [], "next_cursor": None}
    assert len(cast.alice.get("directory").json["items"]) == 2
    assert cast.root.patch(f"users/{cast.bob.id}", {"role": "admin"}).status_code == 200
    assert len(cast.bob.get("directory").json["items"]) == 2


def test_ids_find_the_deactivated_and_leave_out_unknown_ones(app: Flask, cast: Cast) -> None:
    setup(cast, fields=["name", "is_active"])
    gone = people(app, cast, gone="Gone")["gone"]
    assert cast.alice.patch(f"account/users/{gone}", {"is_active": False}).status_code == 200
    assert names_of(cast.bob, "?search=gone") == []
    asked = ",".join([gone.upper(), cast.charlie.id, "nonsense", " "])
    found = cast.bob.get("directory", query_string={"ids": asked}).json["items"]
    assert found == [{"id": gone, "name": "Gone", "is_active": False}]
    many = ",".join([gone] * 101)
    assert cast.bob.get("directory", query_string={"ids": many}).status_code == 422
    assert names_of(cast.bob, "?ids=") == []


def test_pages_follow_names_without_gap_or_repeat(app: Flask, cast: Cast) -> None:
    people(app, cast, **{f"u{n}": name for n, name in enumerate(["b", "B", "a", "c", "C", "d"])})
    seen, cursor = [], ""
    while True:
        page = cast.bob.get("directory", query_string={"limit": 2, "cursor": cursor}).json
        seen += [one["name"] for one in page["items"]]
        cursor = page["next_cursor"]
        if cursor is None:
            break
    assert seen == ["a", "b", "B", "c", "C", "d", None, None]
    cursor = cast.bob.get("directory?limit=2").json["next_cursor"]
    for caller, text in ((cast.charlie, cursor), (cast.bob, cursor + "x"), (cast.bob, "nonsense")):
        response = caller.get("directory", query_string={"cursor": text})
        assert response.json["details"][0]["field"] == "cursor", response.json
    assert cast.bob.get("directory?limit=101").status_code == 422
    setup(cast, fields=[])
    assert cast.bob.get("directory", query_string={"cursor": cursor}).status_code == 400


def test_settings_are_checked_and_audited(cast: Cast) -> None:
    assert cast.root.get(SETTINGS).json == {"rule": "true", "fields": ["name"], "warnings": []}
    body = {"rule": "@has_role(nobody)", "fields": ["name", "password_hash"]}
    details = cast.root.put(SETTINGS, body).json["details"]
    assert [(one["field"], one["code"]) for one in details] == [
        ("rule", "unknown_role"),
        ("fields[1]", "invalid_option"),
    ]
    assert details[0]["position"] == 10
    for rule in ("name = 'x'", "@owns_record()", "@request.data.x = 1", "1 +", "1"):
        details = cast.root.put(SETTINGS, {"rule": rule}).json["details"]
        assert (details[0]["code"], details[0]["field"]) == ("rule_invalid", "rule")
    setup(cast, rule="@has_group(staff)", fields=["role", "name", "role"])
    saved = cast.root.get(SETTINGS).json
    assert (saved["rule"], saved["fields"]) == ("@has_group(staff)", ["role", "name"])
    assert saved["warnings"][0]["code"] == "unknown_group"
    query = "audit-logs?table_name=instance_settings"
    entry = cast.root.get(query).json["items"][0]
    assert (entry["record_id"], entry["column_name"]) == ("directory", "value")
    for caller in (cast.alice, cast.bob):
        assert caller.get(SETTINGS).status_code == caller.put(SETTINGS, {}).status_code == 403


def test_roles_of_the_rule_are_followed_and_not_deleted(cast: Cast) -> None:
    role = cast.root.post("roles", {"name": "clerk"}).json["id"]
    setup(cast, rule="@has_role(clerk)")
    assert cast.root.patch(f"roles/{role}", {"name": "agent"}).status_code == 200
    assert cast.root.get(SETTINGS).json["rule"] == "@has_role(agent)"
    response = cast.root.delete(f"roles/{role}")
    assert response.status_code == 409
    assert [one["field"] for one in response.json["details"]] == ["directory.rule"]
    group = cast.alice.post("groups", {"name": "staff"}).json["id"]
    setup(cast, rule="@has_group(staff)")
    assert cast.alice.patch(f"groups/{group}", {"name": "people"}).status_code == 409
    assert cast.alice.delete(f"groups/{group}").status_code == 409


def test_search_is_one_statement(app: Flask, cast: Cast) -> None:
    people(app, cast, ann="Ann")
    assert names_of(cast.bob, "?search=an") == ["Ann"]
    with statements(app) as sent:
        assert names_of(cast.bob, "?search=an") == ["Ann"]
    assert len([one for one in sent if "SELECT" in one]) == 1, sent


def test_attributes_for_members_are_shown_and_found(app: Flask, cast: Cast) -> None:
    fields = [
        {"name": "department", "type": "text", "visible_to": "members"},
        {"name": "phone", "type": "text"},
    ]
    assert cast.root.put("attributes/users", {"fields": fields}).status_code == 200
    values = {"attributes": {"department": "Große Küche", "phone": "secret"}}
    assert cast.alice.patch(f"account/users/{cast.bob.id}", values).status_code == 200
    assert cast.bob.get("directory?search=kuche").json["items"] == []
    response = cast.root.put(SETTINGS, {"fields": ["attributes.phone", "attributes.x"]})
    assert [one["code"] for one in response.json["details"]] == ["invalid_option"] * 2
    setup(cast, fields=["attributes.department"])
    bob = {"id": cast.bob.id, "attributes": {"department": "Große Küche"}}
    assert cast.charlie.get("directory").json["items"] == [
        {"id": cast.charlie.id, "attributes": {}}
    ]
    assert cast.alice.get("directory?search=kuche grosse").json["items"] == [bob]
    assert cast.alice.get("directory?search=secret").json["items"] == []
    hidden = {"fields": [{"name": "department", "visible_to": "admin"}]}
    assert cast.root.put("attributes/users", hidden).status_code == 200
    assert cast.alice.get("directory?search=kuche").json["items"] == []
    assert cast.alice.get("directory").json["items"][0].keys() == {"id"}


COUNT, PROBES = 10_000, 1_000
HIDDEN = [{"name": "phone", "type": "text"}, {"name": "desk", "type": "text"}]


def fill(cast: Cast) -> None:
    """Many users of acme, all with attributes that nobody but admins sees."""
    assert cast.root.put("attributes/users", {"fields": HIDDEN}).status_code == 200
    table, account_id = User.__table__, cast.alice.account_id
    users = [
        {"account_id": account_id, "id": new_id(), "role_id": 1 + n % 2, "attributes": {}}
        | {"name": f"Person{n % 700} Family{n}", "is_active": n % 11 > 0}
        | dict.fromkeys(("email", "email_key"), f"x{n}@acme.example")
        for n in range(COUNT)
    ]
    with cast.alice.app.app_context(), tenancy.across_accounts(), transaction():
        connection().execute(sa.insert(table), users)
        rows = [
            {"account_id": account_id, "user_id": user["id"], "field": "name", "word": word}
            for user in users
            for word in directory.index_words(user["name"])
        ]
        connection().execute(sa.insert(directory.WORDS), rows)


def hide(cast: Cast, variant: str) -> list[str]:
    """Give each user other hidden values, with their words; returns some of these."""
    table, words, account_id = User.__table__, directory.WORDS, cast.alice.account_id
    new, found = list[dict[str, Any]](), list[str]()
    with cast.alice.app.app_context(), tenancy.across_accounts(), transaction():
        mine = (table.c.account_id == account_id, table.c.name.like("Person%"))
        ids = connection().scalars(sa.select(table.c.id).where(*mine)).all()
        for n, id in enumerate(ids):
            email, phone = f"{variant}{n}@acme.example", f"{variant}{n:05}"
            values = {"phone": phone, "desk": f"{variant}desk{n % 90}"}
            new.append({"key": id, "attributes": values, "email": email, "email_key": email})
            new[-1]["role_id"] = 2 + (n + len(variant)) % 2
            found.append(phone)
        one = sa.update(table).where(*mine, table.c.id == sa.bindparam("key"))
        connection().execute(one, new)
        connection().execute(sa.delete(words).where(words.c.field != "name"))
        rows = [
            {"account_id": account_id, "user_id": user["key"], "field": field, "word": word}
            for user in new
            for field, text in {"email": user["email"], **user["attributes"]}.items()
            for word in directory.index_words(text)
        ]
        for row in rows:
            row["field"] = row["field"] if row["field"] == "email" else f"attributes.{row['field']}"
        connection().execute(sa.insert(words), rows)
    return found[::97]


@pytest.mark.slow
def test_directory_of_many_users_is_no_oracle_for_hidden_fields(app: Flask, cast: Cast) -> None:
    fill(cast)
    dice, hidden = Random(52), [*hide(cast, "k"), "kdesk4", "k77@acme", "viewer", "editor", "true"]
    shown = [f"person{n}" for n in range(0, 700, 3)] + [f"fam{n}" for n in range(9)]
    probes = list[dict[str, Any]]()
    for _ in range(PROBES):
        words = [dice.choice(hidden if dice.random() < 0.6 else shown) for _ in range(2)]
        text = " ".join(word[: dice.randint(1, 12)] for word in words[: dice.randint(1, 2)])
        probes.append({"search": text, "limit": dice.choice([1, 30, 100])})

    def told() -> list[Any]:
        """The people of each probe, and whether there are more."""
        answers = [cast.bob.get("directory", query_string=probe).json for probe in probes]
        return [(one["items"], one["next_cursor"] is None) for one in answers]

    before = told()
    assert sum(bool(items) for items, _ in before) > 100
    hide(cast, "longer")
    assert told() == before
    with statements(app) as sent:
        assert len(cast.bob.get("directory?search=person fam").json["items"]) == 30
    assert len([one for one in sent if "SELECT" in one]) == 1, sent
