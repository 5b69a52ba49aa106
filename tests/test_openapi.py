"""`/openapi.json` describes every route, all of it, and nothing that is not so."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from flask import Flask
from jsonschema import Draft202012Validator
from werkzeug.test import TestResponse

from app import create_app, web
from app.audit import exports as audit
from app.records.transfer import formats as records
from app.web.access import AccessLevel, access_of
from app.workflows import hooks
from app.workflows import models as workflows
from tests.builders import PASSWORD, Caller, Cast, make_collection, make_record
from tests.conftest import settings_for
from tests.described_choices import ENUMS
from tests.valid_openapi import check_valid

VERBS = {"get", "post", "put", "patch", "delete"}
# Pages and files for people, and the description itself.
NOT_DESCRIBED = re.compile(
    r"/((console|portal|welcome)(/.*)?|scim/v2(/.*)?|docs|redoc|openapi\.json|static/.*)?$"
)
FORM = "application/x-www-form-urlencoded"
Operation = Mapping[str, Any]


@pytest.fixture(scope="module")
def described(tmp_path_factory: pytest.TempPathFactory) -> Flask:
    """An application whose database is never asked."""
    return create_app(settings_for("sqlite", tmp_path_factory.mktemp("openapi")))


@pytest.fixture(scope="module")
def spec(described: Flask) -> dict[str, Any]:
    answer = described.test_client().get("/openapi.json")
    assert answer.mimetype == "application/json"
    found: dict[str, Any] = answer.json
    for _, operation in operations(found):
        for status, response in operation["responses"].items():
            if "$ref" in response:  # shared by all
                name = response["$ref"].rpartition("/")[2]
                operation["responses"][status] = found["components"]["responses"][name]
    return found


def test_openapi_errors_are_shared_components(described: Flask) -> None:
    whole = described.test_client().get("/openapi.json").json
    used = set()
    for name, operation in operations(whole):
        assert operation["responses"]["414"] == {"$ref": "#/components/responses/UriTooLong"}
        for status, response in operation["responses"].items():
            if status[0] in "45" and name != "GET /ready":
                assert response.keys() == {"$ref"}, (name, status)
                used.add(response["$ref"].rpartition("/")[2])
    assert used == set(whole["components"]["responses"])


def operations(spec: Mapping[str, Any]) -> Iterator[tuple[str, Operation]]:
    """Every operation, named by verb and path."""
    for path, item in spec["paths"].items():
        for verb, operation in item.items():
            if verb in VERBS:
                yield f"{verb.upper()} {path}", operation


def contents(spec: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Every JSON body, of requests and of answers."""
    for name, operation in operations(spec):
        if "requestBody" in operation:
            told = operation["requestBody"]["content"]
            # A browser posts a form.
            kinds = ("application/json", FORM, "multipart/form-data")
            yield f"{name} request", next(told[kind] for kind in kinds if kind in told)
        for status, response in operation["responses"].items():
            for content in response.get("content", {}).values():  # an export is of several kinds
                yield f"{name} {status}", content
    for name, response in spec["components"]["responses"].items():
        for content in response.get("content", {}).values():
            yield name, content


def validator(spec: Mapping[str, Any], schema: Mapping[str, Any]) -> Draft202012Validator:
    """What checks values against a schema of the description."""
    whole = {**schema, "components": spec["components"]}
    checker = Draft202012Validator.FORMAT_CHECKER
    return Draft202012Validator(whole, format_checker=checker)


def template(rule: str) -> str:
    """A route as the description writes it."""
    return re.sub(r"<(?:[a-z]+:)?([a-z_]+)>", r"{\1}", rule)


@pytest.mark.long
def test_openapi_document_is_valid_and_has_api_version(spec: dict[str, Any]) -> None:
    check_valid(spec)
    assert spec["openapi"] == "3.1.0"
    assert (spec["info"]["title"], spec["info"]["version"]) == ("Atrium", "0.1.0")
    assert spec["info"]["description"]


def test_openapi_describes_every_route_and_no_other(described: Flask, spec: dict[str, Any]) -> None:
    routes = {
        f"{method} {template(rule.rule)}"
        for rule in described.url_map.iter_rules()
        if not NOT_DESCRIBED.match(rule.rule)
        for method in (rule.methods or set()) - {"HEAD", "OPTIONS"}
    }
    assert {name for name, _ in operations(spec)} == routes


def test_openapi_operation_ids_are_stable(spec: dict[str, Any]) -> None:
    """Client generators name their functions by them; a new operation adds a line."""
    listed = Path(__file__).with_name("cases").joinpath("operations.txt").read_text().splitlines()
    found = [f"{operation['operationId']} {name}" for name, operation in operations(spec)]
    assert sorted(found) == listed


