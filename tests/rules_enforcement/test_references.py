"""Rules that follow references: in circles, to oneself, to what is new."""

from __future__ import annotations

from typing import Any

import pytest
import sqlalchemy as sa
from flask import Flask

from app import db
from app.collections.models import Collection
from tests.builders import Caller, Cast, make_collection, make_record

NAME = {"name": "name", "type": "text"}


def refers(name: str, target: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "type": "reference", "collection": target, **more}


def names(caller: Caller, collection: str, **query: Any) -> list[str]:
    answer = caller.get(f"records/{collection}", query_string={"sort": "name", **query})
    assert answer.status_code == 200, answer.json
    return [item["name"] for item in answer.json["items"]]


def test_rule_with_reference_to_own_collection(cast: Cast) -> None:
    rule = "parent.parent.name = 'root' || parent = null"
    make_collection(cast.root, "trees", [NAME, refers("parent", "trees")], list_rule=rule)
    above = None
    for name in ("root", "child", "grandchild", "leaf"):
        above = make_record(cast.alice, "trees", name=name, parent=above)["id"]
    assert names(cast.bob, "trees") == ["grandchild", "root"]
    assert names(
        cast.root.acting_in("*"), "trees", filter="parent.parent.parent.name = 'root'"
    ) == ["leaf"]
    far = {"list_rule": "parent.parent.parent.parent.name = 'root'"}
    refused = cast.root.put("collections/trees/rules", far)
    assert [d["code"] for d in refused.json["details"]] == ["rule_invalid"]


def test_rule_with_two_collections_that_refer_to_each_other(cast: Cast) -> None:
    made = make_collection(cast.root, "heads", [NAME])
    make_collection(cast.root, "teams", [NAME, refers("head", "heads")])
    schema = [NAME, refers("team", "teams")]
    answer = cast.root.put(f"collections/{made['id']}", {"schema": schema})
    assert answer.status_code == 200, answer.json
    for one, rule in (("heads", "team.head.name = name"), ("teams", "head.team.name = name")):
        rules = dict.fromkeys(("list_rule", "view_rule"), rule)
        assert cast.root.put(f"collections/{one}/rules", rules).status_code == 200
    head = make_record(cast.root.acting_in("acme"), "heads", name="h")
    team = make_record(cast.root.acting_in("acme"), "teams", name="t", head=head["id"])
    assert names(cast.bob, "heads") == names(cast.bob, "teams") == []
    url = f"records/heads/{head['id']}"
    assert cast.root.acting_in("acme").patch(url, {"team": team["id"]}).status_code == 200
    assert names(cast.bob, "heads") == ["h"]
    assert names(cast.bob, "teams", filter="head.team.head.name = 'h'") == ["t"]
    for one in ("heads", "teams"):
        refused = cast.root.delete(f"collections/{cast.root.get(f'collections/{one}').json['id']}")
        assert refused.status_code == 409


def test_rules_and_references_stay_within_account(cast: Cast) -> None:
    make_collection(cast.root, "teams", [NAME])
    rule = "team.name = 'red'"
    make_collection(cast.root, schema=[NAME, refers("team", "teams")], list_rule=rule)
    for caller in (cast.alice, cast.charlie):
        team = make_record(caller, "teams", name="red")["id"]
        make_record(caller, name=caller.slug, team=team)
    assert names(cast.bob, "posts") == ["acme"]
    assert names(cast.charlie, "posts", filter=rule) == ["globex"]
    assert names(cast.root.acting_in("*"), "posts", filter=rule) == ["acme", "globex"]
    assert names(cast.root, "posts") == []
    everywhere = cast.root.acting_in("*")
    assert everywhere.post("records/posts", {"name": "x"}).status_code == 400


def test_rule_may_name_fields_of_same_request(cast: Cast) -> None:
    schema = [NAME, refers("parent", "posts"), {**NAME, "name": "state"}]
    schema += [
        {"name": "c", "type": "computed", "expression": "upper(state)", "return_type": "text"}
    ]
    rule = "state = 'x' || parent.c = 'X'"
    make_collection(cast.root, schema=schema, list_rule=rule, create_rule="c != 'NO'")
    first = make_record(cast.alice, name="a", state="x")
    make_record(cast.alice, name="b", parent=first["id"])
    make_record(cast.alice, name="c")
    assert names(cast.bob, "posts") == ["a", "b"]
    assert cast.alice.post("records/posts", {"name": "d", "state": "no"}).status_code == 403
    wrong = {"name": "others", "schema": schema[:1], "list_rule": rule, "view_rule": "nmae = 'x'"}
    answer = cast.root.post("collections", wrong)
    assert [(d["field"], d["code"]) for d in answer.json["details"]] == [
        ("list_rule", "rule_invalid"),
        ("view_rule", "rule_invalid"),
    ]
    assert cast.root.get("collections/others").status_code == 404


