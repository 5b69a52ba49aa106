"""Revisions: the core's from Alembic's files, the collections' from rows.

A change of a collection's table writes its revision in the same transaction, so that list and
tables always agree, even without persistent disks.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from app import clock, config, db
from app.collections.models import Revision
from app.ids import new_id
from app.types import JSONObject

MIGRATIONS = config.PROJECT / "migrations"
# Read at start: the folder may belong to another version later.
CORE = frozenset(path.name[:4] for path in (MIGRATIONS / "versions").glob("[0-9]*.py"))


def record(collection_id: str, description: str, statements: Sequence[str]) -> str:
    """Record a change of a collection's table. Returns the revision's id."""
    session = db.db.session
    last = session.scalar(sa.select(Revision).order_by(Revision.number.desc()).limit(1))
    revision = Revision(
        revision=new_id().replace("-", ""),
        number=(last.number if last else 0) + 1,
        down_revision=last.revision if last else None,
        description=description,
        collection_id=collection_id,
        statements=list(statements),
    )
    session.add(revision)
    session.flush()
    return revision.revision


def listing() -> JSONObject:
    """Every revision, newest first, and the current one."""
    dynamic = [
        _dynamic(row)
        for row in db.db.session.scalars(sa.select(Revision).order_by(Revision.number.desc()))
    ]
    if dynamic:
        dynamic[0]["is_head"] = True
    core = _core()
    applied = [revision_ for revision_ in (*dynamic, *core) if revision_["is_applied"]]
    return {
        "revisions": [*dynamic, *core],
        "total": len(dynamic) + len(core),
        "current_revision": applied[0]["revision"] if applied else None,
    }


def applied_core_revision() -> str | None:
    """The core revision of the database."""
    query = sa.text("SELECT version_num FROM alembic_version")
    revision: str | None = db.connection().scalar(query)
    return revision


def core_head() -> str:
    """The newest core revision of this version of the application."""
    return max(CORE)


def lacks_core() -> bool:
    """Whether the database is older than this version, or empty; newer ones are fine."""
    applied = applied_core_revision()
    return applied is None or (applied in CORE and applied != core_head())


def _scripts() -> Any:
    from alembic.script import ScriptDirectory  # only here: it takes memory

    return ScriptDirectory(str(MIGRATIONS))


def _core() -> list[JSONObject]:
    applied_head = applied_core_revision()
    result, applied = [], False
    for script in _scripts().walk_revisions():
        applied = applied or script.revision == applied_head
        result.append(
            {
                "revision": script.revision,
                "description": script.doc,
                "is_applied": applied,
                "is_head": script.is_head,
                "is_dynamic": False,
                "down_revision": script.down_revision,
                "branch_labels": sorted(script.branch_labels),
                "created_at": _created_at(Path(script.path)),
            }
        )
    return result


def _created_at(path: Path) -> str | None:
    # Alembic keeps the date in the file's docstring.
    for line in path.read_text().splitlines()[:12]:
        if line.startswith("Create Date: "):
            return clock.iso(clock.parse(line.removeprefix("Create Date: ").strip()))
    return None


def _dynamic(row: Revision) -> JSONObject:
    return {
        "revision": row.revision,
        "description": row.description,
        "is_applied": True,
        "is_head": False,
        "is_dynamic": True,
        "down_revision": row.down_revision,
        "branch_labels": ["collections"],
        "created_at": clock.iso(row.created_at),
    }
