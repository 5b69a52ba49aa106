"""Saved views: lists of records under a name, of a user or shared among the account's admins.

They belong to the user's own account, also where a superadmin looks into another one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import Mapped, mapped_column

from app import clock, db, events
from app.accounts import names
from app.accounts.names import Name, Use
from app.auth.principal import Principal
from app.collections import definitions, expression_names, renaming
from app.collections.definitions import Definition
from app.context import tenancy
from app.db import Base
from app.db.policy import Bundled, NotAudited, Sample, TablePolicy
from app.db.types import Id, Text, UtcDateTime
from app.errors import BadRequest, Forbidden, InvalidValues, NotFound, problem
from app.ids import new_id
from app.rules import named
from app.types import JSONMapping, JSONObject
from app.web.languages import gettext


class SavedView(Base):
    """The filter, sort order, columns and their widths of a list of records, under a name."""

    __tablename__ = "saved_views"
    __table_args__ = (
        sa.ForeignKeyConstraint(
            ["account_id", "user_id"], ["users.account_id", "users.id"], ondelete="CASCADE"
        ),
        sa.UniqueConstraint("account_id", "user_id", "collection_id", "name"),
    )
    __policy__ = TablePolicy(
        audit=NotAudited("settings of the console's lists, which change no data"),
        bundle=Bundled(order=210),
        id_names=("view_id",),
        sample={
            "collection_id": Sample.COLLECTION_ID,
            "filter": None,
            "state": {"columns": ["{mark}"]},
            "is_default": False,
        },
    )

    account_id: Mapped[str] = mapped_column(Id, primary_key=True)  # the user's
    id: Mapped[str] = mapped_column(Id, primary_key=True, default=new_id)
    user_id: Mapped[str] = mapped_column(Id)
    collection_id: Mapped[str] = mapped_column(Id)
    name: Mapped[str] = mapped_column(Text)
    filter: Mapped[str | None] = mapped_column(Text)  # an expression
    state: Mapped[JSONObject] = mapped_column(sa.JSON)  # conditions, sort, columns and their widths
    is_shared: Mapped[bool]
    is_default: Mapped[bool]
    created_at: Mapped[datetime] = mapped_column(UtcDateTime, default=clock.now)


LOOKS = sa.or_(SavedView.filter.contains("@any"), SavedView.filter.contains("@count"))
"""Whether a filter may look at other collections."""

MAX_VIEWS = 30  # of a user, for each collection
MAX_SHOWN = 100
MAX_NAME_LENGTH, MAX_LENGTH = 80, 10_000  # characters of a name, and of all values


def get_all(collection: Definition, by: Principal) -> Sequence[SavedView]:
    """The caller's views of a collection, and for admins those that others of the account share."""
    home, user_id = by.home_and_user()
    visible = SavedView.user_id == user_id
    if by.is_admin:
        visible = sa.or_(visible, SavedView.is_shared)
    query = sa.select(SavedView).where(
        SavedView.account_id == home.id, SavedView.collection_id == collection.id, visible
    )
    with tenancy.in_account(home.id):
        ordered = query.order_by(SavedView.name, SavedView.id).limit(MAX_SHOWN)
        return db.db.session.scalars(ordered).all()


def default_of(views: Sequence[SavedView], by: Principal) -> SavedView | None:
    """The one of these views that opens by default for the caller."""
    own = (view for view in views if view.user_id == by.user_id)
    return next((view for view in own if view.is_default), None)


def save(
    collection: Definition,
    name: str,
    query: JSONMapping,
    *,
    is_shared: bool,
    is_default: bool,
    by: Principal,
) -> SavedView:
    """Save a list under a name; replaces the caller's view of that name.

    `query` has the arguments of the list's address. Raises InvalidValues, BadRequest, and Forbidden
    for members who share one.
    """
    if not 0 < len(name) <= MAX_NAME_LENGTH:
        message = gettext("Enter a name of at most %(count)s characters.", count=MAX_NAME_LENGTH)
        raise InvalidValues([problem("name", "required", message)])
    if len(str(query)) > MAX_LENGTH:
        raise BadRequest(gettext("This list has too many conditions and columns to be saved."))
    if is_shared and not by.is_admin:
        raise Forbidden(gettext("Only admins share views."))
    home, user_id = by.home_and_user()
    own = (
        SavedView.account_id == home.id,
        SavedView.user_id == user_id,
        SavedView.collection_id == collection.id,
    )
    with tenancy.in_account(home.id), db.transaction() as session:
        views = session.scalars(sa.select(SavedView).where(*own)).all()
        view = next((view for view in views if view.name == name), None)
        if view is None:
            if len(views) >= MAX_VIEWS:
                raise BadRequest(
                    gettext(
                        "You have %(count)s views of this collection. Delete one first.",
                        count=MAX_VIEWS,
                    )
                )
            key = {"account_id": home.id, "user_id": user_id, "collection_id": collection.id}
            view = SavedView(**key, name=name)
            session.add(view)
        for other in views if is_default else ():
            other.is_default = False
        view.is_shared, view.is_default = is_shared, is_default
        view.filter, view.state = query.get("filter"), _state(query)
    return view


def delete(view_id: str, by: Principal) -> None:
    """Delete a view of the caller. Raises NotFound."""
    home, user_id = by.home_and_user()
    key = (SavedView.account_id == home.id, SavedView.id == view_id.lower())
    with tenancy.in_account(home.id), db.transaction() as session:
        result: Any = session.execute(
            sa.delete(SavedView).where(*key, SavedView.user_id == user_id)
        )
        if not result.rowcount:
            raise NotFound


