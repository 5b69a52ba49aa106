"""A DNS server on loopback, over UDP and TCP, with the TXT records that a test gives it."""

from __future__ import annotations

import socketserver
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import dns.flags
import dns.message
import dns.rcode
import dns.rrset
import sqlalchemy as sa

from app import db
from app.accounts.domains.models import AccountDomain

UDP_BYTES = 512


def published_records(name: str) -> list[str]:
    """The TXT records of all domains, as if their accounts had published them."""
    domains = db.db.session.scalars(sa.select(AccountDomain)).all()
    return [domain.record_value for domain in domains if domain.record_name == name]


@dataclass
class NameServer:
    """`texts` are the records by name, `aliases` the targets of CNAMEs; `*.` matches any label."""

    texts: dict[str, list[str]] = field(default_factory=dict)
    aliases: dict[str, str] = field(default_factory=dict)
    rcode: dns.rcode.Rcode | None = None
    silent: bool = False
    asked: list[str] = field(default_factory=list)
    address: str = ""

    def answer(self, query: bytes) -> dns.message.Message:
        """The response to a query."""
        request = dns.message.from_wire(query)
        name = str(request.question[0].name).rstrip(".").lower()
        self.asked.append(name)
        response = dns.message.make_response(request)
        if self.rcode is not None:
            response.set_rcode(self.rcode)
            return response
        owner = name
        if name in self.aliases:
            owner = self.aliases[name]
            response.answer.append(dns.rrset.from_text(f"{name}.", 60, "IN", "CNAME", f"{owner}."))
        texts = self.texts.get(owner, self.texts.get(f"*.{owner.partition('.')[2]}"))
        if texts is None:
            response.set_rcode(dns.rcode.NXDOMAIN)
            return response
        quoted = [
            " ".join(f'"{text[n : n + 255]}"' for n in range(0, len(text), 255)) for text in texts
        ]
        if quoted:
            response.answer.append(dns.rrset.from_text(f"{owner}.", 60, "IN", "TXT", *quoted))
        return response

    def prove(self, domain: dict[str, Any]) -> None:
        """Add the record that proves a domain of the API."""
        self.texts.setdefault(domain["record_name"], []).append(domain["record_value"])


@contextmanager
def serving() -> Iterator[NameServer]:
    """A server for the time of a test."""
    server = NameServer()

    class Udp(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            data, socket = self.request
            response = server.answer(data)
            wire = response.to_wire(max_size=65535)
            if len(wire) > UDP_BYTES:
                response.answer.clear()
                response.flags |= dns.flags.TC
                wire = response.to_wire()
            if not server.silent:
                socket.sendto(wire, self.client_address)

    class Tcp(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            (length,) = struct.unpack("!H", self.rfile.read(2))
            wire = server.answer(self.rfile.read(length)).to_wire(max_size=65535)
            self.wfile.write(struct.pack("!H", len(wire)) + wire)

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Tcp) as tcp:
        port = tcp.server_address[1]
        with socketserver.ThreadingUDPServer(("127.0.0.1", port), Udp) as udp:
            server.address = f"127.0.0.1:{port}"
            for one in (tcp, udp):
                threading.Thread(target=one.serve_forever, args=(0.05,), daemon=True).start()
            try:
                yield server
            finally:
                for one in (tcp, udp):
                    one.shutdown()
