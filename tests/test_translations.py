"""Every text of pages and mails can be translated, and every language has all of them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from flask import Flask
from jinja2 import Environment, nodes

from app.accounts.product import mail_templates
from app.web import languages
from tests import mailbox, translations
from tests.builders import Cast
from tests.console import furnished
from tests.console.browser import Browser, token

PROJECT = Path(__file__).resolve().parent.parent
TEMPLATES = sorted(
    path
    for path in (PROJECT / "templates").rglob("*.*")
    # The API description is in English, and programs are.
    if path.parent.name != "apidocs" and not path.name.startswith("verify_")
)
ENVIRONMENT = Environment(autoescape=True, extensions=["jinja2.ext.i18n"])
WORD = re.compile(r"[^\W\d_]{2,}")
# Brands, and texts for machines.
UNTRANSLATED = re.compile(
    r"Atrium|UTC|-created_at|OAuth 2.0|SAML 2.0|Ctrl|light dark"
    r"|bin/atrium audit verify --checkpoint FILE"
)
MARKUP = re.compile(r"=\"|<|\.html$")
TRANSLATING = {"_", "gettext", "ngettext", "pgettext", "npgettext"}
READ_ATTRIBUTES = {"aria-label", "title", "placeholder", "alt", "data-label"}
MACHINE_READABLE = {"code", "kbd", "pre", "samp", "script", "style", "textarea", "time"}
PARTS = re.compile(r"%\(\w+\)s|%%|</?[^>]*>|\{\w+\}|&\w+;")  # placeholders and markup
ENGLISH = re.compile(
    r"(?<!/)\b(the|of|and|this|are|with|not|from|there)\b", re.IGNORECASE | re.ASCII
)


class _Texts(HTMLParser):
    """Collects what people read in HTML; each expression of the template is a `\\x1a`."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self._open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._open.append(tag)
        self.found += [value or "" for name, value in attrs if name in READ_ATTRIBUTES]

    def handle_endtag(self, tag: str) -> None:
        if tag in self._open:
            while self._open.pop() != tag:
                pass

    def handle_data(self, data: str) -> None:
        if not MACHINE_READABLE & set(self._open):
            self.found.append(data)


def _markup(source: str) -> str:
    """What a template has outside of its expressions and statements."""
    return "".join(
        {"data": value, "variable_begin": "\x1a"}.get(kind, "")
        for _, kind, value in ENVIRONMENT.lex(source)
    )


def _untranslated_markup(source: str) -> Iterator[str]:
    parser = _Texts()
    parser.feed(_markup(source))
    for text in parser.found:
        if WORD.search(UNTRANSLATED.sub("", text)) and not MARKUP.search(text):
            yield text.strip()


def _constants(node: nodes.Node) -> Iterator[str]:
    """The texts within expressions that no call translates."""
    if isinstance(node, nodes.Call):
        name = node.node.name if isinstance(node.node, nodes.Name) else ""
        if name in TRANSLATING or name == "url_for":
            return
    if isinstance(node, nodes.Compare):
        return
    if isinstance(node, nodes.Const) and isinstance(node.value, str):
        yield node.value
    for child in node.iter_child_nodes(["key"] if isinstance(node, nodes.Pair) else None):
        yield from _constants(child)


def _untranslated_constants(source: str) -> Iterator[str]:
    for text in _constants(ENVIRONMENT.parse(source)):
        text = UNTRANSLATED.sub("", text)
        is_text = re.match(r"\s*[A-Z][a-z]", text) or re.search(r"[a-z,:] ", text)
        if is_text and WORD.search(text) and not MARKUP.search(text):
            yield text


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: str(path.relative_to(PROJECT)))
def test_template_texts_are_translatable(path: Path) -> None:
    source = path.read_text()
    assert [*_untranslated_markup(source), *_untranslated_constants(source)] == []


@pytest.mark.long
@pytest.mark.parametrize("domain", ["messages", "errors"])
@pytest.mark.parametrize("language", translations.LANGUAGES)
def test_translation_catalogs_are_complete(language: str, domain: str) -> None:
    catalog = translations.stored(language, domain)
    texts = {message.id: message for message in catalog if message.id}
    needed = {message.id for message in translations.extracted(domain) if message.id}
    assert texts.keys() == needed, "run `make translations`"
    faults = [fault for message in texts.values() for fault in _faults(message)]
    assert faults == []