def test_openapi_paths_are_distinct_without_parameter_names(spec: dict[str, Any]) -> None:
    alike: dict[str, list[str]] = {}
    for path in spec["paths"]:
        alike.setdefault(re.sub(r"{.*?}", "{}", path), []).append(path)
    assert [paths for paths in alike.values() if len(paths) > 1] == []


def test_openapi_operations_have_summary_description_and_tag(
    spec: dict[str, Any],
) -> None:
    explained = {tag["name"] for tag in spec["tags"] if tag["description"]}
    for name, operation in operations(spec):
        assert re.fullmatch(r"[A-Z].{5,90}\.", operation["summary"]), name
        assert operation["description"] not in ("", operation["summary"]), name
        assert len(operation["tags"]) == 1
        assert set(operation["tags"]) <= explained, name


def test_openapi_lists_state_their_order(spec: dict[str, Any]) -> None:
    order = re.compile(r"\b(order(ed)?|newest|oldest|last used|highest) ?(by|of|first)?\b", re.I)
    pages = {name for name, schema in spec["components"]["schemas"].items() if is_list(schema)}
    for name, operation in operations(spec):
        content = operation["responses"].get("200", {}).get("content", {})
        schema = content.get("application/json", {}).get("schema", {})
        if name.startswith("GET ") and schema.get("$ref", "").rpartition("/")[2] in pages:
            text = f"{operation['summary']} {operation['description']}"
            assert order.search(text), name


def is_list(schema: Mapping[str, Any]) -> bool:
    return bool({"items", "names", "revisions", "results"} & schema["properties"].keys())


def test_openapi_operations_document_their_errors(described: Flask, spec: dict[str, Any]) -> None:
    views = {
        f"{method} {template(rule.rule)}": described.view_functions[rule.endpoint]
        for rule in described.url_map.iter_rules()
        for method in rule.methods or ()
    }
    for name, operation in operations(spec):
        documented, level = set(operation["responses"]), access_of(views[name]).level
        expected = {"422"} | ({"429"} if operation["tags"] != ["Health"] else set())
        if level is not AccessLevel.PUBLIC:
            expected |= {"400", "401", "403", "404"}
        if "requestBody" in operation:
            expected |= {"413", "415"}
        if "{" in name:
            expected.add("404")
        assert expected <= documented, name
        assert ("401" in documented) == (level is not AccessLevel.PUBLIC) or re.search(
            "auth/|saml/|/metrics", name
        )
        assert [s for s in documented if s[0] in "23" or s == "101"], name
        assert not {"default", "500"} & documented, name
    assert "409" in spec["paths"]["/api/v1/rules/fragments"]["put"]["responses"]


def test_openapi_operations_state_their_security(described: Flask, spec: dict[str, Any]) -> None:
    views = {
        f"{method} {template(rule.rule)}": described.view_functions[rule.endpoint]
        for rule in described.url_map.iter_rules()
        for method in rule.methods or ()
    }
    either: list[dict[str, Any]] = [{"bearer": []}, {"key": []}]
    expected = {
        AccessLevel.PUBLIC: [],
        AccessLevel.ANONYMOUS: [*either, {}],  # some clients take the first
        AccessLevel.SIGNED_IN: either,
        AccessLevel.ACCOUNT_ADMIN: either,
        AccessLevel.SUPERADMIN: either,
    }
    for name, operation in operations(spec):
        assert operation["security"] == expected[access_of(views[name]).level], name
    schemes = spec["components"]["securitySchemes"]
    assert (schemes["bearer"]["scheme"], schemes["key"]["name"]) == ("bearer", "X-API-Key")


def test_openapi_account_routes_have_account_header(described: Flask, spec: dict[str, Any]) -> None:
    named = {"$ref": "#/components/parameters/account"}
    for rule in described.url_map.iter_rules():
        path = spec["paths"].get(template(rule.rule))
        if (
            path
            and access_of(described.view_functions[rule.endpoint]).level is not AccessLevel.PUBLIC
        ):
            assert named in path["parameters"], rule.rule
    for public in ("/health", "/api/v1/auth/login"):
        assert named not in spec["paths"][public].get("parameters", ()), public
    described_once = spec["components"]["parameters"]["account"]
    assert (described_once["in"], described_once["name"]) == ("header", "X-Account-ID")


