"""Users: what the directory may change, and what stays with the account."""

from __future__ import annotations

from typing import Any

import pytest
from flask import Flask

from app.accounts.models import PII_GROUP
from tests.builders import PASSWORD, Caller, Cast
from tests.mailbox import outbox, run_jobs
from tests.scim.conftest import Directory
from tests.scim.sequences import patch


def stored(cast: Cast, user_id: str) -> dict[str, Any]:
    """A user as the API shows it."""
    user: dict[str, Any] = cast.alice.get(f"account/users/{user_id}").json
    return user


def sign_in(app: Flask, email: str) -> int:
    body = {"account": "acme", "email": email, "password": PASSWORD}
    return Caller(app).post("auth/login", body).status_code


def refused(answer: Any, scim_type: str = "mutability") -> None:
    assert (answer.status_code, answer.json["scimType"]) == (400, scim_type), answer.text


def set_active(directory: Directory, user_id: str, active: object) -> Any:
    return directory.patch(
        f"Users/{user_id}", patch({"op": "replace", "value": {"active": active}})
    )


def move(directory: Directory, user_id: str, email: str) -> Any:
    change = {"op": "replace", "path": "emails", "value": [{"value": email}]}
    return directory.patch(f"Users/{user_id}", patch(change))


def test_scim_new_user_has_no_password_no_mail_and_unverified_email(
    app: Flask, cast: Cast, okta: Directory
) -> None:
    user = stored(cast, okta.make_user(name={"givenName": "Dora", "familyName": "D"})["id"])
    expected = {
        "email": "dora@acme.example",
        "name": "Dora D",
        "role": "viewer",
        "is_active": True,
        "email_verified": False,
        "auth_provider": "scim",
        "groups": [],
    }
    assert expected.items() <= user.items()
    run_jobs(app)
    assert outbox(app) == []
    assert sign_in(app, "dora@acme.example") == 401


def test_scim_deactivation_ends_sessions_and_keys(app: Flask, cast: Cast, okta: Directory) -> None:
    body = {"account": "acme", "email": cast.bob.email, "password": PASSWORD}
    signed_in = Caller(app).post("auth/login", body).json
    key = cast.bob.post("api-keys", {"name": "k"}).json["key"]
    sessions = [Caller(app, Authorization=f"Bearer {one}") for one in (signed_in["token"], key)]
    assert [one.get("auth/me").status_code for one in sessions] == [200, 200]
    assert set_active(okta, cast.bob.id, False).json["active"] is False
    assert [one.get("auth/me").status_code for one in sessions] == [401, 401]
    refresh = {"refresh_token": signed_in["refresh_token"]}
    assert Caller(app).post("auth/refresh", refresh).status_code == 401
    assert sign_in(app, cast.bob.email) == 401
    assert set_active(okta, cast.bob.id, True).json["active"] is True
    assert sign_in(app, cast.bob.email) == 200


def test_scim_deactivation_of_last_admin_is_409(cast: Cast, okta: Directory) -> None:
    assert set_active(okta, cast.alice.id, False).status_code == 409
    refused(okta.delete(f"Users/{cast.alice.id}"))
    assert stored(cast, cast.alice.id)["is_active"] is True


def test_scim_cannot_delete_or_reactivate_admins_and_pii_access_members(
    cast: Cast, okta: Directory
) -> None:
    body = {"email": "eve@acme.example", "role": "admin"}
    eve = cast.alice.post("account/users", body).json["id"]
    assert set_active(okta, eve, False).status_code == 200
    refused(set_active(okta, eve, True))
    refused(okta.delete(f"Users/{eve}"))
    groups = cast.alice.get("groups").json["items"]
    pii = next(one["id"] for one in groups if one["name"] == PII_GROUP)
    dora = okta.make_user()["id"]
    cast.root.acting_in("acme").post(f"groups/{pii}/users", {"user_id": dora})
    refused(move(okta, dora, "attacker@evil.example"))
    assert set_active(okta, dora, False).status_code == 200
    refused(set_active(okta, dora, True))
    refused(okta.delete(f"Users/{dora}"))


