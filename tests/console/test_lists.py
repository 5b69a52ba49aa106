"""Lists: every one has pages, and its search and filters stay while one leafs."""

from __future__ import annotations

import html
import re
from dataclasses import replace

import pytest
from flask import Flask

from app import clock
from app.accounts import groups, roles, tenants
from app.accounts import users as users
from app.accounts.models import Group
from app.auth import api_keys, invitations, sessions
from app.auth import principal as principals
from app.auth import service as auth
from app.auth.devices import Origin
from app.auth.mfa.gate import Proof
from app.collections import service as collections
from app.console.shell import lists
from app.db import db, transaction
from tests import builders
from tests.builders import Cast
from tests.console.browser import Browser

pytestmark = pytest.mark.both_databases
SIZE, MANY = 10, 12
ROW = re.compile(r'<th scope="row"')


@pytest.fixture
def crowd(app: Flask, cast: Cast, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """More of everything in acme than one (smaller) page shows; the ids that paths need."""
    monkeypatch.setattr(lists, "PAGE_SIZE", SIZE)
    acme = cast.alice.account_id
    with app.app_context(), transaction():
        caller = principals.for_user(acme, cast.alice.id)
        assert caller
        caller = replace(caller, auth_time=clock.now().timestamp())
        group = groups.create(acme, "crowd", None)
        for n in range(MANY):
            user = users.create(acme, {"email": f"member{n}@acme.example"}, None)
            groups.add_member(acme, group.id, user.id)
            groups.create(acme, f"group {n}", None)
            roles.create(f"role {n}", None)
            tenants.create(f"Member {n}", None)
            api_keys.create({"name": f"key {n}"}, by=caller)
            invitations.create(acme, {"email": f"guest{n}@acme.example"}, by=None)
            sessions.start(auth.get_user(caller), Origin(None, None), Proof.PASSWORD)
    return {"acme": acme, "group": group.id}


LISTS = [
    ("alice", "team", {"search": "member"}),
    ("alice", "team/invitations", {"status": "pending"}),
    ("alice", "groups", {"search": "group"}),
    ("alice", "groups/{group}", {}),
    ("alice", "keys", {}),
    ("alice", "profile", {}),
    ("root", "accounts", {"search": "Member"}),
    ("root", "accounts/{acme}", {"search": "member"}),
    ("root", "users", {"search": "member"}),
    ("root", "roles", {}),
    ("root", "collections", {"search": "Thing"}),
]


def rows(page: str) -> list[str]:
    """The rows of the list; the profile shows API keys below it."""
    return ROW.findall(page.partition("<h2>API keys</h2>")[0])


def test_console_lists_have_pages_that_keep_search_and_filters(
    app: Flask, cast: Cast, crowd: dict[str, str]
) -> None:
    with app.app_context():
        for n in range(MANY):
            collections.create(f"things{n}", [{"name": "title", "type": "text"}], {})
    browsers = {name: Browser(app, getattr(cast, name)) for name in ("alice", "root")}
    for name, path, narrowed in LISTS:
        client, path = browsers[name].client, f"/console/{path.format(**crowd)}"
        first = client.get(path, query_string=narrowed).text
        assert ("Page 1 of 2" in first, len(rows(first))) == (True, SIZE), path
        (target,) = re.findall(r'<a class="btn" rel="next" href="([^"]*)"', first)
        second = client.get(html.unescape(target)).text
        rest = len(rows(second))
        # Beside the crowd: seeded roles, the browser's own session.
        assert rest == MANY - SIZE or (not narrowed and 1 <= rest <= 5), path
        (target,) = re.findall(r'<a class="btn" rel="prev" href="([^"]*)"', second)
        assert rows(client.get(html.unescape(target)).text) == rows(first)
        for value in narrowed.values():
            assert f'value="{value}"' in second or f"<option selected>{value}<" in second


def test_console_list_page_out_of_range_leads_back(admin: Browser, crowd: dict[str, str]) -> None:
    for odd in ("0", "-1", "x", "9" * 30):
        assert len(ROW.findall(admin.get(f"keys?page={odd}").text)) == SIZE
    for path in ("keys", f"groups/{crowd['group']}", "team/invitations"):
        late = admin.get(f"{path}?page=9999999").text
        assert f'href="/console/{path}">Show all' in late
        assert f'href="/console/{path}?page=2">Previous' in late


def test_console_list_pager_of_refused_form_leads_to_list(
    admin: Browser, superadmin: Browser, crowd: dict[str, str]
) -> None:
    cases = [
        (admin, "profile", "profile/password"),
        (admin, f"groups/{crowd['group']}", f"groups/{crowd['group']}/members"),
        (superadmin, f"accounts/{crowd['acme']}", f"accounts/{crowd['acme']}/close"),
    ]
    for browser, path, form in cases:
        refused = browser.send(form)
        assert refused.status_code == 400
        assert f'href="/console/{path}?page=2">Next' in refused.text, path


def test_console_invitation_list_filters_by_state(
    app: Flask, admin: Browser, ids: dict[str, str]
) -> None:
    assert len(ROW.findall(admin.get("team/invitations?status=pending").text)) == 1
    nothing = admin.get("team/invitations?status=accepted").text
    assert "No matches." in nothing
    assert len(ROW.findall(admin.get("team/invitations?status=nonsense").text)) == 1
    admin.done(f"team/invitations/{ids['invitation']}/cancel")
    cancelled = admin.get("team/invitations?status=cancelled").text
    assert len(ROW.findall(cancelled)) == 1
    assert "Send again" not in cancelled


def test_console_group_members_beyond_first_page_can_be_removed(
    app: Flask, admin: Browser, crowd: dict[str, str]
) -> None:
    with app.app_context():
        group = db.session.query(Group).filter_by(id=crowd["group"]).one()
        last = groups.members(group)[-1]
    page = admin.get(f"groups/{crowd['group']}?page=2").text
    assert last.email in page
    admin.done(f"groups/{crowd['group']}/members/{last.id}/remove")
    assert last.email not in admin.get(f"groups/{crowd['group']}?page=2").text.partition("<form")[0]


def test_console_record_list_counts_above_limit_on_demand(
    cast: Cast, admin: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    builders.make_collection(cast.root)
    batch = [{"title": f"t{n}"} for n in range(60)]
    assert cast.alice.post("records/posts/batch", {"records": batch}).status_code == 201
    monkeypatch.setattr(lists, "MAX_COUNTED", 30)
    path = f"records/{cast.alice.account_id}/posts"
    first = admin.get(path).text
    assert "More than 30 records" in first
    assert "Page 1 of more than 2" in first
    last = admin.get(f"{path}?page=3").text
    assert (len(ROW.findall(last)), 'rel="next"' in last) == (10, False)
    assert f'{path}?page=2">Previous' in last
    (target,) = re.findall(r'<a href="([^"]*)">Count all', first)
    counted = admin.client.get(html.unescape(target)).text
    assert ("60 records, sorted" in counted, "Page 1 of 3" in counted) == (True, True)
    assert "count=all" in re.findall(r'rel="next" href="([^"]*)"', counted)[0]
    assert "30 records, sorted" in admin.get(f"{path}?filter=title+<+'t36'").text


def test_console_record_search_without_index_covers_newest_records(
    cast: Cast, admin: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    schema = [{"name": "title", "type": "text"}, {"name": "quick", "type": "text", "unique": True}]
    builders.make_collection(cast.root, schema=schema)
    batch = [{"title": f"t{n:02}", "quick": f"q{n:02}"} for n in range(40)]
    for some in (batch[:10], batch[10:]):
        assert cast.alice.post("records/posts/batch", {"records": some}).status_code == 201
    monkeypatch.setattr(lists, "MAX_SCANNED", 29)
    path = f"records/{cast.alice.account_id}/posts"
    for quick in ("", "?sort=quick", "?field_0=quick&op_0=%3D&value_0=q00", "?sort=id"):
        assert "were searched" not in admin.get(path + quick).text, quick
    for dear in ("sort=title", "field_0=title&op_0=starts&value_0=t0"):
        first = admin.get(f"{path}?{dear}").text
        assert "only the newest 29 were searched" in first
        assert ">t00<" not in first
        (target,) = re.findall(r'<a href="([^"]*)">Search all \(may', first)
        whole = admin.client.get(html.unescape(target)).text
        assert (">t00<" in whole, "were searched" in whole) == (True, False)


def test_console_user_search_covers_newest_users(
    app: Flask, cast: Cast, admin: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    for n in range(5):
        builders.make_user(app, cast.alice.account_id, f"new{n}@acme.example")
    monkeypatch.setattr(lists, "MAX_SCANNED", 5)
    found = admin.get("team?search=alice").text
    assert ("No matches" in found, "were searched" in found) == (True, True)
    assert len(ROW.findall(admin.get("team?search=alice&look=all").text)) == 1
    assert len(ROW.findall(admin.get("team?search=new").text)) == 5
