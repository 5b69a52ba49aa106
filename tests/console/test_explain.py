"""Explain: whether a rule lets somebody at a record, and which part of it decides."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests import builders
from tests.builders import Cast, make_collection, make_record
from tests.console.browser import HOSTILE, Browser, beside
from tests.console.test_collections import NONE, marks, rows

RULE = "@has_role(admin) && title != 'secret' || title = 'open'"
SQL = "SQL query"


CREATE_RULE = "@has_role(admin) && @request.data.title = 'new'"


@pytest.fixture
def posts(cast: Cast) -> dict[str, str]:
    """The ids of a collection, and of an open and a secret record of acme."""
    made = make_collection(cast.root, view_rule=RULE, list_rule="", update_rule=None)
    ids = {title: make_record_id(cast, title) for title in ("open", "secret", "plain")}
    assert cast.root.put("collections/posts/rules", {"create_rule": CREATE_RULE}).status_code == 200
    return {"posts": made["id"], **ids}


def make_record_id(cast: Cast, title: str) -> str:
    return str(make_record(cast.alice, title=title)["id"])


def ask(browser: Browser, posts: dict[str, str], **changes: Any) -> Any:
    """Send the form, by default for alice."""
    form = {"operation": "view", "who": "user", "account": "acme", "email": "alice@acme.example"}
    return browser.send(f"collections/{posts['posts']}/explain", **{**form, **changes})


def verdict(page: str) -> tuple[str, str]:
    """What the page says first, and why."""
    state = re.search(r'class="state \w+">([^<]*)<', page.partition("<main")[2])
    reason = re.search(r'role="status">([^<]*)<', page)
    assert state
    assert reason
    return state[1], reason[1]


CASES = [
    ("alice", "plain", "allowed", "@has_role(admin) && title != 'secret'", "plain"),
    ("alice", "secret", "not allowed", RULE, "secret"),
    ("bob", "open", "allowed", "title = 'open'", "open"),
    ("bob", "plain", "not allowed", RULE, "plain"),
]


@pytest.mark.parametrize(("name", "title", "state", "marked", "value"), CASES)
def test_explain_marks_deciding_part_of_rule(
    cast: Cast,
    superadmin: Browser,
    posts: dict[str, str],
    name: str,
    title: str,
    state: str,
    marked: str,
    value: str,
) -> None:
    caller = getattr(cast, name)
    page = ask(superadmin, posts, email=caller.email.upper(), record_id=posts[title]).text
    assert verdict(page)[0] == state
    assert marks(page) == [marked]
    assert ["title", value] in rows(page, "Values used")
    assert SQL in page
    status = caller.get(f"records/posts/{posts[title]}").status_code
    assert status == (200 if state == "allowed" else 404)


def test_explain_without_record_shows_what_it_depends_on(
    cast: Cast, superadmin: Browser, posts: dict[str, str]
) -> None:
    page = ask(superadmin, posts, email=cast.bob.email).text
    assert verdict(page)[0] == "it depends"
    assert marks(page) == ["title = 'open'"]
    assert SQL in page


def test_explain_accepts_sent_data(superadmin: Browser, posts: dict[str, str]) -> None:
    cases = [("", "it depends"), ('{"title": "new"}', "allowed"), ("{}", "not allowed")]
    for data, state in cases:
        page = ask(superadmin, posts, operation="create", data=data).text
        said, reason = verdict(page)
        assert said == state
        part = "@request.data.title = 'new'" if state != "allowed" else CREATE_RULE
        assert marks(page) == [part]
        assert ("on what is sent" in reason) is (data == "")
        values = dict(rows(page, "Parameters"))
        assert values["_sent_title"] == ("new" if state == "allowed" else "null")


def test_explain_of_update_tells_whether_before_or_after_decides(
    cast: Cast, superadmin: Browser, posts: dict[str, str]
) -> None:
    rules = {"update_rule": "title = 'plain' && @has_role(admin)"}
    assert cast.root.put("collections/posts/rules", rules).status_code == 200
    for title, when in (("open", "as it is"), ("plain", "as it would be")):
        data = {"data": '{"title": "other"}', "record_id": posts[title], "operation": "update"}
        said, reason = verdict(ask(superadmin, posts, **data).text)
        assert said == "not allowed"
        assert f"does not hold for the record {when} and" in reason


def test_explain_of_null_or_empty_rule_is_in_words(
    superadmin: Browser, posts: dict[str, str]
) -> None:
    cases = [
        ({"operation": "update"}, "not allowed", "The rule is null"),
        ({"operation": "list"}, "allowed", "The rule is empty"),
        ({"operation": "delete"}, "allowed", "The rule is true"),
        ({"operation": "delete", "who": "nobody"}, "not allowed", "The rule is true"),
        ({"account": "system", "email": "root@system.example"}, "allowed", "Superadmins"),
    ]
    for changes, state, reason in cases:
        found = verdict(ask(superadmin, posts, **changes).text)
        assert (found[0], found[1].startswith(reason)) == (state, True), changes


def test_explain_for_anonymous_caller_needs_no_account(
    superadmin: Browser, posts: dict[str, str]
) -> None:
    nobody = {"who": "nobody", "account": "", "email": ""}
    for title, state in (("open", "allowed"), ("plain", "not allowed")):
        page = ask(superadmin, posts, **nobody, record_id=posts[title].upper()).text
        assert verdict(page)[0] == state
    answer = ask(superadmin, posts, who="nobody", account="globex", record_id=posts["open"])
    assert "No record with this id" in beside(answer, "record_id")


def test_explain_asks_for_account_when_rule_needs_it(
    cast: Cast, superadmin: Browser, posts: dict[str, str]
) -> None:
    rules = {"create_rule": "account_id != null"}
    assert cast.root.put("collections/posts/rules", rules).status_code == 200
    sent = {"who": "nobody", "email": "", "operation": "create", "data": "{}"}
    answer = ask(superadmin, posts, **sent, account="")
    assert (answer.status_code, "name it" in beside(answer, "account")) == (400, True)
    assert verdict(ask(superadmin, posts, **sent).text)[0] == "allowed"


REFUSED = [
    ({"email": ""}, "email", "Required."),
    ({"account": ""}, "account", "Required."),
    ({"account": "nope"}, "account", "No active account with this id."),
    ({"account": "globex"}, "email", "This account has no active user with this address."),
    ({"email": HOSTILE}, "email", "This account has no active user with this address."),
    ({"operation": "drop"}, "operation", "Choose one of the options."),
    ({"who": "root"}, "who", "Choose one of the options."),
    ({"record_id": "x"}, "record_id", "This is not a record id."),
    ({"record_id": "0" * 37}, "record_id", "At most 36 characters."),
    ({"record_id": NONE}, "record_id", "No record with this id in this account. Records of"),
    ({"data": "{}"}, "data", "Only creating and updating take data."),
    ({"data": "[1]", "operation": "create"}, "data", "Enter a JSON object"),
    ({"data": "{", "operation": "create"}, "data", "Enter a JSON object"),
    (
        {"data": "{}", "operation": "create", "record_id": NONE},
        "data",
        "A new record does not exist",
    ),
    ({"data": '{"title": 5}', "operation": "create"}, "data", "title: "),
]


@pytest.mark.parametrize(("changes", "name", "message"), REFUSED)
def test_explain_form_errors_are_shown_beside_fields(
    superadmin: Browser, posts: dict[str, str], changes: dict[str, str], name: str, message: str
) -> None:
    answer = ask(superadmin, posts, **changes)
    assert (answer.status_code, beside(answer, name)[: len(message)]) == (400, message)
    assert HOSTILE not in answer.text
    assert SQL not in answer.text
    kept = changes.get("account", "acme")
    assert f'name="account" type="text" autocomplete="off" value="{kept}"' in answer.text


def test_explain_of_record_of_other_account_is_400(
    cast: Cast, superadmin: Browser, posts: dict[str, str]
) -> None:
    charlie = {"account": "globex", "email": cast.charlie.email, "record_id": posts["open"]}
    answer = ask(superadmin, posts, **charlie)
    assert (answer.status_code, "never visible" in beside(answer, "record_id")) == (400, True)


def test_explain_for_deactivated_user_is_error_beside_email(
    cast: Cast, superadmin: Browser, posts: dict[str, str]
) -> None:
    builders.change_user(cast.root.app, cast.bob.id, is_active=False)
    answer = ask(superadmin, posts, email=cast.bob.email)
    assert "no active user" in beside(answer, "email")


def test_explain_link_presets_operation_and_record(
    superadmin: Browser, posts: dict[str, str]
) -> None:
    query = f"operation=update&record_id={posts['open']}"
    page = superadmin.get(f"collections/{posts['posts']}/explain?{query}").text
    assert '<option value="update" selected>update</option>' in page
    assert f'value="{posts["open"]}"' in page
    plain = superadmin.get(f"collections/{posts['posts']}/explain").text
    assert '<option value="view" selected>view</option>' in plain


def test_explain_shows_values_of_every_type(cast: Cast, superadmin: Browser) -> None:
    fields = [("n", "number"), ("flag", "boolean"), ("due", "date"), ("text", "text")]
    schema = [{"name": name, "type": kind} for name, kind in fields]
    rule = "n > 1.5 && flag = true && due < '2030-01-01' && text = null"
    made = make_collection(cast.root, "tasks", schema, view_rule=rule)
    values = {"n": 2.5, "flag": True, "due": "2029-12-31"}
    shown = make_record(cast.alice, "tasks", **values)["id"]
    page = ask(superadmin, {"posts": made["id"]}, record_id=shown).text
    assert (verdict(page)[0], marks(page)) == ("allowed", [rule])
    table = dict(rows(page, "Values used"))
    assert table == {"n": "2.5", "flag": "true", "due": "2029-12-31", "text": "null"}


def test_explain_suggests_accounts_users_and_records(
    cast: Cast, superadmin: Browser, admin: Browser, posts: dict[str, str]
) -> None:
    strange = make_record(cast.charlie, title="new")["id"]
    explain = f"collections/{posts['posts']}/explain"

    def found(path: str) -> list[tuple[str, str]]:
        answer = superadmin.get(path)
        assert answer.status_code == 200, path
        return [(one["id"], one["label"]) for one in answer.json["options"]]

    code = cast.alice.get("account").json["account_code"]
    assert found("accounts/options?text=ACM") == [(code, f"Acme ({code})")]
    assert found("accounts/options?text=%25") == []
    assert [id for id, _ in found(f"{explain}/users?account=acme")] == [
        "alice@acme.example",
        "bob@acme.example",
    ]
    assert [id for id, _ in found(f"{explain}/users?account={code}&text=BOB")] == [
        "bob@acme.example"
    ]
    assert found(f"{explain}/records?account=acme&text=secr") == [(posts["secret"], "secret")]
    assert found(f"{explain}/records?account=acme&text={strange}") == []
    for account in ("", "nowhere", "x" * 5000):
        for what in ("users", "records"):
            assert found(f"{explain}/{what}?account={account}") == []
    for path in ("accounts/options", f"{explain}/users?account=acme", f"{explain}/records"):
        assert admin.get(path).status_code == 403


def test_explain_shows_chosen_items_by_name(
    cast: Cast, superadmin: Browser, posts: dict[str, str]
) -> None:
    page = ask(superadmin, posts, record_id=posts["secret"]).text
    assert 'data-label="secret"' in page
    assert 'data-label="Acme (' in page
    other = make_record(cast.charlie, title="new")["id"]
    assert 'data-label="new"' not in ask(superadmin, posts, record_id=other).text
    superadmin.get(f"records/{cast.charlie.account_id}/posts")
    assert 'data-label="Globex (' in superadmin.get(f"collections/{posts['posts']}/explain").text


def test_explanation_by_correlation_id_of_refusal(cast: Cast, posts: dict[str, str]) -> None:
    cast.root.put("collections/posts/rules", {"update_rule": "@has_role(admin)"})
    refused = cast.bob.patch(f"records/posts/{posts['open']}", {"title": "x"}).json
    browser = Browser(cast.root.app, cast.root)
    page = browser.get(f"explain/{refused['explain_id']}").text
    assert verdict(page)[0] == "not allowed"
    assert "bob@acme.example" in page
    assert posts["open"] in page
    assert browser.get("explain/nonsense").status_code == 404
    assert Browser(cast.alice.app, cast.alice).get(
        f"explain/{refused['explain_id']}"
    ).status_code in (
        302,
        303,
        403,
    )
