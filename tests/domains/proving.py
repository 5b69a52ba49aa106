"""Adding and proving domains."""

from __future__ import annotations

from typing import Any

from tests.builders import Caller
from tests.name_server import NameServer


def add(owner: Caller, name: str = "acme.example") -> dict[str, Any]:
    """A new domain of an account."""
    answer = owner.post("account/domains", {"domain": name})
    assert answer.status_code == 201, answer.json
    added: dict[str, Any] = answer.json
    return added


def prove(dns: NameServer, owner: Caller, name: str = "acme.example") -> dict[str, Any]:
    """A verified domain of an account."""
    domain = add(owner, name)
    dns.prove(domain)
    answer = owner.post(f"account/domains/{domain['id']}/verify")
    assert answer.status_code == 200, answer.json
    proved: dict[str, Any] = answer.json
    return proved
