"""Collection definitions: immutable, cached by version, with their tables."""

from __future__ import annotations

import dataclasses
import re
from collections import defaultdict
from collections.abc import Collection as Names
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import datetime
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple

import sqlalchemy as sa

from app import db
from app.collections import indexes, models, people, search_index, table
from app.collections.columns import TableColumns
from app.collections.fields import (
    PEOPLE,
    RETURN_TYPES,
    SYSTEM_FIELDS,
    AnyDecimalField,
    ComputedField,
    DecimalField,
    Encoder,
    Field,
    FileField,
    ListField,
    MissingField,
    ReferenceField,
    SequenceField,
    encoders_of,
    kind_of,
)
from app.collections.indexes import Index
from app.collections.models import Collection, Era
from app.collections.people import People
from app.db import versioned_cache
from app.db.types import RawUtcDateTime, UtcDateTime
from app.db.versioned_cache import Memo, VersionCheck
from app.errors import BadRequest, NotFound
from app.rules import (
    KEYWORDS,
    OPERATIONS,
    Fragment,
    Inner,
    Name,
    Node,
    RuleError,
    Scope,
    Subquery,
    Type,
    composed,
    condition,
    depends_on_time,
    parse,
    sql,
    value,
    walk,
)
from app.rules.matching import expect
from app.rules.nodes import Literal
from app.types import JSONMapping, cached_property
from app.web.feature import Finding

DEFAULT_SORT = ("-created_at",)
FIELD_LISTS = ("list", "view", "create", "update")
ALL_FIELDS = "*"
MAX_ACCESSES = 64
MAX_NAMED = 5  # fields that `doctor` names
PERSONS = ("created_by", "updated_by")
NEVER = Literal(0, 0, False, type=Type.BOOLEAN)
RIGHTS = ("readable_if", "writable_if")
DERIVED = ("max_bytes", "default_expression")
PROPERTIES = [one.name for one in dataclasses.fields(Field) if one.name not in DERIVED]
NOT_IN_DEFAULTS = "A default looks at the caller, the account and the time, not at other fields."


class Span(NamedTuple):
    """A time in which a collection's table had this name."""

    table_name: str
    since: datetime
    until: datetime | None
    """Exclusive; None for the present."""

    def has(self, moment: datetime) -> bool:
        return self.since <= moment and (self.until is None or moment < self.until)


