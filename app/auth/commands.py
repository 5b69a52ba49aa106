"""`atrium create-superadmin`, and the superadmin as whom commands act."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import click
import sqlalchemy as sa
from flask.cli import with_appcontext

from app import clock, db
from app.accounts import service as accounts
from app.accounts.models import SYSTEM_ACCOUNT_ID, User
from app.auth import passwords
from app.auth import principal as principals
from app.auth.principal import Principal
from app.context import actor
from app.context.actor import ActorKind
from app.ops import command

AS = click.option("--as", "email", help="The superadmin who acts; needed if there are several.")
WHO = "Say which superadmin acts: --as EMAIL."


@click.command(
    "create-superadmin",
    cls=command.Command,
    epilog="Example: atrium create-superadmin you@example.com",
)
@click.argument("email")
@click.option("--pii-access", is_flag=True, help="Let this superadmin see personal data unmasked.")
@click.password_option(help="Prompted for if missing.")
@with_appcontext
def create_superadmin(email: str, pii_access: bool, password: str) -> None:
    """Create another superadmin, already verified."""
    results = (accounts.email_problem(email), *passwords.problems(password, own=(email,)))
    problems = [problem for problem in results if problem]
    if problems:
        raise click.ClickException("\n".join(str(problem["message"]) for problem in problems))
    accounts.create_superadmin(email, passwords.hash(password), pii_access=pii_access)
    click.echo(f"{email} is a superadmin now.")


@contextmanager
def superadmin(email: str | None) -> Iterator[Principal]:
    """The superadmin who acts, as if just signed in: who runs commands has the database."""
    conditions = [User.account_id == SYSTEM_ACCOUNT_ID, User.is_active]
    if email is not None:
        conditions.append(User.email_key == email.strip().lower())
    found = db.db.session.scalars(sa.select(User).where(*conditions).limit(2)).all()
    principal = principals.for_user(SYSTEM_ACCOUNT_ID, found[0].id) if len(found) == 1 else None
    if principal is None:
        raise click.ClickException("There is no such superadmin." if email else WHO)
    home, user_id = principal.home_and_user()
    before = actor.source.get()
    actor.act_as(user_id, principal.email or "", principal.name, ActorKind.OPERATOR)
    try:
        yield replace(principal, account=home, auth_time=clock.now().timestamp())
    finally:
        actor.source.set(before)