def test_scim_email_change_is_allowed_for_directory_users_only(
    app: Flask, cast: Cast, okta: Directory
) -> None:
    for user_id in (cast.bob.id, cast.alice.id):
        refused(move(okta, user_id, "attacker@evil.example"))
    dora = okta.make_user()["id"]
    assert move(okta, dora, "dora.d@acme.example").status_code == 200
    user = stored(cast, dora)
    assert (user["email"], user["email_verified"]) == ("dora.d@acme.example", False)
    cast.alice.patch(f"account/users/{dora}", {"role": "admin"})
    refused(move(okta, dora, "attacker@evil.example"))
    cast.alice.patch(f"account/users/{dora}", {"role": "editor"})
    refused(move(okta, dora, "attacker@evil.example"))
    assert stored(cast, dora)["email"] == "dora.d@acme.example"


def test_scim_patch_path_to_sub_attribute_of_emails(okta: Directory) -> None:
    dora = okta.make_user()["id"]
    change = {"op": "replace", "path": "emails.value", "value": "dora.d@acme.example"}
    emails = okta.patch(f"Users/{dora}", patch(change)).json["emails"]
    assert [one["value"] for one in emails] == ["dora.d@acme.example"]


def test_scim_user_name_may_differ_from_email(cast: Cast, okta: Directory) -> None:
    emails = [{"value": "dora.d@acme.example", "type": "work", "primary": True}]
    user = okta.make_user("dd4711", emails=emails)
    assert (user["userName"], user["emails"]) == ("dd4711", emails)
    assert (
        okta.post("Users", {"userName": "DD4711", "emails": [{"value": "x@y.example"}]}).status_code
        == 409
    )
    taken = {"userName": "other", "emails": [{"value": "DORA.D@acme.example"}]}
    assert okta.post("Users", taken).status_code == 409
    # Of a user without a row of the directory the address is the name.
    taken = {"userName": cast.bob.email.upper(), "emails": [{"value": "x@y.example"}]}
    answer = okta.post("Users", taken)
    assert (answer.status_code, answer.json["scimType"]) == (409, "uniqueness")
    refused(okta.post("Users", {"userName": "nobody"}), "invalidValue")


def test_scim_put_without_active_keeps_active(cast: Cast, okta: Directory) -> None:
    dora = okta.make_user(active=False)
    assert okta.put(f"Users/{dora['id']}", {"userName": dora["userName"]}).json["active"] is False


def test_scim_deleted_user_is_404(cast: Cast, okta: Directory) -> None:
    user = okta.make_user()
    assert okta.delete(f"Users/{user['id']}").status_code == 204
    assert okta.get(f"Users/{user['id']}").status_code == 404
    assert cast.alice.get(f"account/users/{user['id']}").status_code == 404
    assert okta.make_user()["id"] != user["id"]


def test_scim_user_etags(okta: Directory) -> None:
    user = okta.make_user()
    path, etag = f"Users/{user['id']}", user["meta"]["version"]
    answer = okta.get(path)
    assert answer.headers["ETag"] == etag
    assert answer.headers["Location"] == user["meta"]["location"]
    assert okta.get(path, headers={"If-None-Match": etag}).status_code == 304
    change = patch({"op": "replace", "path": "displayName", "value": "Dora"})
    changed = okta.patch(path, change, headers={"If-Match": etag})
    assert changed.status_code == 200
    assert changed.headers["ETag"] != etag
    for method, body in (("PUT", {"userName": "a"}), ("PATCH", change), ("DELETE", None)):
        answer = okta(method, path, body, headers={"If-Match": etag})
        assert (answer.status_code, answer.json["status"]) == (412, "412")
    assert okta.put(path, changed.json, headers={"If-Match": "*"}).status_code == 200
    same = okta.get(path).headers["ETag"]
    assert okta.put(path, changed.json).headers["ETag"] == same  # nothing changed


def test_scim_list_paging(okta: Directory) -> None:
    ids = [okta.make_user(f"u{number}@acme.example")["id"] for number in range(5)]
    found = []
    for start in (1, 3, 5, 7):
        page = okta.get(f"Users?startIndex={start}&count=2").json
        assert (page["totalResults"], page["startIndex"]) == (7, start)
        found += [one["id"] for one in page["Resources"]]
    assert len(found) == 7
    assert set(ids) < set(found)
    assert okta.get("Users?count=0").json["Resources"] == []
    assert okta.get("Users?count=-5").json["itemsPerPage"] == 0
    assert okta.get("Users?startIndex=-5&count=1000000").json["startIndex"] == 1
    assert okta.get("Users?startIndex=99999999999&count=1").json["Resources"] == []
    refused(okta.get("Users?count=many"), "invalidValue")