@dataclass(frozen=True, eq=False)
class Definition:
    """A collection's name, fields and rules at one version."""

    id: str
    name: str
    table_name: str
    schema: tuple[JSONMapping, ...]
    rules: JSONMapping
    created_at: datetime
    updated_at: datetime
    version: int
    options: JSONMapping = dataclasses.field(default_factory=dict)
    indexes: tuple[JSONMapping, ...] = ()
    former_names: tuple[JSONMapping, ...] = ()
    fragments: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """The fragments that the rules use."""
    announced: bool = False
    """Whether changes of its records are events of the instance."""
    view: JSONMapping | None = None
    """What a view reads, and how; None for collections of records."""
    is_trash: ClassVar[bool] = False
    """Whether its records are deleted ones, whose lists have no entries of their own."""
    default_sort: ClassVar[Any] = DEFAULT_SORT
    """The order of lists that ask for none."""
    indexing: JSONMapping | None = None
    """The `fields` that cannot be searched yet, how many records are `done`, and their `total`."""

    @cached_property
    def declared(self) -> Mapping[str, Field]:
        """The fields of the schema by name, in order."""
        max_bytes = indexes.max_bytes(self.schema, self.indexes)
        return {
            spec["name"]: parse_field(spec, max_bytes.get(spec["name"])) for spec in self.schema
        }

    @cached_property
    def fields(self) -> Mapping[str, Field]:
        """The declared fields that are stored."""
        return {
            name: field
            for name, field in self.declared.items()
            if not isinstance(field, ComputedField)
        }

    @cached_property
    def missing(self) -> Mapping[str, MissingField]:
        """The fields whose type belongs to an extension that is not loaded; nobody writes them."""
        return {name: one for name, one in self.fields.items() if isinstance(one, MissingField)}

    @cached_property
    def sequences(self) -> Mapping[str, SequenceField]:
        """The fields that number the records of each account."""
        fields = self.fields.items()
        return {name: one for name, one in fields if isinstance(one, SequenceField)}

    @cached_property
    def unwritten(self) -> frozenset[str]:
        """The stored fields that nobody writes."""
        return frozenset((*self.missing, *self.sequences))

    @cached_property
    def required(self) -> frozenset[str]:
        """The stored fields that need a value."""
        return frozenset(name for name, field in self.fields.items() if field.required)

    @cached_property
    def eras(self) -> Sequence[Era]:
        """The times in which nothing was renamed, oldest first."""
        return models.parse_eras(self.former_names, self.created_at, self.name)

    def era_at(self, moment: datetime) -> Era:
        return next((era for era in reversed(self.eras) if era.since <= moment), self.eras[0])

    @cached_property
    def spans(self) -> Sequence[Span]:
        """The times in which the table had the same name, oldest first."""
        found = list[Span]()
        for era in self.eras:
            name = table.table_name_for(era.collection)
            if found and found[-1].table_name == name:
                found[-1] = found[-1]._replace(until=era.until)
            else:
                found.append(Span(name, era.since, era.until))
        return found

    @cached_property
    def columns(self) -> Mapping[str, Field]:
        """Every field by name, the system's first."""
        return {name: SYSTEM_FIELDS[name].like for name in self.system} | dict(self.declared)

    @property
    def system(self) -> Names[str]:
        """The names of the system's fields that its records have."""
        return SYSTEM_FIELDS

    @cached_property
    def table(self) -> sa.Table:
        """The table that holds the records, or what a view reads in its place."""
        return table.build_table(self.table_name, self.fields.values(), self.all_indexes)

    @cached_property
    def trash_days(self) -> int | None:
        """How long deleted records stay in the trash; None without one."""
        trash = self.options.get("trash")
        return int(trash["days"]) if trash else None

    @cached_property
    def all_indexes(self) -> Sequence[Index]:
        """The indexes of `indexes`, and those that properties of fields declare."""
        return indexes.of_collection(self.schema, self.indexes)

    @cached_property
    def leading(self) -> frozenset[str]:
        """The fields that an index begins with, behind the account."""
        return frozenset(index.names[0] for index in self.all_indexes)

    @cached_property
    def unique_keys(self) -> Sequence[tuple[str, ...]]:
        """The fields of each unique index."""
        return [index.names for index in self.all_indexes if index.unique]

    @cached_property
    def unpredicted(self) -> frozenset[str]:
        """The fields whose values the database may refuse, or that it has words of.

        It may refuse those of unique keys, references and lists.
        """
        return frozenset(self.references).union(self.lists, self.searched, *self.unique_keys)

    @cached_property
    def searched(self) -> Mapping[str, str]:
        """The columns with the words of the fields that lists are searched for."""
        fields = self.fields if self.view is None else {}
        names = [name for name, field in fields.items() if field.searched]
        return {name: search_index.column_name(name) for name in names}

    @cached_property
    def computed(self) -> Mapping[str, Node]:
        """The expression tree of each computed field."""
        return {
            name: computed_node(field, self.declared, is_stored=True)
            for name, field in self.declared.items()
            if isinstance(field, ComputedField)
        }

    def inputs(self, name: str) -> set[str]:
        """The fields that a computed field reads; empty for other fields."""
        parts = walk(self.computed[name]) if name in self.computed else ()
        return {part.path[0] for part in parts if isinstance(part, Name)}

    @cached_property
    def personal(self) -> frozenset[str]:
        """The fields with personal data, and those computed from them."""
        flagged = {name for name, field in self.declared.items() if field.pii}
        return frozenset(flagged | {name for name in self.computed if self.inputs(name) & flagged})

    @cached_property
    def rights(self) -> Mapping[str, Mapping[str, Node]]:
        """The conditions over the caller that open fields, by right and field."""
        return {right: dict(self._rights(right)) for right in RIGHTS}

    def _rights(self, right: str) -> Iterator[tuple[str, Node]]:
        for name, field in self.declared.items():
            try:
                node = caller_condition(getattr(field, right), is_stored=True)
            except RuleError:
                node = NEVER
            if node is not None:
                yield name, node

    @cached_property
    def defaults(self) -> Mapping[str, object]:
        """What fields have that are not sent; null where `default_nodes` says it."""
        return {name: field.default for name, field in self.fields.items()}

    @cached_property
    def default_nodes(self) -> Mapping[str, Node]:
        """The expressions over the caller that give a default, by field."""
        return dict(self._default_nodes())

    def _default_nodes(self) -> Iterator[tuple[str, Node]]:
        for name, field in self.fields.items():
            if field.default_expression is not None:
                try:
                    node = default_node(field, is_stored=True)
                except RuleError:  # its attribute is gone: nothing gives a value
                    node = Literal(0, 0, None, type=Type.NULL)
                yield name, node

    @cached_property
    def unsettled(self) -> frozenset[str]:
        """The computed fields that depend on the current time."""
        return frozenset(name for name, node in self.computed.items() if depends_on_time(node))

    @cached_property
    def encoders(self) -> Sequence[Encoder]:
        """The functions that turn stored values into JSON, for the fields that need one."""
        return encoders_of(self.columns)

    @cached_property
    def expressions(self) -> Mapping[str, sa.ColumnElement[Any]]:
        """Each field of `columns` as an expression over the table."""
        source = TableColumns(self, self.table)
        return {field_name: source.column((field_name,)) for field_name in self.columns}

    @cached_property
    def selected(self) -> Sequence[sa.ColumnElement[Any]]:
        """The columns of a SELECT, in the order of `columns`.

        Labels are neutral: SQLite reads even a quoted "true" of a subquery as the value.
        """
        return [expression.label(f"c{i}") for i, expression in enumerate(self.expressions.values())]

    @cached_property
    def listed(self) -> Sequence[sa.ColumnElement[Any]]:
        """`selected` for read-only use: timestamps stay in their stored form."""
        stored = {
            n for n, field in self.columns.items() if isinstance(field.column_type, UtcDateTime)
        }
        return [
            sa.type_coerce(field, RawUtcDateTime()).label(f"c{i}") if name in stored else label
            for i, (label, (name, field)) in enumerate(
                zip(self.selected, self.expressions.items(), strict=True)
            )
        ]

    @cached_property
    def scope(self) -> Scope:
        """The scope of the collection's rules."""
        follow = self._followed
        types, ids, lists = (
            field_types(self.declared, self.system),
            self.id_names,
            frozenset(self.lists),
        )
        return Scope(types, self.computed, follow, self._related_scope, ids=ids, lists=lists)

    def rule_scope(self, operation: str) -> Scope:
        """The scope of the rule of an operation, or of a key such as `update_rule`."""
        scope = dataclasses.replace(self.scope, fragments=self.fragments)
        if operation.removesuffix("_rule") != "update":
            return scope
        opened = self.field_list("update")
        writable = self.fields if opened == ALL_FIELDS else self.fields.keys() & {*opened}
        return dataclasses.replace(scope, old=True, writable=frozenset(writable))

    def _related_scope(self, name: str) -> Scope | None:
        is_own = name.lower() == self.name.lower() and self.view is None
        return self.scope if is_own else related_scope(name)

    @cached_property
    def id_names(self) -> frozenset[str]:
        """The fields whose values are ids."""
        columns = self.columns.items()
        return frozenset(
            name
            for name, field in columns
            if isinstance(field, ReferenceField) or (name in self.lists and field.leads_to)
        )

    def _followed(self, name: str) -> Scope | None:
        if name in self.files:
            return Scope(self.files[name].properties)
        target = self.followed(name)
        return target.scope if target else None

    @cached_property
    def files(self) -> Mapping[str, FileField]:
        return {name: one for name, one in self.fields.items() if isinstance(one, FileField)}

    @cached_property
    def lists(self) -> Mapping[str, ListField]:
        """The fields that are lists of references, users or texts."""
        return {name: one for name, one in self.fields.items() if isinstance(one, ListField)}

    def list_key(self, name: str) -> tuple[str, str]:
        """The collection and the field by which the entries of a list are stored."""
        return self.id, name

    def target(self, name: str) -> Definition | None:
        """The definition that a reference field refers to, else None."""
        found = self.followed(name)
        return found if isinstance(found, Definition) else None

    @cached_property
    def changeable_lists(self) -> Mapping[str, Field]:
        """The fields to whose lists a change may add entries, and take some out."""
        return {name: one for name, one in self.fields.items() if one.is_list}

    @cached_property
    def references(self) -> Mapping[str, str]:
        """What reference and user fields lead to: the name of a collection, or PEOPLE."""
        return {name: field.leads_to for name, field in self.fields.items() if field.leads_to}

    def followed(self, name: str) -> Definition | People | None:
        """What a reference or user field leads to; None for other fields."""
        target = self.references.get(name)
        if target is None or target == PEOPLE:
            return people.PEOPLE if target else None
        return self if target.lower() == self.name.lower() else get(target)

    def expanded(self, name: str) -> Definition | People | None:
        """What `expand` shows of a field: also of the system fields that name people."""
        return people.PEOPLE if name in PERSONS else self.followed(name)

    def related(self, name: str) -> Definition:
        """The definition that `@any` names. Raises NotFound, also for views."""
        found = self if name.lower() == self.name.lower() else get(name)
        if found.view is not None:
            raise NotFound("There is no such collection.")
        return found

    @cached_property
    def conditions(self) -> Mapping[str, Node | None]:
        """The parsed rule of each operation; None if it is not an expression."""
        return self._judged[1]

    @cached_property
    def version_checks(self) -> frozenset[VersionCheck]:
        """The version checks of this definition and of all collections that its rules reach."""
        return self._judged[0]

    @cached_property
    def _judged(self) -> tuple[frozenset[VersionCheck], Mapping[str, Node | None]]:
        # Versions first: they must not be newer than the trees.
        texts = [self.rule(operation) or "" for operation in OPERATIONS]
        texts += self.fragments.values()
        referenced = {
            one.version_check for text in texts for one in referenced_definitions(self, text)
        }
        trees = {operation: self._condition(operation) for operation in OPERATIONS}
        return frozenset({self.version_check} | referenced), trees

    def _condition(self, operation: str) -> Node | None:
        text = self.rule(operation) or ""
        if not is_expression(text):
            return None
        scope = dataclasses.replace(self.rule_scope(operation), is_stored=True)
        with suppress(RuleError):
            return condition(text, scope)
        # A referenced collection may have changed since it was cached.
        with versioned_cache.reloading(), suppress(RuleError):
            return condition(text, scope)
        return NEVER

    @cached_property
    def memo(self) -> Memo:
        """Filters, statements and the like that were built from it for one request."""
        return Memo()

    @cached_property
    def access_memo(self) -> Memo:
        """The access of recent callers; `access.for_operation` fills it."""
        return Memo(MAX_ACCESSES)

    @cached_property
    def compiled(self) -> dict[Node, sql.Compiled]:
        """Compiled SQL by condition; `access` fills it."""
        return {}

    @property
    def version_check(self) -> VersionCheck:
        """The version check of this definition without its rules' references."""
        return VersionCheck("collections", (self.id,), self.version)

    def effective_rule(self, operation: str) -> tuple[str | None, JSONMapping]:
        """The rule of an operation, and the fragments that it uses."""
        rule = self.rule(operation)
        names = fragment_names(rule)
        return rule, {name: text for name, text in self.fragments.items() if name in names}

    def rule(self, operation: str) -> str | None:
        """The rule of an operation; None closes it."""
        text: str | None = self.rules.get(f"{operation}_rule")
        return text

    @property
    def is_public(self) -> bool:
        """Whether a rule is empty, which opens an operation to everyone."""
        return "" in map(self.rule, OPERATIONS)

    def field_list(self, operation: str) -> Any:
        """The fields that the operation may access, or `*`."""
        return self.rules.get(f"{operation}_fields", ALL_FIELDS)