def test_openapi_parameters_have_type_and_description(spec: dict[str, Any]) -> None:
    for name, operation in operations(spec):
        for parameter in map(partial(resolved, spec), operation.get("parameters", ())):
            assert parameter["schema"].get("type"), (name, parameter)
            if parameter["in"] == "query" and parameter["name"] != "token":
                assert parameter.get("description"), (name, parameter)
    for path, item in spec["paths"].items():
        for parameter in item.get("parameters", ()):
            assert resolved(spec, parameter)["description"], (path, parameter)


def resolved(spec: Mapping[str, Any], told: Mapping[str, Any]) -> Mapping[str, Any]:
    """A parameter, by its name or in full."""
    name = told.get("$ref", "").rpartition("/")[2]
    found: Mapping[str, Any] = spec["components"]["parameters"][name] if name else told
    return found


def test_openapi_writes_have_signature_and_idempotency_headers(spec: dict[str, Any]) -> None:
    signing = {"X-ES-Username", "X-ES-Password", "X-ES-Reason"}
    for name, operation in operations(spec):
        taken = {resolved(spec, one)["name"] for one in operation.get("parameters", ())}
        writes = bool(operation["security"]) and not name.startswith("GET ")
        assert (signing <= taken) == writes, name
        repeats = writes and name.startswith("POST /api/v1/") and "/api/v1/auth/" not in name
        assert ("Idempotency-Key" in taken) == repeats, name
    one = spec["paths"]["/api/v1/records/{collection}/{record_id}"]
    names = {resolved(spec, parameter)["name"] for parameter in one["get"]["parameters"]}
    assert names == {"If-None-Match", "expand", "fields", "file_links", "as_of"}


def test_openapi_record_writes_document_428(spec: dict[str, Any]) -> None:
    asking = {name for name, operation in operations(spec) if "428" in operation["responses"]}
    assert len(asking) == 11
    asking.remove("POST /api/v1/batch")
    assert {name.partition(" ")[2].rpartition("{collection}")[0] for name in asking} == {
        "/api/v1/records/"
    }


def test_openapi_exports_list_every_format(spec: dict[str, Any]) -> None:
    formats = {"records/{collection}": records.FORMATS, "audit-logs": audit.FORMATS}
    for path, known in formats.items():
        described = spec["paths"][f"/api/v1/{path}/export"]["get"]["responses"]["200"]["content"]
        assert set(described) == set(known.values()), path


def test_openapi_examples_fit_their_schemas(spec: dict[str, Any]) -> None:
    checked = 0
    for name, content in contents(spec):
        assert content["schema"], name
        assert "example" in content, name
        faults = validator(spec, content["schema"]).iter_errors(content["example"])
        assert [fault.message for fault in faults] == [], name
        checked += 1
    assert checked > 100


def test_openapi_errors_have_one_schema(spec: dict[str, Any]) -> None:
    for name, operation in operations(spec):
        for status, response in operation["responses"].items():
            if status.startswith("4"):
                body = response["content"]["application/json"]
                assert body["schema"] == {"$ref": "#/components/schemas/ErrorBody"}, (name, status)


def test_openapi_properties_have_types(spec: dict[str, Any]) -> None:
    anything = {"default", "before", "after", "old_value", "new_value"}
    untyped = {
        (name, key)
        for name, schema in spec["components"]["schemas"].items()
        for key, value in schema["properties"].items()
        if not {"type", "$ref", "anyOf", "allOf"} & set(value) and key not in anything
    }
    assert untyped == set()


def test_openapi_arrays_have_items(spec: dict[str, Any]) -> None:
    bare = [part for part in parts(spec) if "array" in types_of(part) and "items" not in part]
    assert bare == []


def parts(value: object) -> Iterator[Mapping[str, Any]]:
    """Every object within a JSON value."""
    if isinstance(value, dict):
        yield value
    children = value.values() if isinstance(value, dict) else value
    if isinstance(value, dict | list):
        for child in children:
            yield from parts(child)


def types_of(schema: Mapping[str, Any]) -> list[str]:
    types = schema.get("type", ())
    return [types] if isinstance(types, str) else [*types]


@pytest.mark.parametrize(("place", "choices"), ENUMS.items())
def test_openapi_closed_sets_are_enums(
    spec: dict[str, Any], place: str, choices: Collection[str]
) -> None:
    name, *path = place.split(".")
    found = spec["components"]["schemas"][name]
    for key in path:
        found = found["items"] if key == "[]" else found["properties"][key]
    assert [value for value in found["enum"] if value is not None] == [*choices]
    assert (None in found["enum"]) == ("null" in types_of(found)), place