FILTERS = [
    ('userName eq "DORA@acme.example"', True),
    ('userName ne "dora@acme.example"', False),
    ('userName sw "dor" and active eq true', True),
    ('userName co "%"', False),
    ('userName ew "acme.example"', True),
    ('name.familyName eq "D\u00d6E"', None),
    ('name.givenName eq "dora"', True),
    ('displayName eq "dora d"', True),
    ('externalId eq "X1"', True),
    ('externalId eq "x1"', False),
    ("externalId pr", True),
    ("externalId eq null", False),
    ('not (externalId eq "other")', True),
    ("not (externalId pr)", False),
    ('emails[type eq "work" and value co "@acme"]', True),
    ('emails[type eq "home"]', False),
    ('emails.value eq "dora@acme.example"', True),
    ('active eq "False" or active ne true', False),
    ("groups pr", False),
    ('meta.created gt "2020-01-01T00:00:00Z"', True),
    ('meta.lastModified lt "2020-01-01T00:00:00Z"', False),
    ('id pr and (userName eq "x" or userName eq "dora@acme.example")', True),
    ('urn:ietf:params:scim:schemas:core:2.0:User:userName eq "dora@acme.example"', True),
]


@pytest.mark.parametrize(("text", "matches"), FILTERS)
def test_scim_filter_matches(okta: Directory, text: str, matches: bool | None) -> None:
    name = {"givenName": "Dora", "familyName": "D"}
    user = okta.make_user(name=name, externalId="X1")
    answer = okta.get("Users", query_string={"filter": text})
    assert answer.status_code == 200, answer.text
    found = [one["id"] for one in answer.json["Resources"]]
    assert (user["id"] in found) == bool(matches)
    searched = okta.post("Users/.search", {"filter": text, "attributes": ["id"]}).json
    assert [one["id"] for one in searched["Resources"]] == found


BAD_FILTERS = [
    "userName",
    "userName eq",
    'userName xx "a"',
    'userName eq "a" and',
    '(userName eq "a"',
    'password eq "a"',
    'password_hash sw "$"',
    "userName eq 5",
    "active gt true",
    'meta.created eq "yesterday"',
    "(" * 200 + "id pr" + ")" * 200,
    " or ".join(["id pr"] * 60),
    'userName eq "' + "a" * 5000 + '"',
    'userName eq "\\ud800"',
    'userName eq "\\u0000"',
    "userName eq 'a' or 1=1; --",
    "",
]


@pytest.mark.one_database
@pytest.mark.parametrize("text", BAD_FILTERS)
def test_scim_filter_that_is_invalid_is_400(okta: Directory, text: str) -> None:
    answer = okta.get("Users", query_string={"filter": text})
    assert answer.status_code == 400, answer.text
    assert answer.json["scimType"] in ("invalidFilter", "invalidValue")


BAD_PATCHES: list[tuple[dict[str, Any], str]] = [
    ({}, "invalidValue"),
    (patch(), "invalidValue"),
    (patch(*[{"op": "remove", "path": "displayName"}] * 101), "invalidValue"),
    (patch({"op": "copy", "path": "displayName"}), "invalidValue"),
    (patch({"op": "add", "value": {f"a{n}": 1 for n in range(1001)}}), "invalidValue"),
    (patch({"op": "add", "path": f"emails[{' or '.join(['type pr'] * 6)}]"}), "invalidPath"),
    (patch({"op": "remove"}), "noTarget"),
    (patch({"op": "replace", "value": "x"}), "invalidValue"),
    (patch({"op": "replace", "path": "id", "value": "x"}), "mutability"),
    (patch({"op": "replace", "path": "groups", "value": []}), "mutability"),
    (patch({"op": "remove", "path": "userName"}), "invalidValue"),
    (patch({"op": "replace", "path": "userName", "value": {"a": 1}}), "invalidValue"),
    (patch({"op": "replace", "path": "userName", "value": "x" * 300}), "invalidValue"),
    (patch({"op": "replace", "path": "active", "value": "perhaps"}), "invalidValue"),
    (patch({"op": "replace", "path": "name.nickname", "value": "x"}), "invalidPath"),
    (patch({"op": "replace", "path": "emails[type eq", "value": "x"}), "invalidPath"),
    (patch({"op": "replace", "path": 'emails[type eq "fax"].value', "value": "x"}), "noTarget"),
    (patch({"op": "replace", "path": "displayName", "value": "two\nlines"}), "invalidValue"),
    (patch({"op": "replace", "path": "emails", "value": [{"value": "none"}]}), "invalidValue"),
    (patch({"op": "replace", "path": "emails", "value": [1, "x", None]}), "invalidValue"),
    (patch({"op": "replace", "path": "name", "value": ["x"]}), "invalidValue"),
]


