"""Finds workflows and hooks that name a collection, its fields and choices, or roles and groups.

Their templates and conditions are untyped. A field is named by whatever mentions the collection, or
takes events of any, and contains the name as a word; a collection by a setting, or in quotes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import sqlalchemy as sa

from app import db, events
from app.accounts import names
from app.accounts.names import Name, Use
from app.collections import definitions, expression_names, renaming
from app.collections.definitions import Definition
from app.context import tenancy
from app.errors import problem
from app.rules import named
from app.rules.named import CHOICE, GROUP, ROLE, NamesRole
from app.types import JSONMapping, JSONObject
from app.workflows import service
from app.workflows.language import named_texts, recipients, templates
from app.workflows.language.definition import ACTION, WAIT_EVENT, Written, lists_in
from app.workflows.language.expressions import ROOTS
from app.workflows.models import ACTIVE, INSTANCES, Workflow, WorkflowVersion

# Settings that name no field.
STRUCTURE = {"name", "type", "next", "on_true", "on_false", "steps", "branches", "action_type"}
STRUCTURE |= {"event", "events", "collection", "timeout", "duration", "poll_interval", "method"}


@events.subscribe(events.FieldNamesEnd)
def find_in_workflows(event: events.FieldNamesEnd) -> None:
    """Add a problem for each place, in all accounts, also of older versions that still run.

    Filters of other collections name fields behind references, too.
    """
    key, of = event.definition.name.lower(), event.definition
    words = re.compile(rf"(?<!\w)({'|'.join(map(re.escape, sorted(event.names)))})(?!\w)", re.ASCII)
    uses = [
        (row, place, name)
        for row in _rows()
        if _mentions(row, key)
        for place, text in _texts(row)
        for name in sorted({*words.findall(text)})
    ]
    known = _collections()
    uses += [
        (row, place, name)
        for row in _rows()
        if not _mentions(row, key)
        for place, text, about in _named_texts(row, known)
        for name in sorted(event.names & renaming.fields_named(text, about, of))
    ]
    event.problems.extend(_problems(uses, "field_in_use"))


@events.subscribe(events.CollectionNameEnds)
def find_collection(event: events.CollectionNameEnds) -> None:
    """Add a problem for each place, in all accounts, also of older versions that still run."""
    quoted = re.compile(rf"(['\"]){re.escape(event.name)}\1", re.IGNORECASE)
    uses, known = [], _collections()
    for row in _rows():
        for place, name in _named(row):
            if name.lower() == event.name.lower() or quoted.search(name):
                uses.append((row, place, event.name))
        uses += [(row, place, event.name) for place, text in _texts(row) if quoted.search(text)]
        for place, text, _ in _named_texts(row, known):
            if renaming.looks_at(text, event.name):
                uses.append((row, place, event.name))
    event.problems.extend(_problems(uses, "collection_in_use"))


@events.subscribe(events.ChoicesEnd)
def find_choices(event: events.ChoicesEnd) -> None:
    """Add a problem for each expression that compares a field with one of the choices."""
    key, uses, known = event.definition.name.lower(), [], _collections()
    for row in _rows():
        is_mentioned = _mentions(row, key)
        for place, text, about in _named_texts(row, known):
            for one in named.mentions(text):
                ends = one.kind == CHOICE and one.value in event.choices.get(one.path[-1], ())
                if ends and (is_mentioned or expression_names.is_of(event.definition, one, about)):
                    uses.append((row, place, one.value))
    event.problems.extend(_problems(uses, "in_use"))


@names.place
def in_workflows(name: Name) -> Iterator[Use]:
    """The workflows and hooks that name it, and older versions that still run."""
    columns = (Workflow.trigger, Workflow.condition, Workflow.steps)
    current = _workflows().where(sa.or_(*map(_may_name, columns)))
    running = _running().where(_may_name(WorkflowVersion.steps))
    keys, known = (Workflow.account_id, Workflow.id), _collections()
    for row in names.pages(current.where(*name.where(Workflow.account_id)), *keys):
        texts, tests = _naming(name, row, known)
        if texts:
            follow = partial(_store, row.account_id, row.id)
            owner = f"workflows[{row.id}]"
            yield Use(owner, texts, follow, row.account_id, role_tests=tests)
        if mailed := _mailed(name, row.steps):
            follow = partial(_store_recipients, row.account_id, row.id, name)
            yield Use(f"workflows[{row.id}]", mailed, follow, row.account_id, are_names=True)
    for row in db.connection().execute(running.where(*name.where(WorkflowVersion.account_id))):
        texts, _ = _naming(name, row, known)
        texts = {place: text for place, text in texts.items() if place.startswith("steps.")}
        if texts := {**texts, **_mailed(name, row.steps)}:
            owner = f"workflows[{row.id}].versions[{row.version}]"
            yield Use(owner, texts, None, row.account_id)


def _may_name(column: Any) -> Any:
    return sa.or_(names.about_callers(column), sa.cast(column, sa.Text).contains('"group"'))


def _mailed(name: Name, steps: Sequence[Written]) -> dict[str, str]:
    """The steps whose mails go to a role or group, by place."""
    if name.kind not in (ROLE, GROUP):
        return {}
    mails = recipients.named(steps, name.kind)
    return {
        f"steps.{step}.to": name.value
        for step, _, value in mails
        if recipients.is_same(value, name.value)
    }


def _store_recipients(
    account_id: str, workflow_id: str, name: Name, texts: Mapping[str, str]
) -> None:
    new = next(iter(texts.values()))
    service.follow_names(account_id, workflow_id, {}, recipient=(name.kind, name.value, new))


def _naming(
    name: Name, row: Any, known: Mapping[str, Definition]
) -> tuple[dict[str, str], dict[str, NamesRole]]:
    """The texts that name it by place, and what tells roles of people in each."""
    texts, tests = dict[str, str](), dict[str, NamesRole]()
    for place, text, about in _named_texts(row, known):
        test = expression_names.role_test_of([about] if about else [*known.values()], ROOTS)
        if named.names(text, name.kind, name.value, test):
            texts[place], tests[place] = text, test
    return texts, tests


def _collections() -> dict[str, Definition]:
    return {one.name.lower(): one for one in definitions.get_all(with_views=True)}


def _named_texts(
    row: Any, known: Mapping[str, Definition]
) -> Iterator[tuple[str, str, Definition | None]]:
    """The conditions and filters by place, with the collection that each is about, if one is."""
    about = named_texts.collections(row.trigger, row.steps)
    for place, text in named_texts.find(row.trigger, row.condition, row.steps).items():
        yield place, text, known.get(str(about.get(place)).lower())


def _store(account_id: str, workflow_id: str, texts: Mapping[str, str]) -> None:
    service.follow_names(account_id, workflow_id, texts)


def _rows() -> list[Any]:
    with tenancy.across_accounts():
        return [*db.connection().execute(_workflows()), *db.connection().execute(_running())]


def _problems(uses: Sequence[tuple[Any, str, str]], code: str) -> Iterator[JSONObject]:
    # Versions of a workflow share most of their steps.
    places = {(f"workflows[{row.id}].{place}", name): row for row, place, name in uses}
    for (path, name), row in places.items():
        yield problem(path, code, f"A workflow of account {row.account_id} names {name}.")


def _workflows() -> Any:
    columns = (Workflow.account_id, Workflow.id, Workflow.trigger, Workflow.condition)
    query = sa.select(*columns, Workflow.steps)
    return query.order_by(Workflow.account_id, Workflow.id)


def _running() -> Any:
    version = WorkflowVersion
    running = sa.exists().where(
        INSTANCES.c.account_id == version.account_id,
        INSTANCES.c.workflow_id == version.workflow_id,
        INSTANCES.c.version == version.version,
        INSTANCES.c.status.in_(ACTIVE),
    )
    same = sa.and_(Workflow.account_id == version.account_id, Workflow.id == version.workflow_id)
    columns = (version.account_id, version.workflow_id.label("id"), Workflow.trigger)
    query = sa.select(*columns, Workflow.condition, version.steps, version.version)
    query = query.select_from(version)
    return (
        query.join(Workflow, same)
        .where(running, Workflow.version != version.version)
        .order_by(*columns[:2])
    )


def _mentions(row: Any, key: str) -> bool:
    names = [name for _, name in _named(row)]
    return any(not name or templates.has_template(name) or name.lower() == key for name in names)


def _named(row: Any) -> Iterator[tuple[str, str]]:
    """The collections that a workflow names, each with its place; empty for any."""
    if row.trigger.get("collection"):
        yield "trigger.collection", row.trigger["collection"]
    yield from _named_in_steps(row.steps)


def _named_in_steps(steps: Sequence[Written]) -> Iterator[tuple[str, str]]:
    for step in steps:
        settings, place = step["config"] if step["type"] == ACTION else step, step["name"]
        if settings.get("collection") or step["type"] == WAIT_EVENT:
            yield f"steps.{place}", settings.get("collection") or ""
        for inner in lists_in(step):
            yield from _named_in_steps(inner)


def _texts(row: Any) -> Iterator[tuple[str, str]]:
    yield from (("trigger", text) for text in _strings(_settings(row.trigger)))
    if row.condition:
        yield "condition", row.condition
    yield from _texts_of_steps(row.steps)


def _texts_of_steps(steps: Sequence[Written]) -> Iterator[tuple[str, str]]:
    for step in steps:
        for text in _strings(_settings(step)):
            yield f"steps.{step['name']}", text
        for inner in lists_in(step):
            yield from _texts_of_steps(inner)


def _settings(step: JSONMapping) -> list[object]:
    config = step.get("config") or {}
    own = [value for name, value in step.items() if name not in STRUCTURE and name != "config"]
    configured = [value for name, value in config.items() if name not in (*STRUCTURE, "data")]
    data = config.get("data")
    return [*own, *configured, data, [*data] if isinstance(data, dict) else None]


def _strings(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from _strings(item)
    elif isinstance(value, list):
        for item in value:
            yield from _strings(item)
