"""What the service mails: jobs carried out on demand, and the letters they leave."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from email import message_from_bytes
from email.message import EmailMessage
from email.policy import default
from typing import cast

from flask import Flask

from app import config
from app.jobs import worker
from tests.builders import Caller
from tests.sql import statements


def run_jobs(app: Flask) -> int:
    """Carry out what is due, as a worker would."""
    with app.app_context():
        return worker.run_due()


def outbox(app: Flask) -> list[EmailMessage]:
    """The mails written so far, oldest first."""
    with app.app_context():
        folder = config.current().instance_dir / "outbox"
    return [_read(path.read_bytes()) for path in sorted(folder.glob("*.eml"))]


def body_of(mail: EmailMessage, kind: str = "plain") -> str:
    """The text of a mail, or its HTML."""
    part = mail.get_body((kind,))
    assert part is not None
    return str(part.get_content())


def link_in(mail: EmailMessage) -> str:
    """The link that a mail carries."""
    found = re.search(r"https?://\S+", body_of(mail))
    assert found is not None
    return found[0]


def token_in(mail: EmailMessage) -> str:
    """The token of the link that a mail carries."""
    return link_in(mail).partition("token=")[2]


def check_alike(
    app: Flask, path: str, bodies: Mapping[str, Mapping[str, str]], mailed: Collection[str]
) -> None:
    """Check that each body has the response and statements of `known`, and who gets a mail."""
    anyone, seen = Caller(app), {}
    for case, body in bodies.items():
        with statements(app) as sent:
            answer = anyone.post(path, dict(body))
        seen[case] = (answer.status_code, answer.text, sent)
        before = len(outbox(app))
        run_jobs(app)
        assert len(outbox(app)) - before == (case in mailed), case
    first = seen.pop("known")
    assert first[0] == 200
    assert all(other == first for other in seen.values())


def _read(raw: bytes) -> EmailMessage:
    return cast(EmailMessage, message_from_bytes(raw, policy=default))
