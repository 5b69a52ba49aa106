"""What a manifest does to names of roles and groups, and to what names them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from app.accounts import names, sso_settings
from app.collections import definitions, expression_names
from app.collections.definitions import Definition
from app.manifest.definitions import Comparison
from app.rules import named
from app.rules.named import ROLE
from app.types import JSONMapping


@dataclass(frozen=True)
class NameChanges:
    """The names that there will be, and the new name of each renamed role."""

    roles: frozenset[str]
    groups: frozenset[str]
    renames: Mapping[str, str] = field(default_factory=dict)

    @contextmanager
    def expected(self) -> Iterator[None]:
        """Check expressions against these names."""
        with names.expecting(self.roles, self.groups):
            yield

    def followed(self, definition: Definition) -> Definition:
        """A definition whose rules follow the new names; what cannot stays, and is refused."""
        rules = dict(definition.rules)
        for former, name in self.renames.items():
            for key in expression_names.RULES:
                text = rules.get(key) or ""
                if named.names(text, ROLE, former):
                    rules[key] = named.renamed(text, ROLE, former, name) or text
        return replace(definition, rules=rules) if rules != definition.rules else definition

    def affects(self, definition: Definition) -> bool:
        """Whether rules of a definition name a renamed role by its former or its new name."""
        return any(
            named.names(definition.rules.get(key) or "", ROLE, name)
            for pair in self.renames.items()
            for name in pair
            for key in expression_names.RULES
        )


def find(content: JSONMapping) -> NameChanges:
    """What the roles and groups of a manifest come to."""
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
    return NameChanges(frozenset(roles), frozenset(groups), renames)


@contextmanager
def future(comparison: Comparison) -> Iterator[None]:
    """Look at the collections as they will be, without those that are removed."""
    found = {} if comparison.problems else comparison.definitions()
    for _, row in comparison.removed:
        found[row.name_key] = replace(definitions.from_row(row), rules={})
    with definitions.override(found):
        yield
