"""Mails over real SMTP: what arrives, what is refused, and what nobody gets to see."""

from __future__ import annotations

import contextlib
import socket
import ssl
from contextlib import closing
from dataclasses import replace
from datetime import timedelta
from email import message_from_bytes
from email.message import EmailMessage
from email.policy import default
from pathlib import Path
from smtplib import SMTPException
from typing import Any, cast

import pytest
import sqlalchemy as sa
from aiosmtpd.controller import Controller
from aiosmtpd.smtp import AuthResult, LoginPassword
from flask import Flask
from jinja2 import DictLoader

from app import db
from app.db.functions import database_now
from app.jobs import Job
from app.outbound import mail
from tests import certificates
from tests.builders import PASSWORD, Caller
from tests.mailbox import body_of, link_in, outbox, run_jobs, token_in

SECRET = "s3cret/p@ss word"
IN_URL = "user:s3cret%2Fp%40ss%20word@"
BODY = {
    "account": "acme",
    "account_name": "Acme",
    "email": "ann@acme.example",
    "password": PASSWORD,
}


class Receiver:
    """An SMTP server on loopback that keeps what it gets."""

    def __init__(self, **options: Any) -> None:
        self.received: list[EmailMessage] = []
        self.recipients: list[str] = []
        self.logins: list[tuple[bytes, bytes]] = []
        with closing(socket.socket()) as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self._controller = Controller(
            self,
            hostname="127.0.0.1",
            port=self.port,
            authenticator=self._authenticate,
            **{"enable_SMTPUTF8": True, **options},
        )

    def __enter__(self) -> Receiver:
        self._controller.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._controller.stop()

    async def handle_DATA(self, server: Any, session: Any, envelope: Any) -> str:
        self.received.append(
            cast(EmailMessage, message_from_bytes(envelope.content, policy=default))
        )
        self.recipients += envelope.rcpt_tos
        return "250 OK"

    def _authenticate(self, *context: Any) -> AuthResult:
        given: LoginPassword = context[-1]
        self.logins.append((given.login, given.password))
        return AuthResult(success=given.password == SECRET.encode(), handled=False)


def use(app: Flask, monkeypatch: pytest.MonkeyPatch, url: str, **changes: Any) -> None:
    """Mail by that URL from now on."""
    settings = replace(app.extensions["atrium.config"], mail_url=url, **changes)
    monkeypatch.setitem(app.extensions, "atrium.config", settings)


def send(app: Flask, to: str = "ann@acme.example", **context: Any) -> None:
    with app.app_context():
        mail.send(to, "verify_email", **{"link": "https://x.example/", "account": "A", **context})


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, ssl.SSLContext]:
    """A self-made certificate for 127.0.0.1, and a server's context with it."""
    path = certificates.make(tmp_path_factory.mktemp("tls"))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(path)
    return path, context