def _faults(message: Any) -> Iterator[tuple[str, str]]:
    """Where a translation is missing, or has other placeholders or markup than the text."""
    originals, forms = _forms(message.id), _forms(message.string)
    if not all(forms) or message.fuzzy:
        yield str(message.id), "has no translation"
    for form in forms:
        allowed = [sorted(PARTS.findall(original)) for original in originals]
        if sorted(PARTS.findall(form)) not in allowed:
            yield str(message.id), form


def _forms(text: str | Sequence[str]) -> Sequence[str]:
    return [text] if isinstance(text, str) else text


class _Marked:
    """Translations whose letters are all of full width."""

    def ugettext(self, text: str) -> str:
        """The text, marked but for its placeholders and markup."""
        kept = [match.span() for match in PARTS.finditer(text)]
        return "".join(
            letter if any(start <= n < end for start, end in kept) else self._wide(letter)
            for n, letter in enumerate(text)
        )

    def ungettext(self, singular: str, plural: str, number: int) -> str:
        """The form of a text, marked."""
        return self.ugettext(singular if number == 1 else plural)

    @staticmethod
    def _wide(letter: str) -> str:
        return chr(ord(letter) + 0xFEE0) if letter.isascii() and letter.isalpha() else letter


@pytest.fixture
def marked(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Pages whose translated texts can be told from others."""
    monkeypatch.setattr(languages.Messages, "get_translations", lambda domain: _Marked())
    mail_templates._built_in.cache_clear()
    yield
    mail_templates._built_in.cache_clear()


@pytest.mark.long
@pytest.mark.usefixtures("marked")
def test_console_pages_show_no_untranslated_english(app: Flask, cast: Cast) -> None:
    pages = furnished.addresses(app, furnished.furnish(app, cast))
    del pages["console.show_migrations"]  # with descriptions of the revisions
    found = set()
    for caller in (cast.root, cast.alice):
        browser = Browser(app, caller)
        browser.client.set_cookie(languages.COOKIE, "de")
        for path in pages.values():
            answer = browser.client.get(path, buffered=True)
            if answer.mimetype == "text/html" and not answer.location:
                parser = _Texts()
                parser.feed(answer.text)
                found |= {text.strip() for text in parser.found if ENGLISH.search(text)}
    assert found == set()


def test_browser_language_selects_translation(app: Flask, cast: Cast) -> None:
    browser = Browser(app, cast.alice)
    german = {"Accept-Language": "fr, de-AT;q=0.8, en;q=0.5"}
    page = browser.client.get("/console/profile", headers=german).text
    assert '<html lang="de"' in page
    assert "<h1>Profil</h1>" in page
    refused = browser.client.post(
        "/console/profile",
        data={"csrf_token": token(browser.client), "email": "x", "name": "n" * 201},
        headers=german,
    )
    assert "Höchstens 200 Zeichen." in refused.text
    missing = browser.client.get(f"/console/records/{cast.alice.account_id}/none", headers=german)
    assert "Diese Collection gibt es nicht." in missing.text
    assert "<h1>Profile</h1>" in browser.client.get("/console/profile").text
    assert cast.alice.get("records/none", headers=german).json["message"].startswith("There is no")


def test_profile_language_applies_to_browsers_and_mails(app: Flask, cast: Cast) -> None:
    alice = cast.alice
    assert alice.patch("auth/me", {"language": "xx"}).status_code == 422
    assert alice.get("auth/me").json["language"] is None
    browser = Browser(app, alice)
    form = {"email": alice.email, "name": "Alice", "language": "de"}
    browser.client.post("/console/profile", data={**form, "csrf_token": token(browser.client)})
    assert "<h1>Profil</h1>" in browser.client.get("/console/profile").text
    assert alice.get("auth/me").json["language"] == "de"
    other = Browser(app, alice)
    assert "<h1>Profil</h1>" in other.client.get("/console/profile").text
    alice.post("auth/forgot-password", {"account": alice.slug, "email": alice.email})
    mailbox.run_jobs(app)
    assert mailbox.outbox(app)[-1]["Subject"] == "Ihr Passwort festlegen"


def test_script_texts_are_in_page(app: Flask, cast: Cast) -> None:
    browser = Browser(app, cast.alice)
    browser.client.set_cookie(languages.COOKIE, "de")
    page = browser.client.get("/console").text
    texts = json.loads(unescape(re.findall(r'id="texts">(.*?)</script>', page, re.DOTALL)[0]))
    scripts = " ".join(path.read_text() for path in (PROJECT / "static/console").glob("*.js"))
    calls = re.findall(r'\btranslate\((?:[^"()]*\? )?"([^"]+)"(?: : "([^"]+)")?', scripts)
    assert {text for call in calls for text in call if text} == texts.keys()
