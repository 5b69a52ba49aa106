"""Tables of extensions: rows of one account, in all that is done with rows of accounts."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from app import db
from app.context import tenancy
from app.db import policies
from app.db.policy import OnClose
from app.errors import Conflict
from app.extensions import loading, migrations, registry
from app.extensions.registry import LoadError
from app.portability.bundle import tables as bundled
from app.records import purge
from tests.audit.chains import verified
from tests.builders import Caller, make_collection
from tests.bundle import accounts as bundles
from tests.databases import DATABASES
from tests.extensions.folders import Extended, extended

TABLE, VERSION = "x_shop_prices", "alembic_version_x_stock"
MODEL = """
from datetime import datetime
from decimal import Decimal
from app.extend.tables import Mapped, Table, UniqueConstraint, mapped_column, Text

class Thing(Table):
    __tablename__ = "things"
    name: Mapped[str] = mapped_column(Text)
"""
NOTES = """
from datetime import date
from app.extend import Schema, endpoint, fields
from app.extend.tables import ForeignKeyConstraint, Mapped, Table, Text, mapped_column

class Note(Table):
    __tablename__ = "notes"
    __table_args__ = (
        ForeignKeyConstraint(
            ["account_id", "user_id"], ["users.account_id", "users.id"], ondelete="CASCADE"
        ),
    )
    __hidden__ = ("secret",)
    user_id: Mapped[str] = mapped_column(Text)
    text: Mapped[str] = mapped_column(Text)
    secret: Mapped[str] = mapped_column(Text)
    due_on: Mapped[date]

class Body(Schema):
    text = fields.Text()

@endpoint("POST", "/notes", body=Body)
def add(caller, body):
    values = {"text": body["text"], "secret": "x", "due_on": date(2026, 12, 1)}
    caller.table(Note).create(user_id=caller.user.id, **values)

@endpoint("GET", "/notes", answer=Body(many=True))
def show(caller, body):
    return caller.table(Note).list()
"""

PRYING = """
@endpoint("GET", "/prying/<string:name>", answer=Body)
def pry(caller, body, *, name):
    models = {one.class_.__name__: one.class_ for one in Table.registry.mappers}
    try:
        caller.table({**models, "Table": Table, "Note": Note}[name])
    except TypeError:
        return {"text": "refused"}
    return {"text": "open"}
"""
CAUGHT = """
from app.extend import Conflict, NotFound, Schema, endpoint, fields
from app.extend.tables import Mapped, Table, UniqueConstraint, mapped_column, Text

class Thing(Table):
    __tablename__ = "things"
    __table_args__ = (UniqueConstraint("account_id", "name"),)
    name: Mapped[str] = mapped_column(Text)

@endpoint("POST", "/twice", answer=Schema.from_dict({"names": fields.List(fields.String())}))
def twice(caller, body):
    things = caller.table(Thing)
    saw = things.create(name="saw")
    try:
        things.create(name="saw")
    except Conflict:
        things.update(saw["id"], name="saw")
    other = things.create(name="axe")
    for id in (other["id"] + "x", "a\\0", "\\ud800"):
        try:
            things.update(id, name="drill")
        except NotFound:
            pass
    try:
        things.create(name="a\\0b")
    except ValueError:
        pass
    try:
        things.update(other["id"], name="saw")
    except Conflict:
        caller.records("posts").create({"title": "after"})
    return {"names": [one["name"] for one in things.list()]}
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


def add(caller: Caller, article: str) -> str:
    made = caller.post("x/shop/prices", {"article": article, "amount": 2})
    assert made.status_code == 201, made.json
    return str(made.json["id"])


def test_rows_belong_to_one_account(shop: Extended) -> None:
    alice, charlie = shop.cast.alice, shop.cast.charlie
    id = add(alice, "saw")
    assert alice.get(f"x/shop/prices/{id}").json["article"] == "saw"
    assert charlie.get(f"x/shop/prices/{id}").status_code == 404
    assert charlie.patch(f"x/shop/prices/{id}", {"amount": 3}).status_code == 404
    assert charlie.delete(f"x/shop/prices/{id}").status_code == 404
    assert charlie.get("x/shop/prices").json == []
    assert alice.get("x/shop/prices?article=saw").json[0]["id"] == id
    add(charlie, "saw")  # unique within each account
    taken = alice.post("x/shop/prices", {"article": "saw", "amount": 2})
    assert (taken.status_code, taken.json["field"]) == (409, "article")
    assert alice.patch(f"x/shop/prices/{id.upper()}", {"amount": 3}).json["amount"] == 3
    assert alice.delete(f"x/shop/prices/{id}").status_code == 204
    assert alice.get(f"x/shop/prices/{id}").status_code == 404