class NoRecordsOfItsOwn(BadRequest):
    """What only collections of records have is asked of a view."""

    error = "is_view"
    message = "This collection is a view: it has no changes, history or files of its own."


NO_CHANGES = (NoRecordsOfItsOwn.error, NoRecordsOfItsOwn.message)
"""Code and message of a problem with a view that is to be listened to."""


class ViewColumn(NamedTuple):
    """A column of a view: a name that leads from the records of `from`, or a function of one."""

    name: str
    path: tuple[str, ...]
    """Empty for `count()`."""
    function: str | None = None


AGGREGATE = re.compile(
    r"\s*(count|sum|avg|min|max)\(\s*([A-Za-z][A-Za-z0-9_.]*)?\s*\)\s*", re.IGNORECASE
)


def view_columns(view: JSONMapping) -> list[ViewColumn]:
    """The columns of a view, in order; functions that are none are left out."""
    paths = dict.fromkeys([*view["fields"], *view["group_by"]])
    columns = [ViewColumn(path.replace(".", "_"), tuple(path.split("."))) for path in paths]
    for call in dict.fromkeys(view["aggregates"]):
        if match := AGGREGATE.fullmatch(call):
            function, path = match[1].lower(), tuple((match[2] or "").split(".")) * bool(match[2])
            columns.append(ViewColumn("_".join((function, *path)), path, function))
    return columns


