"""Tables of extensions: rows of accounts, reached by a door that is scoped to the caller's."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from datetime import date, datetime
from typing import Any, ClassVar, Generic, TypeVar

import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Mapped, mapped_column

from app import clock, db
from app.audit import append
from app.auth.principal import Principal
from app.db import Base, policies
from app.db.errors import violation_of
from app.db.policy import OF_EXTENSIONS, Audited, Bundled, TablePolicy
from app.db.types import Id, UtcDateTime
from app.errors import Conflict, NotFound
from app.extensions import registry
from app.extensions.registry import Kind, LoadError
from app.ids import new_id
from app.types import JSONMapping, JSONObject

NAME = re.compile("[a-z][a-z0-9_]{0,29}", re.ASCII)
OWN = ("account_id", "id", "created_at", "updated_at")
FIRST_ORDER = 10_000
"""The place of the first table in bundles, behind all tables of the product."""
MOST, AT_ONCE = 1000, 100
LONGEST = 55
"""Of a name: names of its constraints are longer, and PostgreSQL cuts them at 63."""
# Of types of which the isolation check knows no value.
SAMPLES: Mapping[type, object] = {sa.Date: date(2026, 1, 31)}
PLAIN = (str, int, float, bool, date, dict)
"""What the audit log and bundles can write, beside moments."""


class Table(Base):
    """The base of an extension's tables: account and id are first, and the time of changes last.

    `__tablename__` is stored behind the extension's name: `prices` as `x_shop_prices`. The audit
    log has `***` for columns of `__hidden__`.
    """

    __abstract__ = True
    __hidden__: ClassVar[tuple[str, ...]] = ()

    account_id: Mapped[str] = mapped_column(
        Id, sa.ForeignKey("accounts.id"), primary_key=True, sort_order=-2
    )
    id: Mapped[str] = mapped_column(Id, primary_key=True, default=new_id, sort_order=-1)
    created_at: Mapped[datetime] = mapped_column(UtcDateTime, default=clock.now, sort_order=1000)
    updated_at: Mapped[datetime] = mapped_column(
        UtcDateTime, default=clock.now, onupdate=clock.now, sort_order=1001
    )

    def __init_subclass__(cls, **options: Any) -> None:
        extension, own = registry.current(cls.__name__), vars(cls).get("__tablename__")
        if not isinstance(own, str) or not NAME.fullmatch(own):
            raise LoadError(f"{cls.__name__} needs a __tablename__ of small letters and digits.")
        name = f"{prefix_of(extension.name)}{own}"
        if len(name) > LONGEST or name in Base.metadata.tables:
            raise LoadError(f"the name {name} of a table is too long, or taken.")
        cls.__tablename__ = name
        # In snake case: paths and bodies have the id of a row of PriceList as `price_list_id`.
        id_name = re.sub(r"(?<!^)(?=[A-Z])", "_", cls.__name__).lower() + "_id"
        others = policies().values()
        orders = (one.bundle.order for one in others if isinstance(one.bundle, Bundled))
        sample: dict[str, object] = {}
        cls.__policy__ = TablePolicy(
            audit=Audited(hidden=cls.__hidden__),
            bundle=Bundled(order=max(FIRST_ORDER, *orders) + 1),
            id_names=() if any(id_name in one.id_names for one in others) else (id_name,),
            sample=sample,
        )
        super().__init_subclass__(**options)
        sample |= {
            column.name: value
            for column in cls.__table__.c
            for kind, value in SAMPLES.items()
            if isinstance(column.type, kind)
        }
        _check(cls.__table__)
        registry.add(Kind.TABLE, cls, name)


def _check(table: sa.Table) -> None:
    """Raise LoadError for types without a form in JSON, and for keys that are not of one account.

    Databases with shards refuse those.
    """
    for column in table.c:
        if not _is_plain(column.type):
            raise LoadError(
                f"the type of {table.name}.{column.name} has no form in the audit log: a column is"
                " Text, an Integer, Float, Boolean, Date, UtcDateTime or Json."
            )
    constraints = (one for one in table.constraints if isinstance(one, sa.UniqueConstraint))
    keys = [one.columns.keys() for one in constraints]
    keys += [one.columns.keys() for one in table.indexes if one.unique]
    for columns in keys:
        if columns[:1] != ["account_id"]:
            raise LoadError(f"a unique key of {table.name} must begin with account_id.")
    for key in table.foreign_key_constraints:
        columns = key.columns.keys()
        if key.referred_table.name != "accounts" and columns[:1] != ["account_id"]:
            raise LoadError(f"a foreign key of {table.name} must begin with account_id.")


def _is_plain(kind: sa.types.TypeEngine[Any]) -> bool:
    try:
        return isinstance(kind, UtcDateTime) or kind.python_type in PLAIN
    except NotImplementedError:
        return False


def as_stored(id: str) -> str:
    """An id in the form of the database. Raises NotFound for what can be none."""
    if "\0" in id or not id.isascii():
        raise NotFound
    return id.lower()


def prefix_of(extension: str) -> str:
    """What the names of an extension's tables begin with."""
    return f"{OF_EXTENSIONS}{extension}_"