@pytest.mark.one_database
@pytest.mark.parametrize(("body", "scim_type"), BAD_PATCHES)
def test_scim_patch_that_is_invalid_is_refused(
    okta: Directory, body: dict[str, Any], scim_type: str
) -> None:
    user = okta.make_user(displayName="Dora")
    refused(okta.patch(f"Users/{user['id']}", body), scim_type)
    assert okta.get(f"Users/{user['id']}").json == user


@pytest.mark.one_database
def test_scim_body_over_limit_is_413_and_malformed_body_is_refused(okta: Directory) -> None:
    large = "x" * (2**20 + 1)
    assert okta.post("Users", {"userName": "a@b.example", "title": large}).status_code == 413
    for text, status in (("[]", 400), ("{", 400), ("", 400), ("null", 400)):
        answer = okta("POST", "Users", data=text, content_type="application/scim+json")
        assert (answer.status_code, answer.json["scimType"]) == (status, "invalidSyntax")
    form = okta("POST", "Users", data="a=b", content_type="application/x-www-form-urlencoded")
    assert form.status_code == 415
    assert okta("DELETE", "Users").status_code == 405
    assert okta("GET", "Nothing").json["status"] == "404"
    assert okta("GET", "Users/" + "x" * 5000).status_code in (404, 414)
    assert okta("GET", "Users/%00").status_code == 404


@pytest.mark.one_database
def test_scim_attributes_parameter_limits_response(okta: Directory) -> None:
    user = okta.make_user(name={"givenName": "Dora"})
    path = f"Users/{user['id']}"
    names = okta.get(f"{path}?attributes=userName,NAME.givenname,emails.value").json
    assert names == {
        "schemas": user["schemas"],
        "id": user["id"],
        "userName": user["userName"],
        "name": {"givenName": "Dora"},
        "emails": [{"value": "dora@acme.example"}],
    }
    left = okta.get(f"{path}?excludedAttributes=meta,id,emails.type").json
    assert left.keys() == user.keys() - {"meta"}
    assert left["emails"] == [{"value": "dora@acme.example", "primary": True}]


@pytest.mark.one_database
def test_scim_attribute_names_are_case_insensitive(okta: Directory) -> None:
    answer = okta.post("Users", {"USERNAME": "a@b.example", "Name": {"GIVENNAME": "A"}})
    assert (answer.status_code, answer.json["name"]) == (201, {"givenName": "A"})


ENTERPRISE = "urn:ietf:params:scim:schemas:extension:enterprise:2.0:User"


def test_scim_fills_attributes_that_name_it(cast: Cast, okta: Directory) -> None:
    fields = [
        {"name": "department", "type": "text", "scim": f"{ENTERPRISE}:department"},
        {"name": "manager", "type": "text", "scim": f"{ENTERPRISE}:manager.value"},
        {"name": "job", "type": "text", "scim": "title"},
        {"name": "level", "type": "number", "scim": "userType"},
        {"name": "plan", "type": "text"},
    ]
    assert cast.root.put("attributes/users", {"fields": fields}).status_code == 200
    extension = {"department": "Sales", "manager": {"value": "42"}}
    user = okta.make_user(title="Clerk", **{ENTERPRISE: extension})
    assert (user["title"], user[ENTERPRISE]) == ("Clerk", extension)
    assert ENTERPRISE in user["schemas"]
    one = f"Users/{user['id']}"
    values = {"department": "Sales", "manager": "42", "job": "Clerk"}
    assert stored(cast, user["id"])["attributes"] == values
    changes = [
        {"op": "replace", "path": f"{ENTERPRISE}:department", "value": "Care"},
        {"op": "remove", "path": "title"},
        {"op": "add", "value": {f"{ENTERPRISE.upper()}:manager.value": "43", "plan": "pro"}},
        {"op": "add", "value": {"USERTYPE": 3}},
    ]
    assert okta.patch(one, patch(*changes)).status_code == 200
    values = {"department": "Care", "manager": "43", "level": 3}
    assert stored(cast, user["id"])["attributes"] == values
    refused(
        okta.patch(one, patch({"op": "replace", "path": "userType", "value": "x"})), "invalidValue"
    )
    body = {"userName": "dora@acme.example", ENTERPRISE: {"department": "Care"}}
    assert okta.put(one, body).status_code == 200
    assert stored(cast, user["id"])["attributes"] == values
    assert okta.get("Users").json["Resources"][-1][ENTERPRISE]["department"] == "Care"
    assert okta.patch(one, patch({"op": "remove", "path": ENTERPRISE})).status_code == 200
    assert stored(cast, user["id"])["attributes"] == {"level": 3}