@dataclass(frozen=True, eq=False)
class ViewDefinition(Definition):
    """A collection of type `view`: it shows what a caller may list of another, under own rules.

    Its `schema` has a field for each column, made when it is stored. Where what it reads has
    changed since it was cached, its properties raise Stale.
    """

    view: JSONMapping = dataclasses.field(default_factory=dict)

    @cached_property
    def declared(self) -> Mapping[str, Field]:
        """The fields of the schema; decimals without options have any number of digits."""
        fields = {spec["name"]: parse_field(spec) for spec in self.schema}
        return {
            name: AnyDecimalField(name, pii=one.pii, mask_type=one.mask_type)
            if isinstance(one, DecimalField) and not one.options
            else one
            for name, one in fields.items()
        }

    @cached_property
    def read_columns(self) -> Sequence[ViewColumn]:
        """The columns but those that are fields of the system."""
        return [one for one in view_columns(self.view) if one.name in self.declared]

    @property
    def is_grouped(self) -> bool:
        """Whether a row stands for several records."""
        return bool(self.view["group_by"] or self.view["aggregates"])

    @property
    def system(self) -> Names[str]:
        """Rows that stand for several records have an id, made of what they have in common."""
        return ("id", "account_id") if self.is_grouped else SYSTEM_FIELDS

    @cached_property
    def default_sort(self) -> Sequence[str]:
        """By what they have in common."""
        if not self.is_grouped:
            return DEFAULT_SORT
        return [one.name for one in self.read_columns if one.function is None]

    def effective_rule(self, operation: str) -> tuple[str | None, JSONMapping]:
        """Also the fragments that `where` uses, which comes before the rules."""
        rule, used = super().effective_rule(operation)
        names = fragment_names(self.view["where"]) if rule is not None else ()
        return rule, {**used, **{name: self.fragments[name] for name in names}}

    @cached_property
    def all_indexes(self) -> Sequence[Index]:
        """None: those of what it reads serve it."""
        return ()

    @cached_property
    def table(self) -> sa.Table:
        """None: what it reads depends on the caller (`access`). Raises NoRecordsOfItsOwn."""
        raise NoRecordsOfItsOwn

    @cached_property
    def base(self) -> Definition:
        """The collection that it reads."""
        with stale_if_missing():
            return get(self.view["from"])

    @cached_property
    def targets(self) -> Mapping[tuple[str, ...], Definition | People]:
        """What the references lead to that its columns follow."""
        found: dict[tuple[str, ...], Definition | People] = {}
        for column in self.read_columns:
            owner: Definition | People | None = self.base
            for end in range(1, len(column.path)):
                path = column.path[:end]
                if path not in found:
                    with stale_if_missing():
                        owner = owner.followed(path[-1]) if owner else None
                    if owner is None:
                        raise versioned_cache.Stale
                    found[path] = owner
                owner = found[path]
        return found

    @cached_property
    def narrowed(self) -> Node | None:
        """The parsed `where`, over the records that it reads; None for all of them."""
        text = self.view["where"]
        if not text:
            return None
        scope = dataclasses.replace(self.base.scope, fragments=self.fragments, is_stored=True)
        try:
            return condition(text, scope)
        except RuleError:
            return NEVER

    @cached_property
    def version_checks(self) -> frozenset[VersionCheck]:
        """Also those of what it reads."""
        checks = {*self._judged[0], *self.base.version_checks}
        for text in (self.view["where"] or "", *self.fragments.values()):
            for one in referenced_definitions(self.base, text):
                checks |= one.version_checks
        for target in self.targets.values():
            if isinstance(target, Definition):
                checks |= target.version_checks
            else:
                checks.update(people.settings().version_checks)
        return frozenset(checks)