def test_changes_are_audited(shop: Extended) -> None:
    alice, root = shop.cast.alice, shop.cast.root.acting_in("acme")
    id = add(alice, "axe")
    entries = root.get(f"audit-logs?table_name={TABLE}&record_id={id}").json["items"]
    values = {one["column_name"]: one["new_value"] for one in entries}
    assert values["article"] == "axe"
    assert values["note"] == "***"
    assert {one["actor"]["kind"] for one in entries} == {"extension"}


def test_database_separates_accounts_too(shop: Extended) -> None:
    add(shop.cast.alice, "drill")
    with shop.app.app_context():
        if db.has_one_writer():
            return
        with tenancy.in_account(shop.cast.charlie.account_id):
            table = sa.table(TABLE, sa.column("account_id"))
            seen = db.connection().scalars(sa.select(table.c.account_id).distinct()).all()
    assert set(seen) <= {shop.cast.charlie.account_id}


def test_policy_is_that_of_a_tenant_table(shop: Extended) -> None:
    policy = policies()[TABLE]
    assert policy.on_close is OnClose.DELETED
    assert policy.id_names == ("price_id",)
    assert TABLE in bundled.bundled()
    with shop.app.app_context():
        keys = sa.inspect(db.db.engine).get_pk_constraint(TABLE)["constrained_columns"]
    assert keys == ["account_id", "id"]


def test_doctor_sees_tables_of_extensions_that_are_gone(shop: Extended) -> None:
    with shop.app.app_context():
        assert migrations.check().state == "ok"
        with registry.restored():
            registry.EXTENSIONS.clear()
            found = migrations.check()
    assert found.state == "warn"
    assert TABLE in found.message


def test_revision_is_written_from_the_models() -> None:
    files = {"stock/__init__.py": MODEL}
    with extended("sqlite", files=files) as one, one.app.app_context():
        assert migrations.check().state == "fail"  # a table without a revision
        file = migrations.create("stock", "add things")
        text = file.read_text()
        assert file.name == "0001_add_things.py"
        assert "op.create_table('x_stock_things'" in text
        assert "posts" not in text
        ready = one.app.test_client().get("/ready")
        expected = "stock: run bin/atrium release"
        assert (ready.status_code, ready.json["checks"]["extensions"]) == (503, expected)
        with pytest.raises(Conflict, match="release"):
            migrations.create("stock", "again")
        assert migrations.upgrade() == ["stock"]
        assert migrations.upgrade() == []
        assert migrations.check().state == "ok"
        assert one.app.test_client().get("/ready").json["checks"]["extensions"] == "ok"
        # That of a newer process, while this one still runs.
        newer = sa.update(sa.table(VERSION, sa.column("version_num"))).values(version_num="newer")
        with tenancy.as_owner(), db.transaction() as session:
            session.execute(newer)
        assert migrations.check().state == "ok"
        assert migrations.lacking() == []
        with tenancy.as_owner(), db.transaction() as session:
            session.execute(newer.values(version_num="stock_0001"))
        with pytest.raises(Conflict, match="nothing to do"):
            migrations.create("stock", "again")


def test_revision_leaves_tables_alone_of_extensions_that_are_away(database: str) -> None:
    files = {"stock/__init__.py": MODEL, "stock_old/__init__.py": MODEL}
    with extended(database, files=files) as one, one.app.app_context():
        for name in ("stock", "stock_old"):
            migrations.create(name, "add things")
        assert migrations.upgrade() == ["stock", "stock_old"]
        with registry.restored():
            del registry.EXTENSIONS["stock_old"]
            found = migrations.check()
            with pytest.raises(Conflict, match="nothing to do"):
                migrations.create("stock", "again")
    assert (found.state, "x_stock_old_things" in found.message) == ("warn", True)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ('    __table_args__ = (UniqueConstraint("name"),)\n', "must begin with account_id"),
        ('    __tablename__ = "Two Words"\n', "needs a __tablename__"),
        ("    account_id: Mapped[str] = mapped_column(Text)\n", "key of x_stock_things"),
        ("    price: Mapped[Decimal]\n", "x_stock_things.price has no form"),
        ("    due_at: Mapped[datetime]\n", "x_stock_things.due_at has no form"),
    ],
)
def test_table_without_its_account_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changed: str, message: str
) -> None:
    folder = tmp_path / "extensions" / "stock"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text(MODEL + changed)
    monkeypatch.setattr(loading, "FOLDER", folder.parent)
    before = set(db.Base.metadata.tables)
    with registry.restored(), pytest.raises(LoadError, match=message):
        loading.load(["stock"])
    registry.announce()
    assert set(db.Base.metadata.tables) == before


