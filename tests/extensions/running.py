"""What tests of extensions share: running what is due, and looking at jobs."""

from __future__ import annotations

from typing import Any

import orjson
import sqlalchemy as sa
from flask import Flask

from app import crypto, db
from app.db.functions import database_now
from app.extensions.jobs import PREFIX
from app.jobs import TABLE, worker


def jobs_of(app: Flask, handler: str = "") -> list[Any]:
    """The jobs of a handler, or of all extensions, oldest first."""
    with app.app_context():
        ours = TABLE.c.kind.startswith(f"{PREFIX}{handler}", autoescape=True)
        return list(db.connection().execute(sa.select(TABLE).where(ours).order_by(TABLE.c.id)))


def run_due(app: Flask) -> int:
    """Run the due jobs of extensions as a worker does; returns the number of attempts."""
    with app.app_context():
        return worker.run_due(TABLE.c.kind.startswith(PREFIX, autoescape=True))


def make_due(app: Flask) -> None:
    """Let the time pass that jobs of extensions still wait."""
    ours = TABLE.c.kind.startswith(PREFIX, autoescape=True)
    with app.app_context(), db.transaction() as session:
        session.execute(sa.update(TABLE).where(ours).values(due_at=database_now(-1)))


def data_of(app: Flask, job: Any) -> Any:
    """The values that a job calls its handler with."""
    with app.app_context():
        return orjson.loads(crypto.decrypt(job.payload["data"]))