@contextmanager
def stale_if_missing() -> Iterator[None]:
    """Raise Stale for a collection that is gone."""
    try:
        yield
    except NotFound:
        raise versioned_cache.Stale from None


def fragment_names(rule: str | None) -> set[str]:
    """The fragments that a rule uses."""
    with suppress(RuleError):
        if rule and "@rule" in rule:
            return {part.name for part in walk(parse(rule)) if isinstance(part, Fragment)}
    return set()


def is_expression(rule: str) -> bool:
    """Whether a rule is more than empty (open) or `true` (signed in)."""
    return rule != "" and rule.strip() != "true"


def related_scope(name: str) -> Scope | None:
    """The scope of a collection that `@any` names; None if there is none. RuleError for a view."""
    try:
        found = get(name)
    except NotFound:
        return None
    if found.view is not None:
        raise RuleError(f"{found.name} is a view: look at the collection that it reads.", 0)
    return found.scope


def referenced_definitions(start: Definition, text: str) -> Iterator[Definition]:
    """The definitions that an expression's dotted names reach, and `@any` looks at."""
    if "." not in text and "@" not in text:
        return
    with suppress(RuleError, NotFound):
        for part in walk(parse(text)):
            current: Definition | None = start
            if isinstance(part, Subquery):
                yield start.related(part.collection)
            elif isinstance(part, Inner):
                current = start.related(part.collection)
            for step in part.path[:-1] if isinstance(part, Name | Inner) else ():
                current = current.target(step) if current else None
                if current:
                    yield current