def query(view: SavedView) -> JSONObject:
    """The arguments of the list's address."""
    args: JSONObject = {"filter": view.filter}
    for n, condition in enumerate(view.state.get("conditions", ())):
        args |= zip((f"field_{n}", f"op_{n}", f"value_{n}"), condition, strict=True)
    args |= {"sort": view.state.get("sort"), "column": view.state.get("columns")}
    args["search"] = view.state.get("search")
    args["width"] = width_args(view.state.get("widths", {}))
    return {name: value for name, value in args.items() if value}


def width_args(widths: Mapping[str, int]) -> list[str]:
    """The widths of columns as the query string has them."""
    return [f"{name}:{pixels}" for name, pixels in sorted(widths.items())]


def _state(query: JSONMapping) -> JSONObject:
    numbers = sorted(int(name[6:]) for name in query if name.startswith("field_"))
    conditions = [
        [query.get(f"{key}_{n}", "") for key in ("field", "op", "value")] for n in numbers
    ]
    widths = (text.partition(":") for text in query.get("width", ()))
    return {
        "conditions": conditions,
        "sort": query.get("sort", ""),
        "search": query.get("search", ""),
        "columns": list(query.get("column", ())),
        "widths": {name: int(pixels) for name, _, pixels in widths},
    }


@events.subscribe(events.FieldsRenamed)
def follow_fields(event: events.FieldsRenamed) -> None:
    """Let the views of all accounts name fields by their new names, and removed ones no more."""
    own = SavedView.collection_id == event.definition.id
    sorted_behind = SavedView.state["sort"].as_string().contains(".")
    views = sa.select(SavedView).where(
        sa.or_(own, SavedView.filter.contains("."), sorted_behind, LOOKS)
    )
    with tenancy.across_accounts(), db.transaction() as session:
        by_id = {one.id: one for one in definitions.get_all(with_views=True)}
        for view in session.scalars(views.order_by(SavedView.account_id, SavedView.id)):
            is_own = view.collection_id == event.definition.id
            of = event.definition if is_own else by_id.get(view.collection_id)
            if is_own:
                view.state = _renamed_state(view.state, event)
            if of:
                sort = _renamed_sort(view.state.get("sort", ""), of, event)
                view.state = {**view.state, "sort": sort}
            if view.filter and of:
                if event.removed & renaming.fields_named(view.filter, of, event.definition):
                    view.filter = None
                else:
                    view.filter = renaming.rewritten(
                        view.filter, of, event.definition, event.renames
                    )


@events.subscribe(events.CollectionRenamed)
def follow_collection(event: events.CollectionRenamed) -> None:
    """Let the filters of all accounts look at a collection by its new name."""
    with tenancy.across_accounts(), db.transaction() as session:
        by_id = {one.id: one for one in definitions.get_all(with_views=True)}
        renamed = definitions.get(event.name)
        old = dataclasses.replace(renamed, name=event.former)
        for view in session.scalars(sa.select(SavedView).where(LOOKS)):
            if view.filter and (of := by_id.get(view.collection_id)):
                view.filter = renaming.rewritten(view.filter, of, old, {}, event.name)


@names.place
def in_filters(name: Name) -> Iterator[Use]:
    """The views whose filter names it; they may be of users whom no admin sees."""
    columns = (SavedView.account_id, SavedView.id)
    about = names.about_callers(SavedView.filter)
    query = sa.select(*columns, SavedView.filter, SavedView.collection_id)
    by_id = {one.id: one for one in definitions.get_all(with_views=True)}
    rows = names.pages(query.where(about, *name.where(SavedView.account_id)), *columns)
    for account_id, id, text, collection_id in rows:
        names_role = expression_names.role_test(by_id.get(collection_id))
        if named.names(text, name.kind, name.value, names_role):
            texts, follow = {"filter": text}, partial(_store, account_id, id)
            tests = {"filter": names_role}
            yield Use(f"views[{id}]", texts, follow, account_id, may_outlive=True, role_tests=tests)


def _store(account_id: str, id: str, texts: Mapping[str, str]) -> None:
    own = (SavedView.account_id == account_id, SavedView.id == id)
    db.db.session.scalars(sa.select(SavedView).where(*own)).one().filter = texts["filter"]


@events.subscribe(events.CollectionRemoved)
def _remove_of_collection(event: events.CollectionRemoved) -> None:
    _delete_where(SavedView.collection_id == event.definition.id)


@events.subscribe(events.ViewRemoved)
def _remove_of_view(event: events.ViewRemoved) -> None:
    _delete_where(SavedView.collection_id == event.definition.id)


@events.subscribe(events.AccountClosed)
def _remove_of_account(event: events.AccountClosed) -> None:
    _delete_where(SavedView.account_id == event.account_id)


def _delete_where(condition: sa.ColumnElement[bool]) -> None:
    with tenancy.across_accounts(), db.transaction() as session:
        session.execute(sa.delete(SavedView).where(condition))


def _renamed_state(state: JSONMapping, event: events.FieldsRenamed) -> JSONObject:
    def kept(names: Iterable[str]) -> list[str]:
        return [event.renames.get(name, name) for name in names if name not in event.removed]

    conditions = [[kept([name]), *rest] for name, *rest in state.get("conditions", ())]
    return {
        "conditions": [[names[0], *rest] for names, *rest in conditions if names],
        "sort": state.get("sort", ""),
        "columns": kept(state.get("columns", ())),
        "widths": {
            kept([name])[0]: pixels
            for name, pixels in state.get("widths", {}).items()
            if kept([name])
        },
    }


def _renamed_sort(sort: str, of: Definition, event: events.FieldsRenamed) -> str:
    name = sort.removeprefix("-")
    if event.removed & renaming.fields_named(name, of, event.definition):
        return ""
    new = renaming.rewritten(name, of, event.definition, event.renames)
    return sort.removesuffix(name) + new