def test_openapi_bounds_are_described(spec: dict[str, Any], tmp_path: Path) -> None:
    schemas = spec["components"]["schemas"]
    most = settings_for("sqlite", tmp_path).batch_max
    for name, field in {"ChosenRecords": "ids", "NewRecords": "records"}.items():
        found = schemas[name]["properties"][field]
        assert (found["minItems"], found["maxItems"]) == (1, most)
    functions = spec["paths"]["/api/v1/records/{collection}/aggregate"]["get"]["parameters"][0]
    assert (functions["name"], functions["required"]) == ("functions", True)
    role_id = spec["paths"]["/api/v1/roles/{role_id}"]["parameters"][-1]
    assert (role_id["name"], role_id["schema"]["maximum"]) == ("role_id", 2**31 - 1)
    refused = {
        "NewKey": ("scopes", [[], {"books": []}, {"books": ["list", "list"]}]),
        "PortalBody": ("pages", [[], ["sso", "sso"]]),
        "UpgradeBody": ("accounts", [[], "some", ["acme"] * 1001]),
    }
    for schema, (field, values) in refused.items():
        wanted = validator(spec, schemas[schema]["properties"][field])
        assert not any(wanted.is_valid(value) for value in values)
    for schema, types in {"NewWorkflow": workflows.TRIGGERS, "NewHook": hooks.TRIGGERS}.items():
        trigger = schemas[schema]["properties"]["trigger"]
        assert validator(spec, trigger).is_valid({"type": types[0], "event": "records.create"})
        for invalid in ({}, {"type": "never"}, {"type": types[0], "unknown": 1}):
            assert not validator(spec, trigger).is_valid(invalid)


def test_openapi_schemas_are_used_and_have_public_names(spec: dict[str, Any]) -> None:
    text = re.sub(r"'operationId': '\w+'", "", str(spec))
    for name in spec["components"]["schemas"]:
        assert f"#/components/schemas/{name}'" in text, name
        assert re.fullmatch(r"[A-Z][A-Za-z]+", name), "a number means two schemas of one name"
        assert not name.endswith(("Schema", "Metadata"))
    for noise in ("marshmallow", "smorest", "<locals>", "<class", "_schema'", "fields_'", "app."):
        assert noise not in text
    for noise in ("password_hash", "token_hash", "Traceback", "TODO", "None,"):
        assert noise not in text.replace("None, '", "")


def fits(spec: Mapping[str, Any], path: str, answer: TestResponse) -> None:
    """Check an answer against what the description says of it."""
    operation = spec["paths"][path][answer.request.method.lower()]
    response = operation["responses"][str(answer.status_code)]
    schema = response["content"]["application/json"]["schema"]
    faults = validator(spec, schema).iter_errors(answer.json)
    assert [fault.message for fault in faults] == [], (path, answer.status_code)


def test_openapi_schemas_fit_real_responses(cast: Cast, spec: dict[str, Any]) -> None:
    made = make_collection(cast.root)
    record = make_record(cast.alice, title="a")
    one, rules = "/api/v1/records/{collection}/{record_id}", "collections/posts/rules"
    nobody, once = Caller(cast.root.app), {"Idempotency-Key": "once"}
    signing_in = {"account": "acme", "email": cast.alice.email, "password": PASSWORD}
    new = {"account_name": "New Co", "email": "a@new.example", "password": PASSWORD}
    for path, answer in (
        ("/api/v1/auth/me", cast.alice.get("auth/me")),
        ("/api/v1/auth/me", nobody.get("auth/me")),
        ("/api/v1/auth/login", nobody.post("auth/login", signing_in)),
        ("/api/v1/auth/login", nobody.post("auth/login", signing_in | {"password": "x"})),
        ("/api/v1/auth/login", nobody.post("auth/login", {})),
        ("/api/v1/auth/register", nobody.post("auth/register", new)),
        ("/api/v1/auth/register", nobody.post("auth/register", new)),
        ("/api/v1/auth/register", nobody.post("auth/register", new | {"password": "x"})),
        ("/api/v1/records/{collection}", cast.alice.get("records/posts")),
        ("/api/v1/records/{collection}", cast.alice.get("records/posts?include_total=false")),
        ("/api/v1/records/{collection}", cast.alice.get("records/posts?nope=1")),
        ("/api/v1/records/{collection}", cast.alice.post("records/posts", {"title": "b"})),
        ("/api/v1/records/{collection}", cast.alice.post("records/posts", data="x")),
        (one, cast.alice.get(f"records/posts/{record['id']}")),
        (one, cast.alice.patch(f"records/posts/{record['id']}", {"title": None})),
        (one, cast.charlie.get(f"records/posts/{record['id']}")),
        ("/api/v1/api-keys", cast.alice.post("api-keys", {"name": "k"}, headers=once)),
        ("/api/v1/api-keys", cast.alice.post("api-keys", {"name": "k"}, headers=once)),
        ("/api/v1/collections", cast.root.get("collections")),
        ("/api/v1/collections", cast.alice.get("collections")),
        ("/api/v1/collections/names", cast.root.get("collections/names")),
        ("/api/v1/collections/{collection_name}/rules", cast.root.get(rules)),
        ("/api/v1/collections/{collection_id}", cast.root.delete("collections/nope")),
        ("/api/v1/collections/{collection_id}", cast.root.delete(f"collections/{made['id']}")),
        ("/api/v1/migrations", cast.root.get("migrations")),
        ("/api/v1/migrations/current", cast.root.get("migrations/current")),
        ("/health", nobody.get("/health")),
        ("/ready", nobody.get("/ready")),
    ):
        fits(spec, path, answer)