def field_types(
    fields: Mapping[str, Field], system: Iterable[str] = SYSTEM_FIELDS
) -> dict[str, Type]:
    """The types of system and stored fields by name."""
    types = {name: SYSTEM_FIELDS[name].like.rule_type for name in system}
    stored = (item for item in fields.items() if not isinstance(item[1], ComputedField))
    return types | {name: field.rule_type for name, field in stored}


def computed_node(field: Field, fields: Mapping[str, Field], *, is_stored: bool = False) -> Node:
    """The checked expression of a computed field. Raises RuleError."""
    # A stored expression stays readable where a field of an older release is named like a word.
    types = {name: type_ for name, type_ in field_types(fields).items() if name not in KEYWORDS}
    computed = [name for name, one in fields.items() if isinstance(one, ComputedField)]
    refused = {name: f"{name} is computed: computed fields cannot use it." for name in computed}
    scope = Scope(types, caller=False, refused=refused, is_stored=is_stored)
    if field.return_type not in RETURN_TYPES:
        raise RuleError(f"{field.name} has no return_type.", 0)
    return value(field.expression or "", scope, RETURN_TYPES[field.return_type].rule_type)


def caller_condition(
    text: str | None, names: Iterable[str] = (), *, is_stored: bool = False
) -> Node | None:
    """The checked condition of a right to a field, or None without one. Raises RuleError.

    It looks at the caller alone, at none of the fields `names`, so that it is decided once for all
    records.
    """
    if text is None:
        return None
    message = "A right to a field looks at the caller alone, not at the record or the time."
    refused = dict.fromkeys((*SYSTEM_FIELDS, *names), message)
    node = condition(text, Scope({}, refused=refused, is_stored=is_stored))
    if depends_on_time(node):
        raise RuleError(message, 0)
    return node