def test_bundle_has_the_rows_and_closing_removes_them(shop: Extended, tmp_path: Path) -> None:
    id = add(shop.cast.charlie, "bundled")
    file = bundles.export(shop.app, tmp_path, "globex")
    result = bundles.import_(shop.app, file, "--slug", "copied")
    assert result.exit_code == 0, result.output
    with shop.app.app_context():
        price, account = (db.Base.metadata.tables[name] for name in (TABLE, "accounts"))
        copy = db.connection().scalar(sa.select(account.c.id).where(account.c.slug == "copied"))
        rows = sa.select(price.c.id, price.c.article).where(price.c.account_id == copy)
        copied = db.connection().execute(rows.where(price.c.article == "bundled")).all()
        assert [row.article for row in copied] == ["bundled"]
        assert copied[0].id == id
        purge.remove_account({"account_id": copy})
        assert db.connection().execute(rows).all() == []


def test_bundle_with_a_table_of_an_extension_that_is_not_there_says_so(
    shop: Extended, tmp_path: Path
) -> None:
    add(shop.cast.charlie, "bundled elsewhere")
    file = bundles.export(shop.app, tmp_path, "globex", "elsewhere.bundle")
    with pytest.MonkeyPatch.context() as patch:
        tables = {name: one for name, one in bundled.bundled().items() if name != TABLE}
        patch.setattr(bundled, "bundled", lambda: tables)
        result = bundles.import_(shop.app, file, "--slug", "elsewhere")
    assert result.exit_code == 1
    assert f"The bundle has the table {TABLE} of an extension" in result.output


def test_rows_of_a_person_end_with_them(database: str) -> None:
    files = {"notes/__init__.py": NOTES}
    with extended(database, files=files) as one:
        with one.app.app_context():
            migrations.create("notes", "notes of people")
            migrations.upgrade()
        alice, bob, root = one.cast.alice, one.cast.bob, one.cast.root.acting_in("acme")
        assert bob.post("x/notes/notes", {"text": "of bob"}).status_code == 204
        assert alice.post("x/notes/notes", {"text": "of alice"}).status_code == 204
        for caller in (bob, alice, root):
            answer = caller.get(f"users/{bob.id}/export")
            (found,) = json.loads(answer.get_data())["rows"]
            assert (found["table"], found["relations"]) == ("x_notes_notes", ["user_id"])
            assert (found["row"]["text"], found["row"]["secret"]) == ("of bob", "***")
            assert (found["row"]["due_on"], found["row"].get("account_id")) == ("2026-12-01", None)
        archive = alice.get(f"users/{bob.id}/export?format=zip").get_data()
        with zipfile.ZipFile(io.BytesIO(archive)) as unpacked:
            assert b"of bob" in unpacked.read("rows.jsonl")
        assert alice.delete(f"account/users/{bob.id}").status_code == 204
        assert alice.get("x/notes/notes").json == [{"text": "of alice"}]
        log = "audit-logs?table_name=x_notes_notes&limit=100"
        entries = root.get(f"{log}&operation=DELETE").json["items"]
        assert "of bob" in {entry["old_value"] for entry in entries}
        with registry.restored():
            registry.EXTENSIONS.clear()  # the tables are there without it
            assert one.cast.root.post(f"users/{bob.id}/erase").status_code == 200
        entries = root.get(log).json["items"]
        values = {entry[name] for entry in entries for name in ("old_value", "new_value")}
        assert "of alice" in values
        assert not values & {"of bob", bob.id}
        assert verified(one.cast.root, alice.account_id)["valid"]


def test_only_own_tables_are_open(database: str) -> None:
    files = {"notes/__init__.py": NOTES + PRYING, "things/__init__.py": MODEL}
    with extended(database, files=files) as one:
        alice = one.cast.alice
        for name in ("User", "Table", "Thing"):
            assert alice.get(f"x/notes/prying/{name}").json == {"text": "refused"}
        assert alice.get("x/notes/prying/Note").json == {"text": "open"}


def test_handler_goes_on_after_what_is_refused(database: str) -> None:
    with extended(database, files={"things/__init__.py": CAUGHT}) as one:
        make_collection(one.cast.root)
        with one.app.app_context():
            migrations.create("things", "things")
            migrations.upgrade()
        answer = one.cast.alice.post("x/things/twice")
        assert (answer.status_code, answer.json) == (200, {"names": ["saw", "axe"]})
        (post,) = one.cast.alice.get("records/posts").json["items"]
        assert post["title"] == "after"
        root = one.cast.root.acting_in("acme")
        entries = root.get("audit-logs?table_name=x_things_things").json["items"]
        assert [entry["new_value"] for entry in entries if entry["column_name"] == "name"] == [
            "axe",
            "saw",
        ]