def test_scim_filters_by_texts_of_mapped_attributes(cast: Cast, okta: Directory) -> None:
    fields = [
        {"name": "department", "type": "text", "scim": f"{ENTERPRISE}:department"},
        {"name": "manager", "type": "text", "scim": f"{ENTERPRISE}:manager.value"},
        {"name": "job", "type": "text", "scim": "title"},
        {"name": "level", "type": "number", "scim": "userType"},
        {"name": "plan", "type": "text"},
    ]
    assert cast.root.put("attributes/users", {"fields": fields}).status_code == 200
    for name, extension in (
        ("ada", {"department": "Sales", "manager": {"value": "42"}}),
        ("bea", {"department": "sales"}),
        ("cem", {}),
    ):
        user_name = f"{name}@acme.example"
        okta.make_user(userName=user_name, title=name.title(), **{ENTERPRISE: extension})

    def found(filter: str) -> list[str]:
        answer = okta.get("Users", query_string={"filter": filter})
        assert answer.status_code == 200, answer.json
        assert answer.json["totalResults"] == len(answer.json["Resources"])
        return [one["userName"].partition("@")[0] for one in answer.json["Resources"]]

    department, manager = f"{ENTERPRISE}:department", f"{ENTERPRISE}:manager.value"
    assert found(f'{department} eq "Sales"') == ["ada"]
    assert found(f'{department.upper()} eq "sales"') == ["bea"]
    assert found(f'{department} ne "Sales" and title pr') == ["bea", "cem"]
    assert found(f'not ({department} pr) and title eq "Cem"') == ["cem"]
    assert found(f'{manager} eq "42" or title eq "Bea"') == ["ada", "bea"]
    assert found(f'{department} eq "x\' or 1=1"') == []
    for wrong in (
        *('department eq "Sales"', f'{department} co "S"', f"{department} eq 1"),
        *("userType eq 1", 'plan eq "pro"', f'{ENTERPRISE}:plan eq "pro"'),
    ):
        refused(okta.get("Users", query_string={"filter": wrong}), "invalidFilter")


def test_scim_schemas_list_mapped_attributes(cast: Cast, okta: Directory) -> None:
    before = okta.get("Schemas").json["Resources"]
    assert "schemaExtensions" not in okta.get("ResourceTypes/User").json
    custom = "urn:example:params:scim:schemas:acme:1.0:User"
    choices = {"choices": ["red", "blue"]}
    fields = [
        {"name": "department", "type": "text", "scim": f"{ENTERPRISE}:department"},
        {"name": "manager", "type": "text", "scim": f"{ENTERPRISE}:manager.value"},
        {"name": "job", "type": "text", "scim": "title", "label": "Job title"},
        {"name": "suffix", "type": "text", "scim": "name.honorificSuffix"},
        {"name": "shown", "type": "text", "scim": "displayName"},
        {"name": "teams", "type": "multi_select", "scim": f"{custom}:teams", "options": choices},
        {"name": "level", "type": "number", "scim": f"{custom.upper()}:level"},
        {"name": "hired", "type": "datetime", "scim": f"{custom}:hired", "required": True},
    ]
    assert cast.root.put("attributes/users", {"fields": fields}).status_code == 200
    after = okta.get("Schemas").json
    ids = [one["id"] for one in after["Resources"]]
    assert ids == [before[0]["id"], before[1]["id"], ENTERPRISE, custom]
    assert after["totalResults"] == 4
    core, group, enterprise, own = after["Resources"]
    assert group == before[1]
    for one in after["Resources"]:
        assert okta.get(f"Schemas/{one['id']}").json == one
    named = {one["name"]: one for one in core["attributes"]}
    assert named.keys() - {one["name"] for one in before[0]["attributes"]} == {"title"}
    assert named["title"] == {
        "name": "title",
        "type": "string",
        "multiValued": False,
        "description": "Job title",
        "required": False,
        "mutability": "readWrite",
        "returned": "default",
        "caseExact": True,
        "uniqueness": "none",
    }
    parts = [one["name"] for one in named["name"]["subAttributes"]]
    assert parts == ["formatted", "givenName", "familyName", "honorificSuffix"]
    assert enterprise["name"] == "EnterpriseUser"
    department, manager = enterprise["attributes"]
    assert (department["name"], department["type"]) == ("department", "string")
    assert (manager["type"], [one["name"] for one in manager["subAttributes"]]) == (
        "complex",
        ["value"],
    )
    teams, level, hired = own["attributes"]
    assert (teams["multiValued"], teams["canonicalValues"]) == (True, ["red", "blue"])
    assert (level["type"], hired["type"], hired["required"]) == ("decimal", "dateTime", True)
    assert okta.get("ResourceTypes/User").json["schemaExtensions"] == [
        {"schema": ENTERPRISE, "required": False},
        {"schema": custom, "required": False},
    ]
    assert "schemaExtensions" not in okta.get("ResourceTypes/Group").json


