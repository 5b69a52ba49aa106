"""The isolation check attacks what extensions answer, and finds what leaks."""

from __future__ import annotations

import pytest

from app.isolation import prover
from app.isolation.prover import Report
from tests.builders import make_collection
from tests.extensions.folders import extended

pytestmark = pytest.mark.long

HEAD = """
from app.extend import Refused, Schema, account_admin, console_page, endpoint, fields, http
from app.extend.tables import Mapped, Table, Text, mapped_column

class Titles(Schema):
    titles = fields.List(fields.String())

class Wanted(Schema):
    post_id = fields.Id(required=True)

class Note(Table):
    __tablename__ = "notes"
    text: Mapped[str] = mapped_column(Text)

def titles_of(records):
    return {"titles": [one["title"] for one in records.list()["items"]]}
"""
SAFE = '''
@endpoint("GET", "/titles", answer=Titles)
def titles(caller, body):
    """List titles."""
    return titles_of(caller.records("posts"))

@endpoint("GET", "/entries/<uuid:post_id>", answer=Titles)
def title(caller, body, *, post_id):
    """Get a title."""
    return {"titles": [caller.records("posts").get(post_id)["title"]]}

@endpoint("POST", "/titles", body=Wanted, answer=Titles)
def wanted(caller, body):
    """Get a title."""
    return {"titles": [caller.records("posts").get(body["post_id"])["title"]]}

@endpoint("GET", "/notes/<uuid:note_id>", answer=Titles)
def note(caller, body, *, note_id):
    """Get a note."""
    return {"titles": [caller.table(Note).get(note_id)["text"]]}

@endpoint("DELETE", "/notes/<uuid:note_id>")
def remove(caller, body, *, note_id):
    """Delete a note."""
    caller.table(Note).delete(note_id)

@endpoint("POST", "/rates", body=Wanted, answer=Titles)
def rates(caller, body):
    """Ask another service."""
    try:
        http.post("http://127.0.0.1:9/rates", json={})
    except http.HttpError as error:
        raise Refused(code="unreachable", message=str(error)) from error

@console_page("/notes", title="Notes")
def notes(caller, request):
    return " ".join(one["text"] for one in caller.table(Note).list())
'''
CACHED = '''
_found = {}

@endpoint("GET", "/cached", answer=Titles)
def cached(caller, body):
    """Remember the first answer for everybody."""
    if "titles" not in _found:
        _found.update(titles_of(caller.records("posts")))
    return _found
'''
CACHED_POST = '''
_found = {}

@endpoint("POST", "/cached", body=Wanted, answer=Titles)
def cached(caller, body):
    """Remember each answer by its id."""
    if body["post_id"] not in _found:
        _found[body["post_id"]] = caller.records("posts").get(body["post_id"])["title"]
    return {"titles": [_found[body["post_id"]]]}
'''
UNSCOPED = '''
import sqlalchemy as sa
from app.context import tenancy
from app.db import db

@endpoint("GET", "/unscoped/<uuid:note_id>", answer=Titles)
def unscoped(caller, body, *, note_id):
    """Read a row past its account."""
    with tenancy.across_accounts():
        text = db.session.scalar(sa.select(Note.text).where(Note.id == note_id))
    return {"titles": [text]}
'''
PAGE = """
_seen = []

@console_page("/seen", title="Seen", access=account_admin)
def seen(caller, request):
    _seen.extend(one["text"] for one in caller.table(Note).list())
    return " ".join(_seen)
"""
OPERATOR = '''
_first = {}

@endpoint("GET", "/operator", answer=Titles)
def as_operator(caller, body):
    """Keep the rights of another account's operator."""
    if "caller" not in _first:
        with caller.as_operator("a test") as operator:
            _first["caller"] = operator
    _first["caller"]._has_ended = False
    return titles_of(_first["caller"].records("posts"))
'''


def check(leak: str) -> Report:
    files = {"planted/__init__.py": HEAD + SAFE + leak}
    with extended("sqlite", files=files) as one:
        from app.extensions import migrations

        with one.app.app_context():
            migrations.create("planted", "notes")
            migrations.upgrade()
        make_collection(one.cast.root)
        with one.app.app_context():
            return prover.prove(one.app, "/api/v1/x/|/console/x/|/console/accounts/.*/x/")


def test_extension_without_a_leak_passes() -> None:
    report = check("")
    assert report.routes == 8  # the page has two addresses
    assert not report.leaks
    assert not report.uncovered


@pytest.mark.parametrize(
    ("leak", "route"),
    [
        (CACHED, "/api/v1/x/planted/cached"),
        (CACHED_POST, "/api/v1/x/planted/cached"),
        (UNSCOPED, "/api/v1/x/planted/unscoped/<uuid:note_id>"),
        (PAGE, "/console/x/planted/seen"),
        (OPERATOR, "/api/v1/x/planted/operator"),
    ],
    ids=["cache", "cache of a POST", "unscoped", "page", "operator"],
)
def test_leak_of_an_extension_is_found_and_named(leak: str, route: str) -> None:
    report = check(leak)
    assert report.leaks
    assert {one.route for one in report.leaks} <= {
        route,
        route.replace("/x/", "/accounts/<uuid:account_id>/x/"),
    }