def default_node(field: Field, names: Iterable[str] = (), *, is_stored: bool = False) -> Node:
    """The checked expression of a field's default. Raises RuleError.

    It looks at none of the fields `names`. A moment gives a `date` its day, in UTC.
    """
    refused = dict.fromkeys((*SYSTEM_FIELDS, *names), NOT_IN_DEFAULTS)
    scope, text = Scope({}, refused=refused, is_stored=is_stored), field.default_expression or ""
    if field.rule_type is not Type.DATE:
        return value(text, scope, field.rule_type)
    node = value(text, scope)
    return node if node.type is Type.DATETIME else expect(node, Type.DATE)


def default_expression(spec: JSONMapping) -> str | None:
    """The text of `{"expression": "..."}` in place of a default; None if it is a plain value."""
    default = spec.get("default")
    if not isinstance(default, dict) or [*default] != ["expression"]:
        return None
    text, kind = default["expression"], kind_of(spec)
    return text if isinstance(text, str) and kind is not None and kind.takes_expression else None


def parse_field(spec: JSONMapping, max_bytes: int | None = None) -> Field:
    """The field of a valid schema entry; an indexed text has at most `max_bytes`."""
    properties = {key: spec[key] for key in PROPERTIES if key in spec}
    if "options" in properties:  # perhaps of an older release
        properties["options"] = with_composed_choices(properties["options"])
    kind = kind_of(spec)
    if expression := default_expression(spec):
        properties |= {"default": None, "default_expression": expression}
    if kind is None:
        return MissingField.of_type(spec["type"])(**properties, max_bytes=max_bytes)
    return kind(**properties, max_bytes=max_bytes)


def with_composed_choices(options: JSONMapping) -> JSONMapping:
    """A field's options with its choices in the form in which values are stored."""
    choices = options.get("choices")
    if not isinstance(choices, list):
        return options
    texts = [composed(one) if isinstance(one, str) else one for one in choices]
    return {**options, "choices": texts}


def from_row(row: Collection) -> Definition:
    """The definition stored in a row."""
    kind: type[Definition] = Definition if row.view is None else ViewDefinition
    return kind(
        id=row.id,
        name=row.name,
        table_name=row.table_name,
        schema=tuple(row.schema),
        rules=row.rules,
        created_at=row.created_at,
        updated_at=row.updated_at,
        version=row.version,
        options=row.options or {},
        indexes=tuple(row.indexes or ()),
        former_names=tuple(row.former_names or ()),
        fragments=row.fragments or {},
        announced=row.announced,
        view=row.view,
        indexing=row.indexing,
    )