EXTENSION = {"department": "Sales", "manager": {"value": "7"}}
NAMED: list[tuple[str, str, Any]] = [
    ("attributes", f"{ENTERPRISE}:department", {"department": "Sales"}),
    ("attributes", f"{ENTERPRISE.lower()}:manager.value", {"manager": {"value": "7"}}),
    ("attributes", f"displayName,{ENTERPRISE}", EXTENSION),
    ("attributes", "displayName", None),
    ("excludedAttributes", f"{ENTERPRISE}:manager", {"department": "Sales"}),
    ("excludedAttributes", ENTERPRISE, None),
]


@pytest.mark.parametrize(("parameter", "value", "expected"), NAMED)
def test_scim_reads_mapped_attributes_that_are_named(
    cast: Cast, okta: Directory, parameter: str, value: str, expected: Any
) -> None:
    fields = [
        {"name": "department", "type": "text", "scim": f"{ENTERPRISE}:department"},
        {"name": "manager", "type": "text", "scim": f"{ENTERPRISE}:manager.value"},
    ]
    assert cast.root.put("attributes/users", {"fields": fields}).status_code == 200
    user = okta.make_user(**{ENTERPRISE: EXTENSION})
    shown = okta.get(f"Users/{user['id']}", query_string={parameter: value}).json
    assert shown.get(ENTERPRISE) == expected
    assert ("userName" in shown) is (parameter == "excludedAttributes")


MANAGERS = [
    ({"op": "add", "path": f"{ENTERPRISE}:manager", "value": {"value": "8"}}, "8"),
    ({"op": "Replace", "path": f"{ENTERPRISE}:manager", "value": "8"}, "8"),
    ({"op": "add", "path": f"{ENTERPRISE}:manager", "value": [{"$ref": "x", "value": "8"}]}, "8"),
    ({"op": "add", "value": {f"{ENTERPRISE}:manager": {"value": "8"}}}, "8"),
    ({"op": "add", "value": {ENTERPRISE: {"manager": {"value": "8"}}}}, "8"),
    ({"op": "add", "path": ENTERPRISE, "value": {"manager": {"value": "8"}}}, "8"),
    ({"op": "remove", "path": f"{ENTERPRISE}:manager"}, None),
    ({"op": "remove", "path": f"{ENTERPRISE}:manager.value"}, None),
    ({"op": "replace", "path": f"{ENTERPRISE}:division", "value": "x"}, "7"),
]


@pytest.mark.parametrize(("operation", "expected"), MANAGERS)
def test_scim_patches_a_part_of_a_complex_attribute(
    cast: Cast, okta: Directory, operation: dict[str, Any], expected: str | None
) -> None:
    fields = [{"name": "manager", "type": "text", "scim": f"{ENTERPRISE}:manager.value"}]
    assert cast.root.put("attributes/users", {"fields": fields}).status_code == 200
    user = okta.make_user(**{ENTERPRISE: {"manager": {"value": "7"}}})
    answer = okta.patch(f"Users/{user['id']}", patch(operation))
    assert answer.status_code == 200, answer.json
    assert stored(cast, user["id"])["attributes"].get("manager") == expected
