"""Looks up TXT records at the DNS servers of the settings, or else of the system."""

from __future__ import annotations

from urllib.parse import urlsplit

from dns import resolver
from dns.exception import DNSException
from dns.nameserver import Do53Nameserver

from app import config

LIFETIME, TIMEOUT = 3.0, 1.0  # seconds of a look-up, and of a request to one server
MAX_RECORDS, MAX_LENGTH = 50, 1024
DNS_PORT = 53


class LookupFailed(Exception):
    """No DNS server gave a usable answer in time."""


def txt_records(name: str, *, follow_aliases: bool = False) -> list[str]:
    """The first TXT records of a name; none for an unknown name.

    Aliases (CNAME) count as none, unless they are followed: their target may belong to somebody
    else. Raises LookupFailed.
    """
    try:
        answer = _resolver().resolve(f"{name}.", "TXT", lifetime=LIFETIME, search=False)
    except (resolver.NXDOMAIN, resolver.NoAnswer):
        return []
    except (DNSException, OSError, ValueError) as error:
        raise LookupFailed("The DNS servers gave no answer.") from error
    if answer.canonical_name != answer.qname and not follow_aliases:
        return []
    texts = (b"".join(record.strings) for record in list(answer)[:MAX_RECORDS])
    return [text.decode("ascii", "replace") for text in texts if len(text) <= MAX_LENGTH]


def _resolver() -> resolver.Resolver:
    servers = config.current().dns_servers
    client = resolver.Resolver(configure=not servers)
    if servers:
        addresses = [urlsplit(f"//{server}") for server in servers]
        client.nameservers = [
            Do53Nameserver(str(address.hostname), address.port or DNS_PORT) for address in addresses
        ]
    client.timeout = TIMEOUT
    return client
