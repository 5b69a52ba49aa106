"""Endpoints of extensions: routes of the API like any other."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.auth.test_operator_keys import operator
from tests.builders import Caller, make_collection
from tests.console.browser import sign_in
from tests.databases import DATABASES
from tests.extensions.folders import Extended, extended
from tests.receivers import receiving
from tests.security.reading import events
from tests.usage.test_quotas import limit

UNKNOWN_ID = "019a9f00-0000-7000-8000-00000000dead"

PARTS = """
from app.extend import Schema, console_page, endpoint, fields, signed_in

class Parts(Schema):
    parts = fields.String()

@endpoint("GET", "/<uuid:id>/<integer:number>/<string:code>/<other>", answer=Parts)
def parts(caller, body, **parts):
    return {"parts": repr([*parts.values()])}

@console_page("/<uuid:id>/<integer:number>", title="Parts", access=signed_in)
def page(caller, request, *, id, number):
    return f"{id} {number + 1}"

@endpoint("GET", "/entries/<string:post_id>", answer=Parts)
def post(caller, body, post_id):
    return {"parts": caller.records("posts").get(post_id)["title"]}

@endpoint("PATCH", "/entries/<string:post_id>")
def change_post(caller, body, post_id):
    caller.records("posts").update(post_id, {"title": "changed"})

@endpoint("DELETE", "/entries/<string:post_id>")
def remove_post(caller, body, post_id):
    caller.records("posts").delete(post_id)
