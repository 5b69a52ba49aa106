"""Users as the directory sees and changes them.

Through SCIM nobody gains what the directory could not give: it changes the address of users only
whom it created and whose role it gave, and brings back neither admins nor members of `pii_access`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import sqlalchemy as sa

from app import db
from app.accounts import pii
from app.accounts import service as accounts
from app.accounts import users as account_users
from app.accounts.models import ADMIN, VIEWER, User, UserKind
from app.accounts.types import Body
from app.db import errors
from app.errors import InvalidValues, NotFound
from app.sso import attributes as filled
from app.sso.scim import conditions, filters, patch, resources, roles, schemas
from app.sso.scim.attributes import USER, canonical
from app.sso.scim.errors import invalid_value, not_changeable, not_unique
from app.sso.scim.models import DirectoryUser
from app.sso.scim.patch import Operation
from app.types import JSONMapping, JSONObject
from app.web.preconditions import Preconditions

PROVIDER = "scim"  # the `auth_provider` of users that it creates
NO_USER = "There is no such user."
TAKEN = "A user of the account has this userName."
UNIQUE_NAME = ("directory_users", "user_name_key", "userName", TAKEN)
NOT_ITS_ADDRESS = (
    "The directory may change addresses only of users whom it created, whose role it gave and who"
    " are not in pii_access. The user or an admin can change this one in Atrium."
)
NOT_ITS_TO_DELETE = (
    "Deactivate this user, who is an admin or in pii_access; an admin can delete it."
)
NOT_ITS_TO_RETURN = "Only an admin can activate this user again, who is an admin or in pii_access."
IS_PERSON = User.kind == UserKind.PERSON
Row = tuple[User, DirectoryUser | None]


def page(
    account_id: str, filter: str | None, start: int, count: int
) -> tuple[list[JSONObject], int]:
    """One page of the users that match a filter, in order of creation, and the total."""
    where, extras = [User.account_id == account_id, IS_PERSON], filled.extras()
    if filter is not None:
        parsed = filters.parse(filter, USER.schema)
        where.append(conditions.condition(parsed, conditions.user_fields(extras)))
    total = sa.select(sa.func.count()).select_from(User).outerjoin(*_JOIN).where(*where)
    query = _query().where(*where).order_by(User.id).offset(start - 1).limit(count)
    rows = db.db.session.execute(query).all() if count else []
    return [resources.user(*row, extras) for row in rows], db.db.session.scalar(total) or 0


def get(account_id: str, user_id: str) -> JSONObject:
    """Return a user. Raises NotFound."""
    return resources.user(*_get(account_id, user_id), filled.extras())


def create(account_id: str, body: JSONMapping) -> JSONObject:
    """Create a user without a password and with an unverified address; sends no mail.

    Raises BadRequest, or Conflict if the name or address is taken.
    """
    values = schemas.load(schemas.UserBody(), canonical(body, USER))
    email = _address(values)
    if email is None:
        raise invalid_value("Without emails, userName must be an email address.")
    attributes = _attributes(values)
    name = resources.name_of(attributes)
    problems = [accounts.email_problem(email), accounts.name_problem(name or "")]
    if any(problems):
        raise InvalidValues([problem for problem in problems if problem])
    own = filled.checked(filled.from_resource(body, filled.extras()))
    with errors.conflict_on_unique(*UNIQUE_NAME), db.transaction() as session:
        accounts.get_for_update(account_id)
        user = accounts.create_user(
            account_id,
            email=email,
            password_hash=None,
            role=VIEWER,
            name=name,
            auth_provider=PROVIDER,
            is_active=values.get("active") is not False,
            attributes={key: value for key, value in own.items() if value is not None},
        )
        row = DirectoryUser(account_id=account_id, user_id=user.id, is_created=True)
        row.given_role_id = user.role_id
        _describe(row, values, attributes)
        _check_name_is_free(row)
        session.add(row)
        session.flush()
        roles.assign(account_id, [user.id])
        return _current(account_id, user.id)


def replace(account_id: str, user_id: str, body: JSONMapping, only_if: Preconditions) -> JSONObject:
    """Replace a user; takes over one whom the directory did not create.

    Raises NotFound, BadRequest, Conflict or PreconditionFailed.
    """
    own = filled.from_resource(body, filled.extras())
    return _change(account_id, user_id, lambda present: body, only_if, own)


def modify(
    account_id: str, user_id: str, operations: Sequence[Operation], only_if: Preconditions
) -> JSONObject:
    """Apply PATCH operations to a user; otherwise like `replace`."""
    rest, own = filled.from_operations(operations, filled.extras())
    return _change(
        account_id, user_id, lambda present: patch.apply(present, rest, USER), only_if, own
    )


def delete(account_id: str, user_id: str, only_if: Preconditions) -> None:
    """Delete a user; the records stay.

    Raises NotFound, PreconditionFailed, or Conflict for the last admin.
    """
    with db.transaction() as session:
        account_users.get_for_update(session, account_id, user_id)
        user, row = _get(account_id, user_id)
        only_if.check(resources.user_etag(user).removeprefix("W/"))
        if _is_protected(user, row):
            raise not_changeable(NOT_ITS_TO_DELETE)
        account_users.delete(account_id, user.id, by=None)


def _change(
    account_id: str,
    user_id: str,
    change: Callable[[JSONObject], JSONMapping],
    only_if: Preconditions,
    own: JSONMapping,
) -> JSONObject:
    """Change a user; `own` has the values of attributes that the directory fills."""
    with errors.conflict_on_unique(*UNIQUE_NAME), db.transaction() as session:
        account_users.get_for_update(session, account_id, user_id)
        user, row = _get(account_id, user_id)
        only_if.check(resources.user_etag(user).removeprefix("W/"))
        before = resources.user(user, row)
        body = canonical(change(before), USER)
        values = schemas.load(schemas.UserBody(), body)
        row = row or DirectoryUser(account_id=account_id, user_id=user.id)
        attributes = _attributes(values)
        changes = _changes(user, values, attributes)
        if clean := filled.checked(own):
            changes["attributes"] = clean
        _check_may_change(user, row, changes)
        _describe(row, values, attributes)
        _check_name_is_free(row)
        session.add(row)
        if changes or session.is_modified(row):
            account_users.change(account_id, user.id, changes, by=None)
        session.flush()
        roles.assign(account_id, [user.id])
        return _current(account_id, user.id)


def _changes(user: User, values: Body, attributes: JSONMapping) -> JSONObject:
    email, name = _address(values), resources.name_of(attributes)
    active = user.is_active if values.get("active") is None else values["active"]
    changes: JSONObject = {}
    if email is not None and accounts.email_key(email) != user.email_key:
        changes["email"] = email
    if name != user.name:
        changes["name"] = name
    if active != user.is_active:
        changes["is_active"] = active
    return changes


def _check_may_change(user: User, row: DirectoryUser, changes: JSONMapping) -> None:
    if "email" not in changes and not changes.get("is_active"):
        return
    has_its_role = row.given_role_id == user.role_id
    is_member = pii.is_member(user.account_id, user.id)
    if "email" in changes and (is_member or not (row.is_created and has_its_role)):
        raise not_changeable(NOT_ITS_ADDRESS)
    if changes.get("is_active") and _is_protected(user, row):
        raise not_changeable(NOT_ITS_TO_RETURN)


def _is_protected(user: User, row: DirectoryUser | None) -> bool:
    """Whether the user has rights that the directory did not give."""
    has_its_role = row is not None and row.given_role_id == user.role_id
    is_admin = user.role_name == ADMIN and not has_its_role
    return is_admin or pii.is_member(user.account_id, user.id)


def _describe(row: DirectoryUser, values: Body, attributes: JSONObject) -> None:
    row.user_name = values["user_name"].strip()
    row.user_name_key = accounts.email_key(row.user_name)
    row.external_id = values.get("external_id")
    row.attributes = attributes


def _attributes(values: Body) -> JSONObject:
    parts = values.get("name") or {}
    name = {part: parts[part].strip() for part in parts if parts[part]}
    display_name = (values.get("display_name") or "").strip()
    email = _email(values)
    details = {part: email[part] for part in ("type", "primary") if email.get(part) is not None}
    stored: JSONObject = {"displayName": display_name, "name": name, "email": details}
    return {key: value for key, value in stored.items() if value}


def _address(values: Body) -> str | None:
    """Return the primary address, else the first one, else `userName` if it is an address."""
    email, name = _email(values), str(values["user_name"]).strip()
    if email:
        return str(email["value"]).strip()
    return name if accounts.is_email(name) else None


def _email(values: Body) -> JSONMapping:
    emails = [one for one in values.get("emails") or () if one.get("value")]
    primary = [one for one in emails if one.get("primary")]
    return next(iter(primary or emails), {})


def _check_name_is_free(row: DirectoryUser) -> None:
    others = (User.account_id == row.account_id, User.id != row.user_id)
    named_alike = conditions.USER_FIELDS["username"].compare("eq", row.user_name)
    query = sa.select(User.id).outerjoin(*_JOIN).where(*others, named_alike)
    with db.db.session.no_autoflush:
        if db.db.session.scalar(query.limit(1)) is not None:
            raise not_unique(TAKEN)


_JOIN = (
    DirectoryUser,
    sa.and_(DirectoryUser.account_id == User.account_id, DirectoryUser.user_id == User.id),
)


def _query() -> sa.Select[User, DirectoryUser]:
    present = User.leaving_at.is_(None)
    return sa.select(User, DirectoryUser).outerjoin(*_JOIN).where(present, IS_PERSON)


def _get(account_id: str, user_id: str) -> Row:
    same = (User.account_id == account_id, User.id == user_id.lower())
    row = db.db.session.execute(_query().where(*same)).first()
    if row is None:
        raise NotFound(NO_USER)
    return row[0], row[1]


def _current(account_id: str, user_id: str) -> JSONObject:
    """Return a user as stored now, within the transaction that changed it."""
    db.db.session.expire_all()
    return get(account_id, user_id)
