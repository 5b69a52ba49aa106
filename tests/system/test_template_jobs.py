"""A job that brings thousands of accounts up, by workers that are killed."""

from __future__ import annotations

import pytest
import sqlalchemy as sa
from flask import Flask

from app import clock, create_app, db, jobs
from app.accounts.models import Account
from app.config import Config
from app.ids import new_id
from app.jobs import worker
from tests.builders import Cast
from tests.manifest.test_templates import (  # noqa: F401 - fixtures
    TEMPLATE,
    apply,
    make,
    newest_job,
    prepared,
    templated,
    upgrade,
)
from tests.processes import forked


@pytest.mark.slow
def test_10_000_accounts_are_brought_up_in_spite_of_killed_workers(
    app: Flask,
    templated: Cast,
) -> None:
    """Workers are killed by the system, wherever they are."""
    number = 10_000
    make(templated, "first")
    with app.app_context():
        table = Account.__table__
        row = db.connection().execute(sa.select(table).where(table.c.slug == "first")).one()
        db.db.session.remove()
    common = row._asdict() | {"template_version": 1}
    with app.app_context(), db.db.engine.begin() as connection:
        for start in range(0, number, 500):
            rows = [
                {**common, "id": new_id(), "slug": f"acc-{n}", "account_code": f"ZZ{n:04}"}
                for n in range(start, start + 500)
            ]
            connection.execute(sa.insert(table), rows)
    changed = TEMPLATE | {"version": 2, "settings": TEMPLATE["settings"] | {"mfa_grace_days": 5}}
    apply(templated, default=changed)
    upgrade(templated)
    kills, progress = 0, [0]
    while (job := newest_job(templated))["status"] in ("pending", "running"):
        process = forked(_run_jobs, app.extensions["atrium.config"])
        process.join(20 if kills < 12 else 600)
        if process.is_alive():
            kills += 1
            process.kill()
            process.join()
        progress.append(newest_job(templated)["done"])
        with app.app_context(), db.transaction() as session:  # as the lease of the dead ends
            session.execute(sa.update(jobs.TABLE).values(due_at=clock.now()))
    assert kills > 2
    assert progress == sorted(progress)
    assert (job["status"], job["total"], job["done"]) == ("done", number + 1, number + 1)
    assert templated.root.get("account-templates").json["items"][0]["behind"] == 0
    with app.app_context():
        query = sa.select(sa.func.count()).where(Account.template_version == 2)
        assert db.db.session.scalar(query) == number + 1
    for slug in ("first", "acc-0", f"acc-{number - 1}"):
        assert templated.root.acting_in(slug).get("account").json["mfa_grace_days"] == 5


def _run_jobs(config: Config) -> None:
    with create_app(config).app_context():
        while worker.run_due():
            pass