@registry.on_change
def forget() -> None:
    """Forget the tables of extensions that are not loaded any more, as in tests."""
    loaded = registry.of(Kind.TABLE)
    for cls in [one.class_ for one in Base.registry.mappers]:
        if issubclass(cls, Table) and cls.__tablename__ not in loaded:
            Base.metadata.remove(cls.__table__)
            Base.registry._dispose_cls(cls)


TableT = TypeVar("TableT", bound=Table)


Acting = Callable[[JSONMapping | None], AbstractContextManager[Principal]]
"""Acts in the account of a caller; the values are to be written."""


class Rows(Generic[TableT]):
    """The rows of a table in one account, as dicts; nobody sees those of another one.

    Changes are audited. All errors are those of the API: NotFound, Conflict.
    """

    def __init__(self, acting: Acting, model: type[TableT], extension: str) -> None:
        own = registry.of(Kind.TABLE).get(getattr(model, "__tablename__", ""), ())
        # The product's models hold passwords, which no extension touches.
        if not any(one.function is model and one.extension == extension for one in own):
            raise TypeError(f"{model!r} is no table of the extension {extension}.")
        self._acting, self._model = acting, model

    def list(
        self, *, limit: int = AT_ONCE, after: str | None = None, **equal: object
    ) -> Sequence[JSONObject]:
        """The rows with these values, oldest first: up to `limit` behind the one with an id."""
        if not 1 <= limit <= MOST:
            raise ValueError(f"limit is from 1 to {MOST}")
        with self._acting(None) as by:
            query = self._query(by, equal).order_by(self._model.id).limit(limit)
            if after is not None:
                query = query.where(self._model.id > after)
            return [self._values(row) for row in db.db.session.scalars(query)]

    def count(self, **equal: object) -> int:
        """The number of rows with these values."""
        with self._acting(None) as by:
            query = sa.select(sa.func.count()).select_from(self._query(by, equal).subquery())
            return db.db.session.scalar(query) or 0

    def get(self, id: str) -> JSONObject:
        """The row with an id. Raises NotFound."""
        with self._acting(None) as by:
            return self._values(self._row(by, id))

    def create(self, **values: object) -> JSONObject:
        """Add a row; returns it. Raises Conflict if a unique key is taken."""
        with self._changing() as (by, session):
            row = self._model(**self._checked(values), account_id=by.account_id)
            session.add(row)
            session.flush()
            return self._values(row)

    def update(self, id: str, **values: object) -> JSONObject:
        """Change a row; returns it. Raises NotFound, or Conflict if a unique key is taken."""
        with self._changing() as (by, session):
            row = self._row(by, id)
            for name, value in self._checked(values).items():
                setattr(row, name, value)
            session.flush()
            return self._values(row)

    def delete(self, id: str) -> None:
        """Delete a row. Raises NotFound, or Conflict if another one refers to it."""
        with self._changing() as (by, session):
            session.delete(self._row(by, id))
            session.flush()

    def _query(self, by: Principal, equal: Mapping[str, object]) -> sa.Select[Any]:
        unknown = [name for name in equal if name not in self._model.__table__.c]
        if unknown:
            raise TypeError(f"{self._model.__name__} has no column {', '.join(unknown)}.")
        conditions = [getattr(self._model, name) == value for name, value in equal.items()]
        own = self._model.account_id == by.require_account_id()
        return sa.select(self._model).where(own, *conditions)

    def _row(self, by: Principal, id: str) -> TableT:
        row = db.db.session.scalar(self._query(by, {"id": as_stored(id)}))
        if row is None:
            raise NotFound
        found: TableT = row
        return found

    def _values(self, row: TableT) -> JSONObject:
        columns = self._model.__table__.c.keys()
        return {name: getattr(row, name) for name in columns if name != "account_id"}

    def _checked(self, values: Mapping[str, object]) -> Mapping[str, object]:
        allowed = {*self._model.__table__.c.keys()} - {*OWN}
        if refused := sorted({*values} - allowed):
            raise TypeError(f"{self._model.__name__} takes no {', '.join(refused)}.")
        if any(isinstance(value, str) and "\0" in value for value in values.values()):
            raise ValueError("A text has a NUL character, which PostgreSQL cannot store.")
        return values

    @contextmanager
    def _changing(self) -> Iterator[tuple[Principal, Any]]:
        # Within an open transaction what is refused leaves nothing, so it may go on.
        begin = db.savepoint if db.in_transaction() else db.transaction
        try:
            with self._acting({}) as by, begin(), append.by_current_actor():
                yield by, db.db.session
        except IntegrityError as error:
            violation = violation_of(error)
            if violation.kind not in ("unique", "foreign_key"):
                raise
            names = [name for name in violation.columns if name != "account_id"]
            raise Conflict(field=", ".join(names) or None) from error
