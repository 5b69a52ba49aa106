"""Texts of mails in requests and responses."""

from __future__ import annotations

import marshmallow as ma

from app.accounts.product.mail_templates import LONGEST_HTML, LONGEST_SUBJECT, LONGEST_TEXT
from app.web import fields
from app.web.fields import doc
from app.web.languages import LANGUAGES
from app.web.schemas import Schema, View, example

EXAMPLE = {
    "subject": "Welcome to {{ product.name }}",
    "text": "Hello {{ user.name }},\n\nconfirm your address:\n\n{{ link }}\n",
    "html": None,
    "reply_to": "help@helpdesk.example",
}
SUBJECT = "One line, without `{{ link }}`."
TEXT = "Plain text. Null: made of the HTML."
HTML = (
    "What the body contains: paragraphs, headings, lists, tables, links and emphasis; no scripts,"
    " images or other elements. Null: made of the text."
)


class PreviewBody(Schema):
    """A text to try."""

    subject = fields.Text(longest=LONGEST_SUBJECT, **doc(SUBJECT))
    text = fields.Text(longest=LONGEST_TEXT, allow_none=True, **doc(TEXT))
    html = fields.Text(longest=LONGEST_HTML, allow_none=True, **doc(HTML))
    reply_to = fields.Text(longest=320, allow_none=True, **doc("Where replies go.", **fields.EMAIL))


class MailTemplateBody(PreviewBody):
    """The subject of a mail, and its text, its HTML, or both, with placeholders."""

    requires = ("subject",)


@example(
    **EXAMPLE,
    kind="verify_email",
    language="en",
    is_changed=True,
    placeholders=["user.name", "account.name", "product.name", "link", "expires"],
)
class MailTemplateView(View):
    """A text of a mail, as it is in force."""

    kind = ma.fields.String()
    language = fields.Choice(LANGUAGES)
    is_changed = ma.fields.Boolean(**doc("Whether it is the instance's or the account's own."))
    placeholders = ma.fields.List(ma.fields.String())
    subject = ma.fields.String(**doc(SUBJECT))
    text = ma.fields.String(allow_none=True, **doc(TEXT))
    html = ma.fields.String(allow_none=True, **doc(HTML))
    reply_to = ma.fields.String(allow_none=True, metadata=fields.EMAIL)


@example(
    kind="verify_email",
    title="A user confirms an address",
    placeholders=["user.name", "account.name", "product.name", "link", "expires"],
    changed=["en"],
)
class MailKindView(View):
    """A kind of mails."""

    kind = ma.fields.String()
    title = ma.fields.String(**doc("When it is sent."))
    placeholders = ma.fields.List(ma.fields.String())
    changed = ma.fields.List(ma.fields.String(), **doc("The languages in which it is changed."))


class MailTemplateList(View):
    """The kinds of mails, and the languages of their texts."""

    items = ma.fields.List(ma.fields.Nested(MailKindView))
    languages = ma.fields.List(ma.fields.String())


@example(
    subject="Welcome to Helpdesk",
    text="Hello Ann,\n\nconfirm your address:\n\nhttps://helpdesk.example/verify?token=EXAMPLE\n",
    html="<!doctype html>...",
)
class PreviewView(View):
    """A mail as it would arrive, with examples for placeholders."""

    subject = ma.fields.String()
    text = ma.fields.String()
    html = ma.fields.String(**doc("A whole document."))