@pytest.fixture
def trusted(certificate: tuple[Path, ssl.SSLContext], monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine trusts that certificate."""
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate[0]))


def test_registration_mails_over_smtp(
    app: Flask, anyone: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Receiver() as receiver:
        use(app, monkeypatch, f"smtp://127.0.0.1:{receiver.port}", mail_from="Ätrium <a@b.example>")
        assert anyone.post("auth/register", BODY).status_code == 201
        assert receiver.received == []
        assert run_jobs(app) == 1
    (got,) = receiver.received
    assert receiver.recipients == ["ann@acme.example"]
    assert (got["To"], got["From"]) == ("ann@acme.example", "Ätrium <a@b.example>")
    assert got["Subject"] == "Verify your email address"
    assert got["Date"].datetime.utcoffset() == timedelta(0)
    assert got["Message-ID"]
    assert got.get_content_type() == "multipart/alternative"
    assert [part.get_content_type() for part in got.iter_parts()] == ["text/plain", "text/html"]
    link = link_in(got)
    assert f'href="{link}"' in body_of(got, "html")
    assert outbox(app) == []
    assert anyone.get(link.removeprefix("http://atrium.test")).status_code == 200


def test_smtp_login_with_credentials_of_url(app: Flask, monkeypatch: pytest.MonkeyPatch) -> None:
    with Receiver(auth_require_tls=False) as receiver:
        use(app, monkeypatch, f"smtp://{IN_URL}127.0.0.1:{receiver.port}")
        send(app)
        use(app, monkeypatch, f"smtp://user:wrong@127.0.0.1:{receiver.port}")
        with pytest.raises(SMTPException):
            send(app)
    assert receiver.logins[0] == (b"user", SECRET.encode())
    assert len(receiver.received) == 1


@pytest.mark.usefixtures("trusted")
def test_smtp_starttls_precedes_login(
    app: Flask, certificate: tuple[Path, ssl.SSLContext], monkeypatch: pytest.MonkeyPatch
) -> None:
    with Receiver(
        tls_context=certificate[1], auth_required=True, require_starttls=True
    ) as receiver:
        use(app, monkeypatch, f"smtp://{IN_URL}127.0.0.1:{receiver.port}?starttls=1")
        send(app)
    assert (len(receiver.received), len(receiver.logins)) == (1, 1)


def test_smtp_untrusted_certificate_is_refused(
    app: Flask, certificate: tuple[Path, ssl.SSLContext], monkeypatch: pytest.MonkeyPatch
) -> None:
    with Receiver(tls_context=certificate[1]) as receiver:
        use(app, monkeypatch, f"smtp://{IN_URL}127.0.0.1:{receiver.port}?starttls=1")
        with pytest.raises(ssl.SSLCertVerificationError):
            send(app)
    with Receiver(ssl_context=certificate[1]) as other:
        use(app, monkeypatch, f"smtps://{IN_URL}127.0.0.1:{other.port}")
        with pytest.raises(ssl.SSLCertVerificationError):
            send(app)
    assert receiver.received == receiver.logins == other.received == other.logins == []


@pytest.mark.usefixtures("trusted")
def test_smtp_certificate_of_other_host_is_refused(
    app: Flask, certificate: tuple[Path, ssl.SSLContext], monkeypatch: pytest.MonkeyPatch
) -> None:
    with Receiver(tls_context=certificate[1]) as receiver:
        use(app, monkeypatch, f"smtp://{IN_URL}localhost:{receiver.port}?starttls=1")
        with pytest.raises(ssl.SSLCertVerificationError):
            send(app)
    assert receiver.received == receiver.logins == []


def test_smtp_server_without_starttls_gets_no_mail(
    app: Flask, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Receiver() as receiver:
        use(app, monkeypatch, f"smtp://127.0.0.1:{receiver.port}?starttls=1")
        with pytest.raises(SMTPException):
            send(app)
    assert receiver.received == []


@pytest.mark.parametrize(
    "to",
    [
        "a@b.example\r\nBcc: c@d.example",
        "a@b.example\nBcc: c@d.example",
        "a@b.example\rX: y",
        "a@b.example\r\n\r\nHello",
    ],
)
def test_mail_recipient_with_line_break_raises_value_error(app: Flask, to: str) -> None:
    with pytest.raises(ValueError, match="linefeed"):
        send(app, to)
    assert outbox(app) == []


@pytest.mark.parametrize(
    ("name", "number"), [("A\r\nBcc: c@d.example", 1), ("A\rBcc: c@d.example", 0)]
)
def test_mail_subject_with_line_break_adds_no_header(
    app: Flask, name: str, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    template = "Hello {{ title }}, this is the subject\nThe body.\n"
    texts = {"email/hello.txt": template, "email/layout.html": "{{ content }}"}
    monkeypatch.setattr(app.jinja_env, "loader", DictLoader(texts))
    with app.app_context(), contextlib.suppress(ValueError):
        mail.send("ann@acme.example", "hello", title=name)
    assert all(got["Bcc"] is None for got in outbox(app))
    assert len(outbox(app)) == number


def test_mail_html_escapes_account_name(app: Flask, anyone: Caller) -> None:
    name = '<script>alert(1)</script><a href="//evil">{{ 7 * 7 }}</a>'
    assert anyone.post("auth/register", {**BODY, "account_name": name}).status_code == 201
    run_jobs(app)
    (got,) = outbox(app)
    html = body_of(got, "html")
    assert "&lt;script&gt;" in html
    assert "<script" not in html
    assert '<a href="//evil' not in html
    assert "{{ 7 * 7 }}" in html
    assert name in body_of(got)


def test_mail_with_unicode_names_and_addresses(
    app: Flask, anyone: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Receiver() as receiver:
        use(app, monkeypatch, f"smtp://127.0.0.1:{receiver.port}")
        for slug, email in (("one", "ann@acme.example"), ("two", "änne@bücher.example")):
            body = {**BODY, "account": slug, "account_name": "Bücher 日本 🎈", "email": email}
            assert anyone.post("auth/register", body).status_code == 201
        assert run_jobs(app) == 2
    assert sorted(receiver.recipients) == ["ann@acme.example", "änne@bücher.example"]
    for got in receiver.received:
        assert "Bücher 日本 🎈" in body_of(got)
        assert "Bücher 日本 🎈" in body_of(got, "html")


def test_mail_to_international_domain_is_punycode(
    app: Flask, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Receiver(enable_SMTPUTF8=False) as receiver:
        sender = "Bücher <info@bücher.example>"
        use(app, monkeypatch, f"smtp://127.0.0.1:{receiver.port}", mail_from=sender)
        send(app, "ann@bücher.example")
    assert receiver.recipients == ["ann@xn--bcher-kva.example"]
    assert receiver.received[0]["To"] == "ann@xn--bcher-kva.example"
    assert receiver.received[0]["From"] == "Bücher <info@xn--bcher-kva.example>"


def test_mail_long_link_is_not_broken(app: Flask) -> None:
    link = "https://x.example/?token=" + "x" * 300
    send(app, link=link)
    (got,) = outbox(app)
    assert link_in(got) == link
    assert link in got.as_string()


@pytest.mark.parametrize("body", ["x" * 5000, f"{'ä' * 5000}\n.\n"])
def test_mail_long_body_line_arrives(
    app: Flask, monkeypatch: pytest.MonkeyPatch, body: str
) -> None:
    with Receiver() as receiver, app.app_context():
        use(app, monkeypatch, f"smtp://127.0.0.1:{receiver.port}")
        mail.send("ann@acme.example", "workflow", subject="List", body=body)
    (got,) = receiver.received
    assert body_of(got).split() == body.split()
    assert body.split()[0] in body_of(got, "html")


def test_mail_job_is_retried_while_smtp_is_down(
    app: Flask, anyone: Caller, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    receiver = Receiver(auth_require_tls=False)
    use(app, monkeypatch, f"smtp://{IN_URL}127.0.0.1:{receiver.port}")
    assert anyone.post("auth/register", BODY).status_code == 201
    assert run_jobs(app) == 1
    with app.app_context():
        row = db.connection().execute(sa.select(Job.__table__)).one()
    assert (row.status, row.attempts, row.last_error) == ("pending", 1, "ConnectionRefusedError")
    with app.app_context(), db.transaction() as session:
        session.execute(sa.update(Job).values(due_at=database_now(-1)))
    with receiver:
        assert run_jobs(app) == 1
    (got,) = receiver.received
    logged = capsys.readouterr().out + str(row)
    hidden = (SECRET, "s3cret", token_in(got), PASSWORD)
    assert "job failed" in logged
    assert not any(secret in logged for secret in hidden)
    assert "ann@acme.example" not in logged


def test_mail_refused_recipient_is_not_logged(
    app: Flask, anyone: Caller, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Refusing(Receiver):
        async def handle_RCPT(self, *context: Any) -> str:
            return "550 no such user as ann@acme.example here"

    with Refusing() as receiver:
        use(app, monkeypatch, f"smtp://127.0.0.1:{receiver.port}")
        anyone.post("auth/register", BODY)
        assert run_jobs(app) == 1
    with app.app_context():
        row = db.connection().execute(sa.select(Job.last_error)).scalar_one()
    assert row == "SMTPRecipientsRefused"
    assert "ann@acme.example" not in capsys.readouterr().out


def test_mail_outbox_files_are_separate_and_complete(app: Flask) -> None:
    for number in range(20):
        send(app, f"user{number}@acme.example")
    assert [got["To"] for got in outbox(app)] == [f"user{n}@acme.example" for n in range(20)]