def test_fields_are_added_beside_computed_fields(cast: Cast) -> None:
    computed = {"name": "c", "type": "computed", "expression": "upper(name)", "return_type": "text"}
    made = make_collection(cast.root, schema=[NAME, computed], list_rule="c = 'A'")
    make_record(cast.alice, name="a")
    known = cast.root.get("collections/posts").json["schema"]
    more = [
        {**NAME, "name": "more", "default": "m"},
        {**computed, "name": "d", "expression": "concat(name, more)"},
    ]
    for schema in ([*known, more[0]], [*known, *more], [*known, *more]):
        answer = cast.root.put(f"collections/{made['id']}", {"schema": schema})
        assert answer.status_code == 200, answer.json
        assert [one["name"] for one in answer.json["schema"]] == [one["name"] for one in schema]
    assert cast.root.put("collections/posts/rules", {"list_rule": "d = 'am'"}).status_code == 200
    [item] = cast.bob.get("records/posts?sort=d").json["items"]
    assert (item["c"], item["d"], item["more"]) == ("A", "am", "m")


def test_rule_that_no_longer_parses_denies_everybody(
    app: Flask, cast: Cast, anyone: Caller
) -> None:
    make_collection(cast.root)
    record = make_record(cast.alice, title="t")
    with app.app_context(), db.transaction():
        table = Collection.__table__
        broken = dict.fromkeys(
            ("list_rule", "view_rule", "create_rule", "update_rule", "delete_rule"), "gone = ("
        )
        values = {"rules": broken, "version": table.c.version + 1}
        db.connection().execute(sa.update(table).values(values))
    url = f"records/posts/{record['id']}"
    for caller in (cast.bob, anyone.acting_in("acme")):
        assert caller.get("records/posts").json.get("items", []) == []
        assert caller.get(url).status_code in (401, 404)
        assert caller.post("records/posts", {"title": "x"}).status_code in (401, 403)
        assert caller.patch(url, {"title": "x"}).status_code in (401, 404)
        assert caller.delete(url).status_code in (401, 404)
    assert cast.root.acting_in("acme").get(url).json["title"] == "t"
    asked = {"operation": "view", "user_id": cast.bob.id, "record_id": record["id"]}
    told = cast.root.post("collections/posts/rules/explain", asked).json
    assert (told["allowed"], told["clause"]) == (False, None)
    assert "does not fit the schema" in told["reason"]


def test_rule_through_reference_to_field_unknown_to_process(app: Flask, cast: Cast) -> None:
    """As when another process adds a field, and then writes a rule that leads to it."""
    made = make_collection(cast.root, "teams", [NAME])
    make_collection(cast.root, schema=[NAME, refers("team", "teams")])
    team = make_record(cast.alice, "teams", name="red")["id"]
    make_record(cast.alice, name="a", team=team)
    caches = app.extensions["atrium.caches"]["definitions"]
    cast.bob.get("records/teams")
    old = caches._values["teams"]
    schema = [*cast.root.get("collections/teams").json["schema"], {**NAME, "name": "more"}]
    assert cast.root.put(f"collections/{made['id']}", {"schema": schema}).status_code == 200
    assert (
        cast.root.put("collections/posts/rules", {"list_rule": "team.more = null"}).status_code
        == 200
    )
    caches._values.pop("posts", None)
    caches.put("teams", old)
    assert names(cast.bob, "posts") == ["a"]


