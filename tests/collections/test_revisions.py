"""Revisions of collections written as files: they make the same tables elsewhere."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Any

import alembic.command
import alembic.config
import pytest
import sqlalchemy as sa
from flask import Flask

from app import db
from tests import services
from tests.builders import Caller, make_collection, make_record

AWKWARD = """it's "so" 100% %s %(x)s :y \\ \\n {z} -- /* é 🎈 \n\t ; DROP \"\"\" '''"""


def field(name: str, type: str = "text", **properties: Any) -> dict[str, Any]:
    return {"name": name, "type": type, **properties}


def make_history(root: Caller, alice: Caller) -> None:
    """Collections made, changed, imported in a circle, and dropped."""
    authors = make_collection(root, "Authors", [field("mail", "email", unique=True)])
    to_author = field("author", "reference", collection="authors", on_delete="cascade")
    schema = [field("title", default=AWKWARD), to_author]
    posts = make_collection(root, "posts", schema)
    make_record(alice, "posts", title=None)
    dropped = make_collection(root, "dropped")
    for made, *fields in (
        (posts, field("title", required=True, default=AWKWARD), to_author),
        (
            posts,
            field("title", default="x"),
            to_author,
            field("n", "number", required=True, default=1),
        ),
        (
            authors,
            field("mail", "email", options={"index": True}),
            field("meta", "json", default={"a": AWKWARD}),
        ),
        (
            authors,
            field("mail", "email", required=True, default="a@b.example"),
            field("meta", "json"),
        ),
    ):
        answer = root.put(f"collections/{made['id']}", {"schema": fields})
        assert answer.status_code == 200, answer.json
    indexes = [{"fields": ["author", "-n"]}, {"fields": ["title", "-author"], "unique": True}]
    assert root.patch(f"collections/{posts['id']}", {"indexes": indexes}).status_code == 200
    assert root.delete(f"collections/{dropped['id']}").status_code == 200
    ring = [
        {"name": "men", "schema": [field("woman", "reference", collection="women")]},
        {"name": "women", "schema": [field("man", "reference", collection="men")]},
    ]
    imported = root.post("collections/import", {"data": {"collections": ring}})
    assert imported.status_code == 200, imported.json


def tables(engine: sa.Engine) -> dict[str, Any]:
    """The collections' tables as the database describes them."""
    inspector = sa.inspect(engine)
    return {
        name: {
            "columns": [
                (c["name"], str(c["type"]), c["nullable"], c["default"])
                for c in inspector.get_columns(name)
            ],
            "key": inspector.get_pk_constraint(name)["constrained_columns"],
            "indexes": sorted(
                (i["name"], i["column_names"], bool(i["unique"]), str(i.get("column_sorting")))
                for i in inspector.get_indexes(name)
            ),
            "references": sorted(
                (k["name"], k["constrained_columns"], k["referred_table"], k["referred_columns"])
                for k in inspector.get_foreign_keys(name)
            ),
        }
        for name in inspector.get_table_names()
        if name.startswith("col_")
    }


@pytest.fixture
def elsewhere(database: str, tmp_path: Path) -> str:
    """The address of a fresh database."""
    if database == "postgresql":
        return str(services.Postgres().create_database(f"test_{secrets.token_hex(6)}"))
    return f"sqlite:///{tmp_path / 'elsewhere.db'}"


def test_revision_export_creates_same_tables_elsewhere(
    app: Flask, root: Caller, alice: Caller, elsewhere: str, tmp_path: Path
) -> None:
    make_history(root, alice)
    folder = tmp_path / "out"
    for _ in range(2):
        written = app.test_cli_runner().invoke(args=["revisions", "export", str(folder)])
        assert written.exit_code == 0, written.output
    listed = root.get("migrations").json["revisions"]
    files = sorted((folder / "versions").glob("*.py"))
    assert len(files) == len([one for one in listed if one["is_dynamic"]])
    settings = alembic.config.Config(folder / "alembic.ini", cmd_opts=None)
    settings.cmd_opts = type("Options", (), {"x": [f"url={elsewhere}"]})()
    alembic.command.upgrade(settings, "head")
    engine = sa.create_engine(elsewhere.replace("postgresql://", "postgresql+psycopg2://"))
    with app.app_context():
        here = tables(db.db.engine)
    assert set(here) == {"col_authors", "col_posts", "col_men", "col_women"}
    assert tables(engine) == here
    with engine.connect() as connection:
        head = connection.exec_driver_sql("SELECT version_num FROM collection_versions").scalar()
    assert head == root.get("migrations/current").json["revision"]
    engine.dispose()
