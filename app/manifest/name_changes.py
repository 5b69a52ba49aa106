"""Names of roles, groups and attributes after a manifest, and the rules that follow them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from app.accounts import attributes, names, sso_settings
from app.accounts.attributes import Kind
from app.collections import attribute_definitions, definitions, expression_names
from app.collections.attribute_definitions import Change
from app.collections.definitions import Definition
from app.manifest.definitions import Comparison
from app.rules import named
from app.rules.named import ROLE
from app.types import JSONMapping


@dataclass(frozen=True)
class NameChanges:
    """The resulting names, the new name of each renamed role, and the changes of attributes."""

    roles: frozenset[str]
    groups: frozenset[str]
    renames: Mapping[str, str] = field(default_factory=dict)
    attributes: Mapping[Kind, Change] = field(default_factory=dict)

    @contextmanager
    def expected(self) -> Iterator[None]:
        """Check expressions against these names."""
        defined = {kind: [*_defined(change)] for kind, change in self.attributes.items()}
        with names.expecting(self.roles, self.groups), attributes.expecting(defined):
            yield

    def followed(self, definition: Definition) -> Definition:
        """Return a definition whose rules use the new names.

        A rule that cannot be rewritten stays as it is, and is refused later.
        """
        texts = expression_names.rules_and_rights(definition)
        followed, names_role = dict(texts), expression_names.role_test(definition)
        for former, name in self.renames.items():
            for place, text in followed.items():
                if named.names(text, ROLE, former, names_role):
                    followed[place] = named.renamed(text, ROLE, former, name, names_role) or text
        changed = followed != texts
        return expression_names.with_texts(definition, followed) if changed else definition

    def counted(self, definition: Definition) -> Definition:
        """Return a definition whose rules name attributes as values are stored at present."""
        texts = expression_names.rules_and_rights(definition)
        fragments, names_role = dict(definition.fragments), expression_names.role_test(definition)
        for kind, change in self.attributes.items():
            for former, name in change.renamed.items():
                mention = (attribute_definitions.MENTIONS[kind], name, former, names_role)
                for found in (texts, fragments):
                    found |= {
                        key: named.renamed(one, *mention) or one for key, one in found.items()
                    }
        return replace(expression_names.with_texts(definition, texts), fragments=fragments)

    def affects(self, definition: Definition) -> bool:
        """Whether rules of a definition name a renamed role by its former or its new name."""
        names_role = expression_names.role_test(definition)
        return any(
            named.names(text, ROLE, name, names_role)
            for pair in self.renames.items()
            for name in pair
            for text in expression_names.rules_and_rights(definition).values()
        )


def find(content: JSONMapping) -> NameChanges:
    """Return the names of roles and groups that there are once a manifest is applied."""
    roles, renames = sso_settings.role_names(), dict[str, str]()
    for item in content.get("roles", ()):
        name, former = item["name"], item.get("rename_from")
        if item.get("removed"):
            roles.discard(name)
            continue
        if former in roles and name not in roles:
            renames[former] = name
            roles.discard(former)
        roles.add(name)
    groups = {
        item["name"]
        for account in content.get("accounts", {}).values()
        for item in account.get("groups", ())
        if not item.get("removed")
    }
    listed = {kind: content.get("attributes", {}).get(kind.value) for kind in Kind}
    planned = {
        kind: attribute_definitions.plan(kind, body) for kind, body in listed.items() if body
    }
    sound = {kind: change for kind, change in planned.items() if not change.problems}
    return NameChanges(frozenset(roles), frozenset(groups), renames, sound)


def _defined(change: Change) -> Iterator[JSONMapping]:
    """Yield the resulting attributes, renamed ones also by the names that they have now."""
    former = {name: old for old, name in change.renamed.items()}
    for one in change.definitions:
        yield one
        if one["name"] in former:
            yield {**one, "name": former[one["name"]]}


@contextmanager
def future(comparison: Comparison) -> Iterator[None]:
    """Use the resulting definitions in the block; those of removed collections are closed."""
    resulting = {} if comparison.problems else comparison.definitions()
    for _, row in comparison.removed:
        resulting[row.name_key] = replace(definitions.from_row(row), rules={})
    with definitions.override(resulting):
        yield
