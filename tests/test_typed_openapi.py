"""`/openapi.json?collections=1`: the collections as typed schemas, each caller's own."""

from __future__ import annotations

from typing import Any

import pytest

from tests.builders import OPEN, Caller, Cast, make_collection, make_record
from tests.test_openapi import fits
from tests.valid_openapi import check_valid

PATH = "/openapi.json?collections=1"
TASKS = [
    {"name": "title", "type": "text", "required": True, "options": {"max_length": 80}},
    {"name": "state", "type": "text", "options": {"choices": ["open", "done"]}, "default": "open"},
    {"name": "points", "type": "number", "options": {"integer": True, "min": 0}},
    {"name": "project", "type": "reference", "collection": "projects", "required": True},
    {"name": "mail", "type": "email", "pii": True},
    {"name": "due", "type": "date"},
    {"name": "extra", "type": "json"},
    {"name": "level", "type": "select", "options": {"choices": ["low", "high"]}},
    {"name": "tags", "type": "multi_select", "options": {"choices": ["a", "b"]}},
    {"name": "loud", "type": "computed", "expression": "upper(title)", "return_type": "text"},
]


@pytest.fixture
def tasks(root: Caller) -> dict[str, Any]:
    make_collection(root, "projects", [{"name": "name", "type": "text"}])
    return make_collection(root, "tasks", TASKS, update_fields=["title"])


def described(caller: Caller) -> dict[str, Any]:
    answer = caller.get(PATH)
    assert answer.status_code == 200, answer.text
    assert "private" in answer.headers["Cache-Control"]
    found: dict[str, Any] = answer.json
    return found


def own_paths(spec: dict[str, Any]) -> dict[str, set[str]]:
    found = {}
    for path, item in spec["paths"].items():
        if path.startswith("/api/v1/records/") and "{collection}" not in path:
            found[path.removeprefix("/api/v1/records/")] = set(item) - {"parameters"}
    return found


@pytest.mark.long
def test_typed_openapi_of_superadmin_has_every_collection(
    root: Caller, tasks: dict[str, Any]
) -> None:
    plain, spec = root.get("/openapi.json").json, described(root)
    check_valid(spec, beyond=plain)
    both = {"get", "post"}, {"get", "put", "patch", "delete"}
    assert own_paths(spec) == {
        "projects": both[0],
        "projects/{record_id}": both[1],
        "tasks": both[0],
        "tasks/{record_id}": both[1],
    }
    schemas = spec["components"]["schemas"]
    assert schemas["tasks_create"]["required"] == ["title", "project"]
    assert "required" not in schemas["tasks_update"]
    shown = schemas["tasks_record"]["properties"]
    assert shown["title"] == {"type": "string", "maxLength": 80}
    assert shown["state"] == {"type": ["string", "null"], "enum": ["open", "done", None]}
    assert shown["level"] == {"type": ["string", "null"], "enum": ["low", "high", None]}
    items = {"type": "string", "enum": ["a", "b"]}
    assert shown["tags"] == {"type": ["array", "null"], "items": items, "uniqueItems": True}
    assert shown["points"] == {"type": ["integer", "null"], "minimum": 0}
    assert shown["created_by"]["type"] == ["string", "null"]
    assert plain["paths"].items() <= spec["paths"].items()
    assert plain["components"]["schemas"].items() <= schemas.items()
    # What one caller was told stays with that caller.
    assert root.get("/openapi.json").json == plain


@pytest.mark.long
def test_typed_openapi_file_fields_are_objects_read_and_ids_written(root: Caller) -> None:
    covers = {"name": "covers", "type": "file", "options": {"max_files": 3}}
    make_collection(root, "books", [{"name": "cover", "type": "file"}, covers])
    spec = described(root)
    check_valid(spec, beyond=root.get("/openapi.json").json)
    schemas = spec["components"]["schemas"]
    read, sent = (schemas[f"books_{kind}"]["properties"] for kind in ("record", "create"))
    assert read["cover"]["type"] == ["object", "null"]
    assert read["covers"]["items"]["properties"].keys() == read["cover"]["properties"].keys()
    by_id = {"type": "string", "format": "uuid"}
    assert by_id in sent["cover"]["anyOf"]
    assert {"type": "null"} in sent["cover"]["anyOf"]
    assert sent["covers"]["type"] == ["array", "null"]
    assert by_id in sent["covers"]["items"]["anyOf"]


@pytest.mark.long
def test_typed_openapi_of_viewer_shows_what_rules_open(cast: Cast, tasks: dict[str, Any]) -> None:
    rules = {"delete_rule": None, "view_rule": "@owns_record()", "list_fields": ["title"]}
    cast.root.put("collections/tasks/rules", {**rules, "create_fields": ["title", "project"]})
    cast.root.put("collections/projects/rules", dict.fromkeys(OPEN))
    spec = described(cast.bob)
    check_valid(spec, beyond=cast.bob.get("/openapi.json").json)
    paths = {"tasks": {"get", "post"}, "tasks/{record_id}": {"get", "put", "patch"}}
    assert own_paths(spec) == paths
    schemas = spec["components"]["schemas"]
    assert not [name for name in schemas if name.startswith("projects")]
    assert list(schemas["tasks_create"]["properties"]) == ["title", "project"]
    assert list(schemas["tasks_update"]["properties"]) == ["title"]
    assert "points" not in schemas["tasks_item"]["properties"]
    masked = schemas["tasks_record"]["properties"]["mail"]
    assert masked["description"] == "Masked."
    answers = spec["paths"]["/api/v1/records/tasks"]["post"]["responses"]["201"]["content"]
    assert len(answers["application/json"]["schema"]["anyOf"]) == 2


def test_typed_openapi_without_credential_is_401(
    cast: Cast, anyone: Caller, tasks: dict[str, Any]
) -> None:
    assert "tasks" not in anyone.get("/openapi.json").text
    assert "tasks" not in cast.alice.get("/openapi.json?collections=0").text
    for caller in (anyone, anyone.acting_in("acme"), Caller(anyone.app, Authorization="Bearer x")):
        answer = caller.get(PATH)
        assert (answer.status_code, answer.json["error"]) == (401, "unauthorized")


def test_typed_openapi_schemas_fit_real_responses(cast: Cast, tasks: dict[str, Any]) -> None:
    cast.root.put("collections/tasks/rules", {"update_fields": "*"})
    project = make_record(cast.alice, "projects", name="p")["id"]
    full = {"title": "a", "points": 3, "project": project, "due": "2026-11-20", "extra": [1]}
    full |= {"mail": "x@acme.example", "level": "low", "tags": ["b", "a"]}
    for caller in (cast.alice, cast.bob):
        spec = described(caller)
        for body in (full, {"title": "b", "project": project}):
            made = caller.post("records/tasks", body)
            assert made.status_code == 201
            fits(spec, "/api/v1/records/tasks", made)
            one = f"records/tasks/{made.json['id']}"
            for answer in (caller.get(one), caller.patch(one, {"points": None})):
                fits(spec, "/api/v1/records/tasks/{record_id}", answer)
        for query in ("", "?expand=project", "?cursor=", "?points=3&points=4"):
            fits(spec, "/api/v1/records/tasks", caller.get(f"records/tasks{query}"))