def test_unique_conflict_is_409_only_for_callers_the_rule_allows(cast: Cast) -> None:
    make_collection(cast.root, "teams", [NAME, {**NAME, "name": "lead"}])
    code = {"name": "code", "type": "text", "unique": True}
    make_collection(cast.root, schema=[NAME, code, refers("team", "teams")])
    team = make_record(cast.alice, "teams", name="red", lead=cast.alice.id)["id"]
    make_record(cast.alice, name="a", code="1", team=team)
    mine = make_record(cast.bob, name="b", code="2", team=team)
    for rule, status in (
        ("@has_role(admin)", 403),
        ("name = 'a'", 403),
        ("team.lead = @request.auth.id", 403),
        ("@request.data.code = 'other'", 403),
        ("team.name = 'red'", 409),
        ("@request.data.code = '1'", 409),
        ("true", 409),
    ):
        cast.root.put("collections/posts/rules", {"create_rule": rule})
        sent = {"name": "x", "code": "1", "team": team}
        assert cast.bob.post("records/posts", sent).status_code == status, rule
    cast.root.put("collections/posts/rules", {"update_rule": "code != '1'"})
    assert cast.bob.patch(f"records/posts/{mine['id']}", {"code": "1"}).status_code == 403
    cast.root.put("collections/posts/rules", {"update_rule": "@owns_record()"})
    assert cast.bob.patch(f"records/posts/{mine['id']}", {"code": "1"}).status_code == 409


LENGTH = {"name": "c", "type": "computed", "expression": "length(name)", "return_type": "number"}


@pytest.mark.parametrize("saved", ["before", "after"])
def test_rule_through_reference_follows_changed_computed_field(
    app: Flask, cast: Cast, saved: str
) -> None:
    """At once, also in a process that knows the old expression, whenever the rule was saved."""
    led = {f"{one}_rule": "team.c = 3" for one in ("list", "view", "create", "update", "delete")}
    teams = make_collection(cast.root, "teams", [NAME, LENGTH])
    make_collection(cast.root, schema=[NAME, refers("team", "teams")])
    make_collection(cast.root, "notes", [NAME, refers("post", "posts")])
    team = make_record(cast.alice, "teams", name="red")["id"]
    post = make_record(cast.alice, name="a", team=team)["id"]
    note = make_record(cast.alice, "notes", name="n", post=post)["id"]
    if saved == "before":
        assert cast.root.put("collections/posts/rules", led).status_code == 200
        assert names(cast.bob, "posts") == ["a"]
    cast.bob.get("records/teams")
    old = app.extensions["atrium.caches"]["definitions"]._values["teams"]
    longer = {"name": "c", "expression": "length(name) + 1"}
    patched = cast.root.patch(f"collections/{teams['id']}", {"schema": [LENGTH | longer]})
    assert patched.status_code == 200, patched.json
    assert cast.root.put("collections/posts/rules", led).status_code == 200
    for shut in (
        lambda: names(cast.bob, "posts") == [],
        lambda: cast.bob.get(f"records/posts/{post}").status_code == 404,
        lambda: cast.bob.post("records/posts", {"name": "b", "team": team}).status_code == 403,
        lambda: cast.bob.patch(f"records/posts/{post}", {"name": "b"}).status_code == 404,
        lambda: cast.bob.delete(f"records/posts/{post}").status_code == 404,
        lambda: "post" not in cast.bob.get(f"records/notes/{note}?expand=post").json["expand"],
        lambda: names(cast.bob, "notes", filter="post.name = 'a'") == [],
    ):
        definitions = app.extensions["atrium.caches"]["definitions"]
        definitions.put("teams", old)
        if saved == "after":
            definitions._values.pop("posts", None)
        assert shut()


def test_schema_change_that_breaks_rules_elsewhere_is_400(cast: Cast) -> None:
    teams = make_collection(cast.root, "teams", [NAME, LENGTH])
    rule = " && ".join(["team.c > 1"] * 45)
    make_collection(cast.root, schema=[NAME, refers("team", "teams")], list_rule=rule)
    long = LENGTH | {"expression": " + ".join(["length(name)"] * 60)}
    answer = cast.root.patch(f"collections/{teams['id']}", {"schema": [long]})
    assert answer.status_code == 400
    assert [(one["field"], one["code"]) for one in answer.json["details"]] == [
        ("posts.list_rule", "rule_invalid")
    ]
    item = {"name": "teams", "schema": [NAME, long]}
    told = cast.root.get("collections/export").json
    asked = {"data": {**told, "collections": [item]}, "strategy": "update"}
    answer = cast.root.post("collections/import", asked)
    assert answer.status_code == 400, answer.json
    assert [one["field"] for one in answer.json["details"]] == ["posts.list_rule"]
    own = " && ".join(["c > 1"] * 45)
    assert cast.root.put("collections/posts/rules", {"list_rule": "true"}).status_code == 200
    assert cast.root.put("collections/teams/rules", {"list_rule": own}).status_code == 200
    answer = cast.root.post("collections/import", asked)
    assert [one["field"] for one in answer.json["details"]] == ["teams.list_rule"]