"""


@pytest.fixture(scope="module", params=DATABASES)
def database(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def shop(database: str) -> Iterator[Extended]:
    """An application with the extension shop, and a collection posts."""
    with extended(database, "shop") as one:
        make_collection(one.cast.root)
        yield one


@pytest.fixture
def alice(shop: Extended) -> Caller:
    return shop.cast.alice


def test_answer_has_what_its_schema_says(alice: Caller) -> None:
    answer = alice.post("x/shop/quotes", {"units": 4})
    assert answer.status_code == 201
    assert answer.json == {"units": 4, "total": 6.0, "by": alice.email}
    assert answer.headers["Cache-Control"] == "no-store"
    assert "Authorization" in answer.headers["Vary"]


@pytest.mark.parametrize(
    ("body", "detail"),
    [
        ({}, ["body", "units"]),
        ({"units": "four"}, ["body", "units"]),
        ({"units": 0}, ["body", "units"]),
        ({"units": 4, "more": 1}, ["body", "more"]),
    ],
)
def test_body_that_does_not_fit_is_422(alice: Caller, body: Any, detail: list[str]) -> None:
    answer = alice.post("x/shop/quotes", body)
    assert answer.status_code == 422
    assert answer.json["detail"][0]["loc"] == detail


def test_refusal_names_the_field(alice: Caller) -> None:
    answer = alice.post("x/shop/quotes", {"units": 13})
    assert answer.status_code == 400
    problem = {"field": "units", "code": "unlucky", "message": "Take one more."}
    assert answer.json["details"] == [problem]


def test_query_is_parsed_and_unknown_parameters_are_refused(alice: Caller) -> None:
    assert alice.get("x/shop/prices?limit=5").status_code == 200
    assert alice.get("x/shop/prices?limit=0").status_code == 422
    assert alice.get("x/shop/prices?size=5").status_code == 422
    assert alice.get("x/shop/titles?size=5").status_code == 422


def test_path_takes_an_id(alice: Caller) -> None:
    assert alice.get("x/shop/prices/1").status_code == 422
    assert alice.get(f"x/shop/prices/{UNKNOWN_ID}").status_code == 404
    assert alice.get("x/shop/nothing").status_code == 404
    assert alice.get("x/other/prices").status_code == 404


def test_access_is_checked(shop: Extended, alice: Caller) -> None:
    cast, nobody = shop.cast, Caller(shop.app)
    price = {"article": "bolt", "amount": 1}
    assert nobody.post("x/shop/quotes", {"units": 4}).status_code == 401
    assert cast.bob.post("x/shop/quotes", {"units": 4}).status_code == 201
    assert cast.bob.post("x/shop/prices", price).status_code == 403
    assert alice.get("x/shop/instance").json["error"] == "superadmin_required"
    assert cast.root.get("x/shop/instance").status_code == 204
    assert nobody.get("x/shop/open").status_code == 401  # in which account?
    answer = nobody.acting_in("acme").get("x/shop/open")
    assert answer.json == {"units": 1, "total": 1.0, "by": "anonymous"}


def test_read_only_key_may_read(alice: Caller) -> None:
    made = alice.post("api-keys", {"name": "reader", "read_only": True})
    key = Caller(alice.app, **{"X-API-Key": made.json["key"]})
    assert key.get("x/shop/prices").status_code == 200
    assert key.post("x/shop/estimates", {"units": 2}).status_code == 200
    assert key.post("x/shop/quotes", {"units": 2}).json["error"] == "read_only_key"


def test_key_with_scopes_may_call_no_endpoint(alice: Caller) -> None:
    made = alice.post("api-keys", {"name": "scoped", "scopes": {"posts": ["list"]}})
    key = Caller(alice.app, **{"X-API-Key": made.json["key"]})
    assert key.get("x/shop/titles").json["error"] == "scope_denied"


def test_operator_key_needs_the_declared_scope(shop: Extended) -> None:
    accounts = operator(shop.app, shop.cast.root, "accounts:read")
    users = operator(shop.app, shop.cast.root, "users:read")
    assert accounts.get("x/shop/instance").status_code == 204
    assert users.get("x/shop/instance").json["error"] == "scope_denied"
    assert (
        accounts.acting_in("acme").post("x/shop/quotes", {"units": 4}).json["error"]
        == "scope_denied"
    )


def test_handler_sees_what_its_caller_may_see(shop: Extended) -> None:
    cast = shop.cast
    cast.charlie.post("records/posts", {"title": "of globex"})
    assert "of globex" in cast.charlie.get("x/shop/titles").json["titles"]
    assert "of globex" not in cast.alice.get("x/shop/titles").json["titles"]


def test_all_that_a_handler_writes_is_one_transaction(alice: Caller) -> None:
    assert alice.post("x/shop/entries", {"title": "two"}).status_code == 200
    assert alice.post("x/shop/entries", {"title": "too much"}).status_code == 400
    titles = alice.get("x/shop/titles").json["titles"]
    assert {"two", "two again"} <= {*titles}
    assert not [one for one in titles if one.startswith("too much")]


def test_changes_name_the_extension(shop: Extended, alice: Caller) -> None:
    alice.post("x/shop/entries", {"title": "audited"})
    entry = shop.cast.root.acting_in("acme").get("audit-logs?limit=1").json["items"][0]
    assert entry["new_value"] == "audited again"
    assert entry["actor"] == {"kind": "extension", "id": "shop", "name": "shop"}
    assert entry["user_id"] == alice.id


def test_repeated_request_runs_once(alice: Caller) -> None:
    headers = {"Idempotency-Key": "once"}
    first = alice.post("x/shop/entries", {"title": "idempotent"}, headers=headers)
    again = alice.post("x/shop/entries", {"title": "idempotent"}, headers=headers)
    assert again.headers["Idempotent-Replayed"] == "true"
    assert (first.status_code, first.json) == (again.status_code, again.json)
    titles = alice.get("x/shop/titles").json["titles"]
    assert titles.count("idempotent") == 1


@pytest.mark.parametrize("path", ["broken", "unfit", "writes"])
def test_failure_is_a_500_that_tells_nothing(
    alice: Caller, path: str, capsys: pytest.CaptureFixture[str]
) -> None:
    answer = alice.get(f"x/shop/{path}")
    assert answer.status_code == 500
    assert answer.json["error"] == "internal_error"
    assert "secret" not in answer.text
    assert "GET" not in str(alice.get("x/shop/titles").json)
    told = capsys.readouterr().out
    lines = [line for line in told.splitlines() if "extension failed" in line]
    assert '"extension":"shop"' in lines[0]
    assert "secret" not in told


def test_outgoing_requests_are_checked(alice: Caller) -> None:
    with receiving(lambda request: (200, '{"rate": 2.5}')) as service:
        answer = alice.post("x/shop/rates", {"url": service.url})
    assert answer.json["total"] == 2.5
    refused = alice.post("x/shop/rates", {"url": "ftp://example.com/"})
    assert refused.json["details"][0]["code"] == "unreachable"


def test_endpoints_are_described(shop: Extended) -> None:
    description = shop.app.test_client().get("/openapi.json").json
    quote = description["paths"]["/api/v1/x/shop/quotes"]["post"]
    assert quote["operationId"] == "x_shop_quote"
    assert quote["summary"] == "Quote a price."
    assert quote["tags"] == ["x_shop"]
    answer = quote["responses"]["201"]["content"]["application/json"]["schema"]
    assert answer == {"$ref": "#/components/schemas/ShopQuote"}
    assert {"400", "401", "403", "409", "422", "429"} <= {*quote["responses"]}
    path = description["paths"]["/api/v1/x/shop/prices/{price_id}"]["parameters"]
    assert path[-1]["description"] == "Price id."
    assert {"name": "x_shop"}.items() <= description["tags"][-1].items()


def test_users_of_another_origin_get_no_cors(alice: Caller) -> None:
    answer = alice.get("x/shop/titles", headers={"Origin": "https://app.example"})
    assert "Access-Control-Allow-Origin" not in answer.headers
    alice.patch("account", {"cors_origins": ["https://app.example"]})
    answer = alice.get("x/shop/titles", headers={"Origin": "https://app.example"})
    assert answer.headers["Access-Control-Allow-Origin"] == "https://app.example"


def test_endless_endpoint_is_stopped_and_named(capsys: pytest.CaptureFixture[str]) -> None:
    text = (
        "from app.extend import endpoint\n"
        '@endpoint("POST", "/endless")\ndef endless(caller, body):\n    while True:\n        pass\n'
    )
    files, changes = {"stuck/__init__.py": text}, {"statement_seconds": 1}
    with extended("sqlite", files=files, changes=changes) as one:
        answer = one.cast.alice.post("x/stuck/endless")
    assert answer.status_code == 500
    lines = [one for one in capsys.readouterr().out.splitlines() if "extension failed" in one]
    assert '"handler":"stuck.endless"' in lines[0]


def test_calls_count_towards_the_quota_of_requests(shop: Extended) -> None:
    root, charlie = shop.cast.root, shop.cast.charlie
    limit(root, charlie, requests=0)
    charlie.get("x/shop/titles")  # by what was cached
    refused = charlie.get("x/shop/titles")
    limit(root, charlie, requests=1_000_000)
    assert refused.json["error"] == "quota_exceeded"


def test_look_of_a_superadmin_is_in_the_log_of_the_account(shop: Extended) -> None:
    assert shop.cast.root.acting_in("acme").get("x/shop/prices").status_code == 200
    seen = events(shop.cast.alice, kind="operator.request")
    assert "/api/v1/x/shop/prices" in str(seen)


def test_read_may_take_an_operators_rights_which_is_logged(shop: Extended, alice: Caller) -> None:
    shop.cast.charlie.post("records/posts", {"title": "of globex alone"})
    titles = alice.get("x/shop/all-titles").json["titles"]
    assert "of globex alone" not in titles
    (event,) = events(alice, kind="extension.as_operator")
    assert event["details"]["handler"] == "shop.all_titles"


def test_parts_of_a_path_have_their_types(database: str) -> None:
    with extended(database, files={"parts/__init__.py": PARTS}) as one:
        make_collection(one.cast.root)
        alice, id = one.cast.alice, "019a9f00-0000-7000-8000-00000000beef"
        assert alice.get(f"x/parts/{id.upper()}/007/007/a").json == {
            "parts": f"['{id}', 7, '007', 'a']"
        }
        client = one.app.test_client()
        sign_in(client, alice)
        assert f"{id} 8" in client.get(f"/console/x/parts/{id.upper()}/007").text
        post = alice.post("records/posts", {"title": "of acme"}).json["id"]
        assert alice.get(f"x/parts/entries/{post.upper()}").json == {"parts": "of acme"}
        assert alice.patch(f"x/parts/entries/{post.upper()}").status_code == 204
        assert alice.get(f"records/posts/{post}").json["title"] == "changed"
        for unknown in (f"{post}x", "%F0%9F%98%80", "x"):
            assert alice.get(f"x/parts/entries/{unknown}").status_code == 404
        assert alice.delete(f"x/parts/entries/{post.upper()}").status_code == 204
        assert alice.get(f"records/posts/{post}").status_code == 404