def check_types() -> Finding:
    """Look for fields whose type belongs to an extension that is not loaded."""
    missing = [
        f"{one.name}.{name} ({field.type})"
        for one in get_all()
        for name, field in one.missing.items()
    ]
    if not missing:
        return Finding("ok", "the types of all fields are loaded")
    named = ", ".join(missing[:MAX_NAMED])
    advice = "load it by SERVICE_EXTENSIONS, or remove them"
    return Finding("warn", f"no loaded extension has the type of {named}: {advice}")


def get(name: str) -> Definition:
    """The definition with this name, ignoring case. Raises NotFound."""
    key = name.lower()
    if key in _instead.get():
        return _instead.get()[key]
    definition = versioned_cache.cache("definitions").get(key, lambda: _load(key))
    if definition is None:
        raise NotFound("There is no such collection.")
    return definition


def is_view(name: str) -> bool:
    """Whether there is a view with this name."""
    try:
        return get_current(name).view is not None
    except NotFound:
        return False


def get_current(name: str) -> Definition:
    """The same, for work of which no statement checks the versions. Raises NotFound."""
    with versioned_cache.reloading():
        return get(name)


_instead: ContextVar[Mapping[str, Definition]] = ContextVar("instead", default=MappingProxyType({}))


@contextmanager
def override(definitions: Mapping[str, Definition]) -> Iterator[None]:
    """Let `get` return these definitions by lower-case name, bypassing the cache."""
    token = _instead.set(definitions)
    try:
        yield
    finally:
        _instead.reset(token)


def overridden(definition: Definition) -> Definition:
    """The definition that replaces this one inside `override`, or itself."""
    return _instead.get().get(definition.name.lower(), definition)


class ByFormerName:
    """Finds the collection, of some, that a table name stood for at a moment."""

    def __init__(self, definitions: Iterable[Definition]) -> None:
        self._spans = defaultdict[str, list[tuple[Span, Definition]]](list)
        for one in definitions:
            for span in one.spans:
                self._spans[span.table_name].append((span, one))

    def find(self, table_name: str, moment: datetime) -> Definition | None:
        """The collection; None if it is none of them, or was deleted."""
        spans = self._spans.get(table_name, ())
        return next((one for span, one in spans if span.has(moment)), None)


def table_names(name: str) -> set[str]:
    """The table names that a collection has and had; of none that exists, the one it would have."""
    try:
        return {span.table_name for span in get(name).spans}
    except NotFound:
        return {table.table_name_for(name)}


def get_all(*, with_views: bool = False) -> list[Definition]:
    """The current definitions of all collections of records; loads only outdated ones."""
    cached = versioned_cache.cache("definitions")
    versions = sa.select(Collection.name_key, Collection.id, Collection.version)
    if not with_views:
        versions = versions.where(Collection.view.is_(None))
    definitions: dict[str, Definition] = {}
    outdated: list[str] = []
    for key, id, version in db.db.session.execute(versions.order_by(Collection.name_key)):
        definition = cached.get(key, _nothing)
        if definition is not None and (definition.id, definition.version) == (id, version):
            definitions[key] = definition
        else:
            outdated.append(key)
    if outdated:
        for row in _rows(Collection.name_key.in_(outdated)):
            definitions[row.name_key] = from_row(row)
            cached.put(row.name_key, definitions[row.name_key])
    return list(definitions.values())


def _nothing() -> Definition | None:
    return None


def _load(name_key: str) -> Definition | None:
    return next((from_row(row) for row in _rows(Collection.name_key == name_key)), None)


def _rows(condition: Any) -> Iterator[Collection]:
    statement = sa.select(Collection).where(condition)
    yield from db.db.session.scalars(statement.execution_options(populate_existing=True))
