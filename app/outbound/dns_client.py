"""TXT records, asked of the DNS servers of the settings or of the system."""

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


def txt_records(name: str) -> list[str]:
    """The first TXT records of a name; none for an unknown name.

    Aliases (CNAME) count as none: their target may belong to somebody else. Raises LookupFailed.
    """
    try:
        answer = _resolver().resolve(f"{name}.", "TXT", lifetime=LIFETIME, search=False)
    except (resolver.NXDOMAIN, resolver.NoAnswer):
        return []
    except (DNSException, OSError, ValueError) as error:
        raise LookupFailed("The DNS servers gave no answer.") from error
    if answer.canonical_name != answer.qname:
        return []
    texts = (b"".join(record.strings) for record in list(answer)[:MAX_RECORDS])
    return [text.decode("ascii", "replace") for text in texts if len(text) <= MAX_LENGTH]


def _resolver() -> resolver.Resolver:
    servers = config.current().dns_servers
    made = resolver.Resolver(configure=not servers)
    if servers:
        made.nameservers = [_server(server) for server in servers]
    made.timeout = TIMEOUT
    return made


def _server(text: str) -> Do53Nameserver:
    parts = urlsplit(f"//{text}")
    return Do53Nameserver(str(parts.hostname), parts.port or DNS_PORT)