def test_openapi_responses_with_body_have_content_type(spec: dict[str, Any]) -> None:
    bodiless = {"101", "204", "302", "304"}
    assert [
        (name, status)
        for name, operation in operations(spec)
        for status, response in operation["responses"].items()
        if status not in bodiless and not response.get("content")
    ] == []


def test_openapi_conditional_responses_are_described(spec: dict[str, Any]) -> None:
    known = spec["paths"]["/api/v1/records/{collection}/{record_id}"]["get"]["responses"]["304"]
    assert "content" not in known
    batch = spec["paths"]["/api/v1/records/{collection}/batch"]["post"]["responses"]
    assert {"200", "201"} <= batch.keys()
    assert "409" in spec["paths"]["/api/v1/auth/verify-email"]["post"]["responses"]
    link = spec["paths"]["/auth/verify-email"]["get"]["responses"]
    assert all(
        {"application/json", "text/html"} == link[code]["content"].keys()
        for code in link
        if code != "414"
    )
    back = spec["paths"]["/saml/{provider}/acs"]["post"]["responses"]
    assert "text/html" in back["401"]["content"]
    for path in ("register", "refresh"):
        assert "403" in spec["paths"][f"/api/v1/auth/{path}"]["post"]["responses"]


def test_openapi_request_examples_work(
    root: Caller, alice: Caller, anyone: Caller, spec: dict[str, Any]
) -> None:
    bodies = {
        name: operation["requestBody"]["content"]["application/json"]["example"]
        for name, operation in operations(spec)
        if "application/json" in operation.get("requestBody", {}).get("content", ())
    }
    registering = bodies["POST /api/v1/auth/register"] | {"account_slug": "acme-too"}
    assert anyone.post("auth/register", registering).status_code == 201
    made = root.post("collections", bodies["POST /api/v1/collections"])
    assert made.status_code == 201
    rules = bodies["PUT /api/v1/collections/{collection_name}/rules"]
    assert root.put("collections/posts/rules", rules).status_code == 200
    schema = bodies["PUT /api/v1/collections/{collection_id}"]
    assert root.put(f"collections/{made.json['id']}", schema).status_code == 200
    record = alice.post("records/posts", bodies["POST /api/v1/records/{collection}"])
    assert record.status_code == 201
    for verb in ("PUT", "PATCH"):
        body = bodies[f"{verb} /api/v1/records/{{collection}}/{{record_id}}"]
        assert alice(verb, f"records/posts/{record.json['id']}", body).status_code == 200


def test_api_documentation_pages_have_strict_csp(described: Flask) -> None:
    for path in ("/docs", "/redoc"):
        answer = described.test_client().get(path)
        policy = answer.headers["Content-Security-Policy"]
        assert "unsafe" not in policy
        assert "default-src 'none'" in policy
        assert "frame-ancestors 'none'" in policy
        assert not re.search(r"(src|href)=\"(https?:)?//", answer.text)


def test_templates_refer_to_no_other_host(described: Flask) -> None:
    for file in Path(described.root_path, "templates").rglob("*.html"):
        if "email" not in file.parts:
            assert not re.search(r"(src|href|action)=[\"'](https?:)?//", file.read_text()), file


def test_api_version_differs_from_release_version(cast: Cast) -> None:
    assert cast.root.get("/openapi.json").json["info"]["version"] == web.API_VERSION == "0.1.0"
    assert cast.root.get("/health").json["version"] == web.VERSION
    assert cast.root.get("roles").headers["X-Atrium-Version"] == web.VERSION
    for caller in (cast.alice, Caller(cast.root.app)):
        for path in ("auth/me", "/health"):
            assert "X-Atrium-Version" not in caller.get(path).headers
