"""The schemas of attributes: planned and changed by superadmins, for all accounts.

What a change leaves out stays. Values follow in the same transaction: a renamed attribute keeps
them, a removed one loses them, which needs the hash of a plan.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson
import sqlalchemy as sa

from app import db
from app.accounts import attributes, directory, names
from app.accounts.attributes import RESERVED_CLAIMS, VIEWERS, WRITERS, Attributes, Kind, Level
from app.accounts.models import Account, InstanceSetting, User
from app.accounts.names import Name
from app.collections import schema
from app.collections.definitions import parse_field, with_composed_choices
from app.collections.fields import TYPES
from app.context import tenancy
from app.db import citus
from app.errors import Conflict, InvalidValues, problem
from app.rules.named import ACCOUNT_ATTRIBUTE, ACCOUNT_CHOICE, ATTRIBUTE, ATTRIBUTE_CHOICE
from app.types import JSONMapping, JSONObject

ALLOWED_TYPES = (
    *("text", "number", "boolean", "date", "datetime"),
    *("email", "url", "select", "multi_select"),
)
DEFAULTS: JSONMapping = {
    "label": None,
    "options": {},
    "required": False,
    "writable_by": Level.ADMIN.word,
    "visible_to": Level.ADMIN.word,
    "claim": None,
    "scim": None,
    "sso": None,
}
MENTIONS = {Kind.USERS: ATTRIBUTE, Kind.ACCOUNTS: ACCOUNT_ATTRIBUTE}
CHOICES = {Kind.USERS: ATTRIBUTE_CHOICE, Kind.ACCOUNTS: ACCOUNT_CHOICE}
FILLED_BY = ("scim", "sso")
MAX_ATTRIBUTES = 50
TABLES: dict[Kind, Any] = {Kind.USERS: User.__table__, Kind.ACCOUNTS: Account.__table__}
PLAN_REQUIRED = "Removing attributes loses their values. Send the plan_hash of a plan of this."
PLAN_STALE = "The attributes have changed since this plan, or it is of another change. Plan again."


@dataclass
class Change:
    """A change of a schema, its problems, and what it does."""

    before: Attributes
    definitions: list[JSONObject]
    body: JSONMapping
    renamed: dict[str, str] = field(default_factory=dict)
    """The new names of attributes by their former ones."""
    removed: list[str] = field(default_factory=list)
    problems: list[JSONObject] = field(default_factory=list)

    @property
    def operations(self) -> list[JSONObject]:
        """What changes, as the plan of a collection shows it."""
        former: dict[str, str] = {new: old for old, new in self.renamed.items()}
        result: list[JSONObject] = []
        for one in self.definitions:
            name: str = one["name"]
            old = self.before.by_name.get(former.get(name, name))
            if old is None:
                result.append({"operation": "add_field", "field": name, "property": None})
                continue
            result += [
                {"operation": "change_property", "field": old.name, "property": key}
                | {"before": old.definition.get(key), "after": value}
                for key, value in one.items()
                if old.definition.get(key) != value
            ]
        removed = ({"operation": "remove_field", "field": name} for name in self.removed)
        return [*result, *(one | {"property": None} for one in removed)]

    @property
    def ended_choices(self) -> list[str]:
        """The choices that attributes lose, as expressions name them: `team=red`."""
        former: dict[str, str] = {new: old for old, new in self.renamed.items()}
        ended = []
        for one in self.definitions:
            name: str = one["name"]
            old = self.before.by_name.get(former.get(name, name))
            if old is not None:
                choices = {*one["options"].get("choices", ())}
                lost = (c for c in old.definition["options"].get("choices", ()) if c not in choices)
                ended += [f"{old.name}={choice}" for choice in lost]
        return ended

    @property
    def plan_hash(self) -> str:
        parts = (self.before.kind, self.before.version, self.operations)
        return hashlib.sha256(orjson.dumps(parts, option=orjson.OPT_SORT_KEYS)).hexdigest()

    @property
    def lost(self) -> list[JSONObject]:
        """How many users or accounts lose a value of each removed attribute."""
        kind = self.before.kind
        return [
            {"field": name, "count": sum(1 for _ in _rows_with(kind, name))}
            for name in self.removed
        ]

    @property
    def effect(self) -> list[JSONObject]:
        """The places that name what is renamed, removed or from now on written by others.

        `refused` says that the place stands against the change.
        """
        kind, gone = self.before.kind, self.removed + self.ended_choices
        by_hand = [one["field"] for one in self.operations if one["property"] == "writable_by"]
        found = list[JSONObject]()
        for mention in dict.fromkeys((*gone, *self.renamed, *by_hand)):
            name = Name((CHOICES if "=" in mention else MENTIONS)[kind], mention)
            for use in names.uses(name):
                new = self.renamed.get(mention)
                is_stuck = mention in gone or (new is not None and use.after(name, new) is None)
                found += [
                    {"field": mention, "place": place, "refused": is_stuck and not use.may_outlive}
                    for place in use.places
                ]
        return found


def compact(schema: Attributes) -> list[JSONObject]:
    """The definitions without the properties that have their defaults."""
    return [
        {key: one[key] for key in one if key not in DEFAULTS or one[key] != DEFAULTS[key]}
        for one in schema.definitions
    ]


def plan(kind: Kind, body: JSONMapping) -> Change:
    """What a change would do, with its problems."""
    return _compare(attributes.load(kind), body)


def change(kind: Kind, body: JSONMapping, *, plan_hash: str | None = None) -> Attributes:
    """Change a schema; expressions follow new names. Raises InvalidValues with all problems.

    Raises Conflict for another plan, and with the places that name what would be removed.
    """
    with db.transaction() as session:
        # Names are looked for in all shards before accounts, a shared table, are changed.
        citus.use_one_connection_per_node(db.connection())
        compared = _compare(attributes.load(kind, lock=True), body)
        if compared.problems:
            raise InvalidValues(compared.problems)
        if compared.removed and plan_hash is None:
            raise InvalidValues([problem("plan_hash", "plan_required", PLAN_REQUIRED)])
        if plan_hash is not None and plan_hash != compared.plan_hash:
            raise Conflict(PLAN_STALE, error="plan_stale")
        if not compared.operations:
            return compared.before
        query = sa.select(InstanceSetting).where(InstanceSetting.id == kind.setting)
        row = session.scalars(query).one()
        for name in compared.removed:
            names.refuse_deletion(Name(MENTIONS[kind], name))
        for choice in compared.ended_choices:
            names.refuse_deletion(Name(CHOICES[kind], choice))
        row.value, row.version = {"fields": compared.definitions}, row.version + 1
        session.flush()
        for former, name in compared.renamed.items():
            names.follow(Name(MENTIONS[kind], former), name)
            _replace_values(kind, former, name)
        for name in compared.removed:
            _replace_values(kind, name, None)
        return attributes.of(kind, compared.definitions, row.version)


def _compare(before: Attributes, body: JSONMapping) -> Change:
    result = Change(before, [], body)
    removing = {*body.get("remove_fields", ())}
    present = {name: dict(one.definition) for name, one in before.by_name.items()}
    result.removed = [name for name in present if name in removing]
    given: dict[str, JSONMapping] = {}
    for spec in body.get("fields", ()):
        name, former = spec["name"], spec.get("rename_from")
        if name in given:
            result.problems.append(problem(name, "name_duplicate", "This name is listed twice."))
        given[name] = spec
        if name in removing:
            message = "This attribute is listed and removed."
            result.problems.append(problem(name, "name_duplicate", message))
        if former in present and name not in present and former not in removing:
            result.renamed[former] = name
    for name, definition in present.items():
        if name not in removing:
            new_name = result.renamed.get(name, name)
            result.definitions.append(_merged(definition, given.pop(new_name, {}), new_name))
    for name, spec in given.items():
        if name not in removing:
            result.definitions.append(_merged(DEFAULTS, spec, name))
    former_names = {new: old for old, new in result.renamed.items()}
    for one in result.definitions:
        name = one["name"]
        old = present.get(former_names.get(name, name))
        result.problems += _problems(before.kind, one, old)
    keys = [one["name"].lower() for one in result.definitions]
    for one in result.definitions:
        if keys.count(one["name"].lower()) > 1:
            result.problems.append(problem(one["name"], "name_duplicate", "This name is taken."))
        if (
            one["claim"]
            and [other["claim"] for other in result.definitions].count(one["claim"]) > 1
        ):
            message = "Another attribute has this claim."
            result.problems.append(problem(one["name"], "name_duplicate", message))
    if len(result.definitions) > MAX_ATTRIBUTES:
        message = f"There are at most {MAX_ATTRIBUTES} attributes."
        result.problems.append(problem("fields", "too_long", message))
    return result


def _merged(definition: JSONMapping, spec: JSONMapping, name: str) -> JSONObject:
    sent = {key: value for key, value in spec.items() if key != "rename_from"}
    merged = {"name": name, "type": spec.get("type"), **definition, **sent}
    merged["name"] = name
    merged["options"] = with_composed_choices(merged["options"])
    return merged


def _problems(kind: Kind, one: JSONObject, old: JSONMapping | None) -> Iterator[JSONObject]:
    """The problems of a resulting definition."""
    name = one["name"]
    if not schema.FIELD_NAME.fullmatch(name):
        message = "Use 1 to 63 letters, digits and underscores, starting with a letter."
        yield problem(name[:80], "name_invalid", message)
    elif name.lower() in schema.RULE_WORDS:
        yield problem(name, "name_reserved", "This name is a word of the rule language.")
    if one["type"] not in ALLOWED_TYPES:
        message = f"A type is one of: {', '.join(ALLOWED_TYPES)}."
        yield problem(name, "type_invalid", message)
        return
    if old is not None and one["type"] != old["type"]:
        message = f"The type is {old['type']} and cannot change."
        yield problem(name, "type_change_not_allowed", message)
        return
    known = {*TYPES[one["type"]].known_options} - {"index", "search"}
    for option in sorted({*one["options"]} - known):
        message = f"An attribute of type {one['type']} has no option {option[:80]}."
        yield problem(name, "invalid_option", message)
    properties = {key: one[key] for key in ("name", "type", "required", "options")}
    messages = list(parse_field(properties).definition_problems())
    yield from (problem(name, "invalid_option", message) for message in messages)
    for key, words in (("writable_by", WRITERS), ("visible_to", VIEWERS)):
        if one[key] not in words:
            yield problem(name, "invalid_option", f"{key} is one of: {', '.join(words)}.")
    if kind is Kind.ACCOUNTS and any(one[key] for key in ("claim", *FILLED_BY)):
        message = "Only attributes of users have claim, scim and sso."
        yield problem(name, "invalid_option", message)
    if one["writable_by"] == Level.SUPERADMIN.word and any(one[key] for key in FILLED_BY):
        # An account's admins choose the directory and the provider.
        message = "What only superadmins write is filled by no scim and no sso."
        yield problem(name, "invalid_option", message)
    if one["claim"] and one["visible_to"] not in (Level.SELF.word, Level.MEMBERS.word):
        message = "A claim needs visible_to self or members, as its user can read it."
        yield problem(name, "invalid_option", message)
    if one["claim"] in RESERVED_CLAIMS and one["claim"] != (old or DEFAULTS)["claim"]:
        yield problem(name, "name_reserved", "Tokens have a claim of this name for another thing.")
    if old is not None and not messages:
        choices = {*one["options"].get("choices", ())}
        gone = [choice for choice in old["options"].get("choices", ()) if choice not in choices]
        if gone and (count := sum(1 for _ in _rows_with(kind, old["name"], gone))):
            message = f"{count} have a value that would no longer be a choice."
            yield problem(name, "in_use", message, count=count)


def _rows_with(kind: Kind, name: str, values: Sequence[str] | None = None) -> Iterator[Any]:
    """The users or accounts that have a value, or one of some choices."""
    table = TABLES[kind]
    keys = tuple(table.primary_key.columns)
    has_name = sa.cast(table.c.attributes, sa.Text).contains(f'"{name}"', autoescape=True)
    with tenancy.across_accounts():
        rows = list(names.pages(sa.select(*keys, table.c.attributes).where(has_name), *keys))
    for row in rows:
        value = row.attributes.get(name)
        held = value if isinstance(value, list) else [value]
        if name in row.attributes and (values is None or any(one in values for one in held)):
            yield row


def _replace_values(kind: Kind, name: str, new_name: str | None) -> None:
    """Give values another name, or remove them; callers who are known by them are read again."""
    table = TABLES[kind]
    for row in _rows_with(kind, name):
        values = dict(row.attributes)
        value = values.pop(name)
        values |= {} if new_name is None else {new_name: value}
        own = [column == row[index] for index, column in enumerate(table.primary_key.columns)]
        changed = {"attributes": values, "version": table.c.version + 1}
        with tenancy.across_accounts():
            db.connection().execute(sa.update(table).where(*own).values(**changed))
            if kind is Kind.USERS:
                directory.replace_attributes(row.account_id, row.id, values)
