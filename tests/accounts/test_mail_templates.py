"""Texts of mails: who may change them, what they may contain, and what arrives."""

from __future__ import annotations

import html
import itertools
import random
import re
import time
import unicodedata
from email import message_from_bytes
from email.message import EmailMessage
from email.policy import SMTP
from html.parser import HTMLParser
from typing import Any

import pytest
from flask import Flask

from app import clock, db
from app.accounts.models import User
from app.accounts.product import mail_templates, mails
from app.accounts.product.mail_kinds import KINDS
from app.accounts.product.mail_templates import Template
from app.context import tenancy
from app.errors import InvalidValues
from app.outbound import mail, mail_markup
from app.web.languages import LANGUAGES
from tests.accounts.test_product import data, forget, png, refused
from tests.builders import Caller, Cast
from tests.mailbox import body_of, link_in, outbox, run_jobs
from tests.manifest.manifests import exported
from tests.test_mail import Receiver, use

RESET = "mail-templates/reset_password/en"
OWN = f"account/{RESET}"
TEXT = (
    "Hello {{ user.name }} of {{account.name}},\n\n{{ link }}\n\n"
    "until {{ expires }}. {{ product.name }}"
)
BODY = {"subject": "A password for {{ account.name }}", "text": TEXT}


def mailed(user: Caller) -> EmailMessage:
    """A new reset mail to a user."""
    assert forget(user).status_code == 200
    run_jobs(user.app)
    letter = outbox(user.app)[-1]
    assert letter["To"] == user.email
    return letter


def let_brand(cast: Cast, may: bool = True) -> None:
    assert cast.root.put("product", {"accounts_may_brand": may}).status_code == 200


def test_mail_templates_of_the_instance_are_changed_by_superadmins(cast: Cast) -> None:
    assert cast.alice.get("mail-templates").status_code == 403
    assert cast.alice.put(RESET, BODY).status_code == 403
    listed = cast.root.get("mail-templates").json
    assert listed["languages"] == ["en", "de"]
    assert [one["kind"] for one in listed["items"]] == list(KINDS)
    built_in = cast.root.get(RESET).json
    assert not built_in["is_changed"]
    assert "{{ link }}" in built_in["text"]
    saved = cast.root.put(RESET, BODY).json
    assert saved == cast.root.get(RESET).json
    assert (saved["is_changed"], saved["text"], saved["html"]) == (True, TEXT, None)
    changed = {one["kind"]: one["changed"] for one in cast.root.get("mail-templates").json["items"]}
    assert changed["reset_password"] == ["en"]
    assert not any(languages for kind, languages in changed.items() if kind != "reset_password")
    cast.root.put("product", {"name": "Helpdesk"})
    letter = mailed(cast.bob)
    assert letter["Subject"] == "A password for Acme"
    text = body_of(letter).replace("\r\n", "\n")
    assert text.startswith("Hello bob of Acme,\n\nhttp")
    assert re.search(r"until 20\d\d-\d\d-\d\d \d\d:\d\d UTC\. Helpdesk", text)
    assert f'<a href="{html.escape(link_in(letter))}">' in body_of(letter, "html")
    assert "Report it to" in text
    assert cast.root.delete(RESET).status_code == 204
    assert cast.root.delete(RESET).status_code == 404
    assert mailed(cast.bob)["Subject"] == "Set your password"


def test_mail_templates_fall_back_by_language(cast: Cast) -> None:
    let_brand(cast)
    assert cast.bob.patch("auth/me", {"language": "de"}).status_code == 200
    cast.root.put(RESET, {**BODY, "subject": "instance en"})
    cast.alice.put(OWN, {**BODY, "subject": "account en"})
    assert mailed(cast.bob)["Subject"] == "Ihr Passwort festlegen"
    cast.root.put("mail-templates/reset_password/de", {**BODY, "subject": "instance de"})
    assert mailed(cast.bob)["Subject"] == "instance de"
    assert cast.alice.get("account/mail-templates/reset_password/de").json["subject"] == (
        "instance de"
    )
    cast.alice.put("account/mail-templates/reset_password/de", {**BODY, "subject": "account de"})
    assert mailed(cast.bob)["Subject"] == "account de"
    assert mailed(cast.charlie)["Subject"] == "instance en"
    let_brand(cast, False)
    assert mailed(cast.bob)["Subject"] == "instance de"


UNKNOWN = ("mail-templates/{}/en", "mail-templates/{}/en/preview", "mail-templates/{}/en/test")


def test_mail_template_of_an_unknown_kind_or_language_is_404(cast: Cast) -> None:
    let_brand(cast)
    for caller, prefix in ((cast.root, ""), (cast.alice, "account/")):
        for path in ("nothing/en", "reset_password/fr", "reset_password/EN"):
            one = f"{prefix}mail-templates/{path}"
            assert caller.get(one).status_code == 404
            assert caller.put(one, BODY).status_code == 404
            assert caller.delete(one).status_code == 404
            assert caller.post(f"{one}/preview", BODY).status_code == 404
            assert caller.post(f"{one}/test").status_code == 404
    # Accounts' admins are who these warn of.
    for kind in ("pii_member_removed", "pii_sign_in_refused", "admin_left"):
        assert cast.alice.get(f"account/mail-templates/{kind}/en").status_code == 404


REFUSED: dict[str, tuple[dict[str, Any], str, str]] = {
    "no subject": ({"subject": ""}, "subject", "required"),
    "nothing": ({"text": None}, "text", "required"),
    "no link": ({"text": "Hello"}, "text", "link_missing"),
    "no link in HTML": ({"html": "<p>Hello</p>"}, "html", "link_missing"),
    "unknown": ({"text": TEXT + "{{ user.password }}"}, "text", "unknown_placeholder"),
    "of another kind": ({"text": TEXT + "{{ domain }}"}, "text", "unknown_placeholder"),
    "an expression": ({"text": TEXT + "{{ 7 * 7 }}"}, "text", "unknown_placeholder"),
    "a filter": ({"text": TEXT + "{{ link | safe }}"}, "text", "unknown_placeholder"),
    "half of one": ({"text": TEXT + "{{ link"}, "text", "unknown_placeholder"),
    "a link in the subject": ({"subject": "{{ link }}"}, "subject", "unknown_placeholder"),
    "two lines": ({"subject": "a\nBcc: x@evil.example"}, "subject", "control_character"),
    "a carriage return": ({"subject": "a\rb"}, "subject", "control_character"),
    "turned around": ({"subject": "a\u202eb"}, "subject", "control_character"),
    "turned around in HTML": (
        {"html": "<p>{{ link }} &#8238;b</p>"},
        "html",
        "control_character",
    ),
    "a bell": ({"text": TEXT + "\x07"}, "text", "control_character"),
    "a zero width space": ({"text": TEXT + "\u200b"}, "text", "control_character"),
    "a script": ({"html": "{{ link }}<script>x</script>"}, "html", "invalid_html"),
    "an image": ({"html": '{{ link }}<img src="https://e.example">'}, "html", "invalid_html"),
    "an event": ({"html": '<p onclick="x()">{{ link }}</p>'}, "html", "invalid_html"),
    "a script as a link": (
        {"html": '<a href="javascript:alert(1)">{{ link }}</a>'},
        "html",
        "invalid_html",
    ),
    "a style that loads": (
        {"html": '<p style="background: url(https://e.example)">{{ link }}</p>'},
        "html",
        "invalid_html",
    ),
    "a style with escapes": (
        {"html": '<p style="color: \\75rl(x)">{{ link }}</p>'},
        "html",
        "invalid_html",
    ),
    "a position": ({"html": '<p style="position: fixed">{{ link }}</p>'}, "html", "invalid_html"),
    "out of its place": (
        {"html": '<p style="margin: 1px\n2px -900px">{{ link }}</p>'},
        "html",
        "invalid_html",
    ),
    "a form": ({"html": "<form>{{ link }}</form>"}, "html", "invalid_html"),
    "not closed": ({"html": "<p><b>{{ link }}</p>"}, "html", "invalid_html"),
    "a comment": ({"html": "{{ link }}<!-- [if mso] -->"}, "html", "invalid_html"),
    "a document": ({"html": "<!doctype html><p>{{ link }}</p>"}, "html", "invalid_html"),
    "an empty address": ({"reply_to": ""}, "reply_to", "invalid_email"),
    "no address": ({"reply_to": "a@b\r\nBcc: c@d.example"}, "reply_to", "invalid_email"),
    "too many": ({"text": "{{ link }} " * 51}, "text", "too_many_items"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_invalid_mail_template_is_400(cast: Cast, case: str) -> None:
    changes, field, code = REFUSED[case]
    let_brand(cast)
    for caller, path in ((cast.root, RESET), (cast.alice, OWN)):
        for answer in (
            caller.put(path, BODY | changes),
            caller.post(f"{path}/preview", BODY | changes),
            caller.post(f"{path}/test", BODY | changes),
        ):
            assert (field, code) in refused(answer)
        assert not caller.get(path).json["is_changed"]


DEAR = {
    "digits": ("{{ link }} " + "1" * 9_900, "1" * 29_900),
    "letters that are digits": ("{{ link }} " + "\u2473" * 9_900, "\u2473" * 29_900),
    "depths": ("{{ link }}", "<b>" * 4_900 + "<a>" * 4_900),
}


@pytest.mark.parametrize("case", DEAR)
def test_mail_template_costs_no_more_than_its_length(cast: Cast, case: str) -> None:
    let_brand(cast)
    text, html = DEAR[case]
    start = time.process_time()
    cast.alice.post(f"{OWN}/preview", BODY | {"text": text, "html": html})
    assert time.process_time() - start < 0.7


def test_problem_of_a_mail_template_says_where(cast: Cast) -> None:
    body = {"subject": "x", "text": "a\n {{ link }} {{ no }}", "html": "a\n<i>"}
    messages = " ".join(one["message"] for one in cast.root.put(RESET, body).json["details"])
    assert "There is no placeholder no. Use: " in messages
    assert " Line 2, column 13." in messages
    assert "The element <i> is not closed. Line 2, column 1." in messages


LINKS = {
    "address": "https://evil.example/x",
    "without a scheme": "see www.evil.example now",
    "bare name": "see evil.example now",
    "in capitals": "see EVIL.EXAMPLE now",
    "full-width dot": "evil\uff0eexample",
    "ideographic dot": "evil\u3002example",
    "half-width dot": "evil\uff61example",
    "one dot leader": "evil\u2024example",
    "punycode": "xn--pypal-4ve.xn--p1ai",
    "joined": "evil\u200d.example",
    "accented": "evile\u0301.example",
    "mail address": "write to a@evil",
    "mailto": "mailto:a",
    "telephone": "tel:+15550100",
    "number": "192.0.2.1/x",
    "share": "\\\\evil\\share",
    "behind the link": "{{ link }}.evil.example",
    "at the link": "{{ link }}@evil",
    "before the link": "x{{ link }}",
    "name as a domain": "{{ user.name }}.com",
    "name below a domain": "evil.{{ user.name }}",
}


@pytest.mark.parametrize("case", LINKS)
def test_account_text_with_another_link_is_400(cast: Cast, case: str) -> None:
    let_brand(cast)
    text = LINKS[case]
    escaped = html.escape(text).replace("evil", "<b>ev</b>il")
    bodies = {
        "text": {"text": f"{{{{ link }}}}\n\n{text}"},
        "html": {"text": None, "html": f"<p>{{{{ link }}}}</p><p>{escaped}</p>"},
    }
    if "link" not in text:
        bodies["subject"] = {"subject": text}
    for field, changes in bodies.items():
        assert refused(cast.alice.put(OWN, BODY | changes)) == [(field, "other_link")], field
    # The operator may write to their own users what they like, but nothing that gets the token.
    gets_token = "{{ link }}" in text
    assert cast.root.put(RESET, BODY | bodies["text"]).status_code == (400 if gets_token else 200)


MARKUP = {
    "a link": '<a href="https://evil.example">click</a>',
    "a relative link": '<a href="//evil.example">click</a>',
    "a link with the other's": '<a href="{{ link }}.evil.example">click</a>',
    "a link with more": '<a href="{{ link }}" ping="https://evil.example">click</a>',
    "an image": '<img src="https://evil.example/x.png">',
    "a picture": '<picture srcset="https://evil.example/x.png"></picture>',
    "a background": '<table background="https://evil.example/x.png"></table>',
    "a style": '<p style="background-image: url(//evil.example)">x</p>',
    "an import": "<style>@import 'https://evil.example'</style>",
    "a base": '<base href="https://evil.example/">',
    "a refresh": '<meta http-equiv="refresh" content="0; url=https://evil.example">',
    "a form": '<form action="https://evil.example"></form>',
    "a drawing": '<svg><a href="https://evil.example"><text>x</text></a></svg>',
    "a link by numbers": '<a href="&#104;ttps://evil.example">click</a>',
}


@pytest.mark.parametrize("case", MARKUP)
def test_account_markup_with_another_link_is_400(cast: Cast, case: str) -> None:
    let_brand(cast)
    body = {"subject": "x", "html": f"<p>{{{{ link }}}}</p>{MARKUP[case]}"}
    assert ("html", "invalid_html") in refused(cast.alice.put(OWN, body))


def test_account_mail_templates_need_the_operators_consent(cast: Cast) -> None:
    account = f"accounts/{cast.alice.account_id}"
    for may, of_all in ((None, False), (False, True)):
        let_brand(cast, of_all)
        assert cast.root.patch(account, {"may_brand": may}).json["may_brand"] is may
        for answer in (
            cast.alice.get("account/mail-templates"),
            cast.alice.get(OWN),
            cast.alice.put(OWN, BODY),
            cast.alice.delete(OWN),
            cast.alice.post(f"{OWN}/preview"),
            cast.alice.post(f"{OWN}/test", BODY),
            cast.alice.get("account/brand"),
        ):
            assert (answer.status_code, answer.json["error"]) == (403, "branding_off")
    let_brand(cast, False)
    assert cast.root.patch(account, {"may_brand": True}).status_code == 200
    cast.alice.put("account/brand", {"name": "Acme Support", "logo": data(png(), "png")})
    body = BODY | {"reply_to": "help@acme.example"}
    assert cast.alice.put(OWN, body).status_code == 200
    letter = mailed(cast.bob)
    assert letter["Subject"] == "A password for Acme"
    assert letter["Reply-To"] == "help@acme.example"
    assert letter["From"].addresses[0].display_name == "Acme Support"
    assert f"product/logo?account={cast.alice.account_id}" in body_of(letter, "html")
    assert mailed(cast.charlie)["Reply-To"] is None
    # What was written has no effect once the operator takes it back.
    assert cast.root.patch(account, {"may_brand": False}).status_code == 200
    letter = mailed(cast.bob)
    assert (letter["Subject"], letter["Reply-To"]) == ("Set your password", None)
    assert "product/logo" not in body_of(letter, "html")
    # Nobody gives it to themself.
    assert cast.alice.patch(account, {"may_brand": True}).status_code == 403
    assert cast.alice.patch("account", {"may_brand": True}).status_code == 422


def test_members_of_pii_access_and_superadmins_get_the_operators_texts(cast: Cast) -> None:
    let_brand(cast)
    cast.alice.put(OWN, BODY | {"subject": "of the account"})
    assert mailed(cast.bob)["Subject"] == "of the account"
    groups = cast.alice.get("groups").json["items"]
    group = next(one["id"] for one in groups if one["name"] == "pii_access")
    cast.alice.post(f"groups/{group}/members", {"user_id": cast.bob.id})
    assert mailed(cast.bob)["Subject"] == "Set your password"


def test_names_in_a_mail_are_neither_links_nor_placeholders(app: Flask, cast: Cast) -> None:
    let_brand(cast)
    cast.alice.put(OWN, {"subject": "{{ user.name }}", "html": "<p>{{ user.name }} {{ link }}</p>"})
    for name in ("{{ link }} www.evil.example", "<b onclick=x>Bob</b>", "https://evil.example/"):
        assert cast.bob.patch("auth/me", {"name": name}).status_code == 200
        letter = mailed(cast.bob)
        for text in (str(letter["Subject"]), body_of(letter), body_of(letter, "html")):
            assert "evil.example" not in text
            assert "<b onclick" not in body_of(letter, "html")
        assert len(re.findall("token=", body_of(letter))) == 1


def test_text_and_html_are_made_of_each_other(cast: Cast) -> None:
    answer = cast.root.post(
        f"{RESET}/preview", {"subject": "x", "text": "One\ntwo\n\n{{ link }} <3"}
    )
    assert "<p>One<br>two</p>" in answer.json["html"]
    assert "&lt;3" in answer.json["html"]
    markup = (
        "<h1>Hi</h1><p>One <b>two</b></p><ul><li>a</li><li>b</li></ul><a href='{{ link }}'>Go</a>"
    )
    answer = cast.root.post(f"{RESET}/preview", {"subject": "x", "html": markup})
    assert answer.json["text"].startswith("Hi\n\nOne two\n\n- a\n- b\n\nGo http")
    assert "<h1>Hi</h1>" in answer.json["html"]
    assert cast.root.post(f"{RESET}/preview").json["subject"] == "Set your password"


def test_html_made_of_a_text_has_a_button_above_its_link(cast: Cast) -> None:
    let_brand(cast)
    labels = set[str]()
    for (kind, one), language in itertools.product(KINDS.items(), LANGUAGES):
        shown = cast.root.post(f"mail-templates/{kind}/{language}/preview").json
        found = re.findall(r'<a href="([^"]*)"(?: style="[^"]*")?>([^<]*)</a>', shown["html"])
        if not one.has_link:
            assert found == []
            continue
        (address, label), (bare, text) = found
        assert address == bare == text
        assert re.search(rf"^{label}:\s{re.escape(html.unescape(bare))}$", shown["text"], re.M)
        labels.add(label)
    assert {"Verify address", "Adresse bestätigen"} <= labels

    def shown_as(**body: str) -> str:
        answer = cast.alice.post(f"{OWN}/preview", {"subject": "x", **body})
        assert answer.status_code == 200, answer.json
        return str(answer.json["html"])

    assert ">A &lt;b&gt; &amp; c</a><br>" in shown_as(text="Look:\nA <b> & c: {{ link }}\nnow")
    # None within a sentence, and none in HTML of one's own.
    for body in ({"text": "Go: to {{ link }} now"}, {"html": "<p>Go: {{ link }}</p>"}):
        assert "padding: 10px" not in shown_as(**body)


def test_preview_of_every_kind_fills_all_placeholders(cast: Cast) -> None:
    let_brand(cast)
    for kind, one in KINDS.items():
        for language in LANGUAGES:
            path = f"mail-templates/{kind}/{language}"
            shown = cast.root.post(f"{path}/preview").json
            for text in shown.values():
                assert "{{" not in text
                assert "None" not in text
            assert ("http://atrium.test/example" in shown["text"]) is one.has_link
            # What is built in may be saved as it is, with each of its placeholders.
            own = cast.root.get(path).json
            text = f"{own['text']}\n" + " ".join(
                f"{{{{ {name} }}}}" for name in own["placeholders"]
            )
            body = {"subject": own["subject"], "text": text}
            assert cast.root.put(path, body).status_code == 200, (kind, own)
            if one.for_accounts:
                assert cast.alice.put(f"account/{path}", body).status_code == 200, (kind, own)


def test_mail_template_is_sent_to_the_caller_alone(cast: Cast) -> None:
    let_brand(cast)
    for caller, path in ((cast.root, RESET), (cast.alice, OWN)):
        assert caller.post(f"{path}/test", BODY).status_code == 204
        run_jobs(cast.root.app)
        letter = outbox(cast.root.app)[-1]
        assert letter["To"] == caller.email
        assert "A password for" in letter["Subject"]
        assert not caller.get(path).json["is_changed"]
    codes = [cast.alice.post(f"{OWN}/test").status_code for _ in range(20)]
    assert codes == [204] * 19 + [429]


def test_mail_templates_are_in_the_manifest(cast: Cast) -> None:
    let_brand(cast)
    texts = {"reset_password": {"en": BODY, "de": BODY | {"subject": "Passwort"}}}
    manifest = {
        "version": 1,
        "mail_templates": texts,
        "accounts": {"acme": {"mail_templates": texts}},
    }

    def plan(content: dict[str, Any]) -> Any:
        return cast.root.post("manifest/plan", {"manifest": content}).json

    def apply(content: dict[str, Any]) -> Any:
        body = {"manifest": content, "plan_hash": plan(content)["plan_hash"]}
        return cast.root.post("manifest/apply", body)

    planned = plan(manifest)
    assert [one["kind"] for one in planned["operations"]] == [
        "mail_templates",
        "mail_template",
        "mail_template",
    ]
    applied = apply(manifest)
    assert applied.status_code == 200, applied.json
    assert not plan(manifest)["has_changes"]
    assert exported(cast.root)["mail_templates"] == texts
    assert exported(cast.root)["accounts"]["acme"]["mail_templates"] == texts
    assert cast.alice.get(OWN).json["is_changed"]
    again = apply({"version": 1, **planned["reverse"]})
    assert again.status_code == 200, again.json
    assert not cast.root.get(RESET).json["is_changed"]
    assert not cast.alice.get(OWN).json["is_changed"]
    wrong = {"reset_password": {"en": {"subject": "x", "text": "no link"}, "fr": BODY}, "no": {}}
    places = {
        one["field"]
        for one in plan(
            {**manifest, "mail_templates": wrong, "accounts": {"acme": {"mail_templates": wrong}}}
        )["problems"]
    }
    assert "mail_templates.reset_password.en.text" in places
    assert "mail_templates.reset_password.fr" in places
    assert "accounts.acme.mail_templates.reset_password.en.text" in places
    let_brand(cast, False)
    problems = plan(manifest)["problems"]
    assert {one["code"] for one in problems} == {"branding_off"}


class Tags(HTMLParser):
    """The tags, attributes and texts of a document."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


PIECES = [
    *("{{ link }}", "{{link}}", "{{ user.name }}", "{{ account.name }}", "{{ product.name }}"),
    *("{{ expires }}", "{{ user.password }}", "{{ 7 * 7 }}", "{% for x in y %}", "{{", "}}", "{{{"),
    *("{{ config.SECRET }}", "{{ ''.__class__ }}", "{# x #}", "${x}", "%(link)s", "#{x}"),
    *("<script>alert(1)</script>", "<img src=x onerror=alert(1)>", "<svg/onload=alert(1)>"),
    *("<a href='javascript:alert(1)'>", "<a href='{{ link }}'>", "</a>", "<a href={{ link }}x>"),
    *("<p style='background:url(//e.example)'>", "<p style='color: red'>", "<p>", "</p>", "<b>"),
    *("</b>", "<!-- ", "-->", "<![CDATA[", "]]>", "<?xml ?>", "<!doctype html>", "<", ">", '"'),
    *("'", "&", "&lt;script&gt;", "&#60;script&#62;", "&#x202e;", "&#0;", "<plaintext>", "<xmp>"),
    *(
        "<math><mtext><style>",
        "</style>",
        "<title>",
        "<textarea>",
        "<noscript>",
        "<iframe srcdoc='",
    ),
    *("\r\n", "\r", "\n", "\n\n", "\0", "\x0b", "\x1b[31m", "\u202e", "\u2028", "\u200b", "\ufeff"),
    *(
        "\r\nBcc: x@evil.example\r\n",
        "=?utf-8?q?x?=",
        "www.evil.example",
        "evil.example",
        " ",
        "  ",
    ),
    *(
        "xn--evil.example",
        "a@evil.example",
        "Hello",
        "Grüße",
        "日本",
        "🎈",
        "e\u0301",
        "<br>",
        "<li>",
    ),
]
ALLOWED = mail_markup.TAGS
HOSTILE = ("Bob", "{{ link }}", "<script>x</script>", "evil.example", "a\r\nBcc: x@evil.example")
HEAD = mail.Letterhead("Acme", footer="Report it to help@acme.example")
LINK = "https://app.example.com/reset?token=AA0001.secret&x=<1>"


def test_random_texts_leak_nothing_run_nothing_and_agree(app: Flask, cast: Cast) -> None:
    let_brand(cast)
    chance, taken = random.Random(53), 0
    with app.app_context(), tenancy.across_accounts():
        for _ in range(1200):
            body = {
                field: "".join(chance.choices(PIECES, k=chance.randint(1, 6)))
                for field in chance.choice((("text",), ("html",), ("text", "html")))
            }
            body = {field: f"{text} {{{{ link }}}} ." for field, text in body.items()}
            body["subject"] = "".join(chance.choices(PIECES, k=chance.randint(1, 3)))
            account_id = chance.choice((None, cast.alice.account_id))
            names = ("user.name", "account.name", "product.name")
            values = {name: mail.plain_name(chance.choice(HOSTILE)) for name in names}
            values |= {"link": LINK, "expires": "2026-11-30 10:00 UTC"}
            try:
                template = mail_templates.checked("reset_password", "en", account_id, body)
            except InvalidValues:
                # Whatever the database has, it does no harm.
                stored = Template(body["subject"], body.get("text"), body.get("html"))
                letter = mail_templates.render(stored, values, of_account=account_id is not None)
                if letter is not None:
                    check_harmless(letter, of_account=account_id is not None)
                continue
            taken += 1
            letter = mail_templates.render(template, values, of_account=account_id is not None)
            if letter is None:  # by a name that contains an address
                assert account_id is not None
                assert any("@" in value for value in values.values())
                continue
            check_harmless(letter, of_account=account_id is not None)
            check_whole(letter)
            assert LINK in letter.text
            assert html.escape(LINK) in letter.html
            if len(body) == 2:
                assert words(letter.text) == words("".join(Tags(letter.html).texts)), body
    assert taken > 100


def check_harmless(letter: mail.Letter, *, of_account: bool) -> None:
    """Check that nothing runs, loads, leaks or leads elsewhere."""
    shown = Tags(letter.html)
    assert {tag for tag, _ in shown.tags} <= ALLOWED, letter
    for tag, attributes in shown.tags:
        assert set(attributes) <= {"href", "style"}, letter
        assert "url" not in (attributes.get("style") or ""), letter
        if "href" in attributes:
            assert tag == "a", letter
            assert not of_account or attributes["href"] == LINK, letter
            assert re.match("https?://|mailto:", attributes["href"] or ""), letter
    seen = "".join(shown.texts)
    for text in (letter.subject, letter.text, seen):
        # Of expressions, nothing but what was written is left.
        assert "49" not in text
        assert "Secret" not in text
        assert not of_account or "evil.example" not in text, letter


def check_whole(letter: mail.Letter) -> None:
    """Check the mail as it is sent: its headers, and nothing that turns text around."""
    message = mail._compose("bob@acme.example", letter, HEAD, "en")
    parsed = message_from_bytes(message.as_bytes(), policy=SMTP)
    assert list(parsed) == list(message)
    assert sorted(set(parsed)) == sorted(parsed)
    assert "Bcc" not in parsed
    for text in (letter.subject, letter.text, "".join(Tags(letter.html).texts)):
        kinds = {unicodedata.category(one) for one in text if one not in "\n\t\u200c\u200d"}
        assert not kinds & {"Cc", "Cf", "Zl", "Zp"}, letter


def words(text: str) -> str:
    """The letters and digits of a text."""
    return "".join(filter(str.isalnum, text))


def test_logo_of_a_product_without_a_name_has_no_text(cast: Cast) -> None:
    cast.root.put("product", {"logo": "https://cdn.example.com/logo.svg"})
    (image,) = re.findall(r"<img[^>]*>", body_of(mailed(cast.bob), "html"))
    assert 'alt=""' in image


@pytest.mark.long
def test_no_mail_names_this_service_where_a_product_is_set(
    app: Flask, cast: Cast, monkeypatch: pytest.MonkeyPatch
) -> None:
    logo = data(png(), "png")
    body = {"name": "Helpdesk", "logo": logo, "support_email": "help@helpdesk.example"}
    assert cast.root.put("product", body).status_code == 200
    subjects: dict[str, set[str]] = {}
    own = {
        "mail_from": "Atrium <mail@helpdesk.example>",
        "base_url": "https://api.helpdesk.example",
    }
    with Receiver() as receiver, app.app_context():
        use(app, monkeypatch, f"smtp://127.0.0.1:{receiver.port}", **own)
        bob = db.db.session.get_one(User, (cast.bob.account_id, cast.bob.id))
        for kind, one in KINDS.items():
            for language in LANGUAGES:
                context = {"link": "https://app.helpdesk.example/x?token=1", **one.example}
                about = {"account": "Acme", "user": bob, "language": language}
                caused_by = "Alice (alice@acme.example)" if one.has_report else None
                mails.send(
                    kind,
                    cast.bob.email,
                    bob.account_id,
                    **about,
                    caused_by=caused_by,
                    expires=clock.now(),
                    **context,
                )
                subjects.setdefault(kind, set()).add(str(receiver.received[-1]["Subject"]))
        sender = mails.sender(bob.account_id, "Acme", "AA0001")
        mail.send_for(sender, cast.bob.email, "workflow", key="x", subject="Hello", body="Hello")
    assert len(receiver.received) == len(KINDS) * 2 + 1
    for letter in receiver.received:
        assert letter["From"].addresses[0].display_name.endswith("Helpdesk")
        parts = (body_of(letter), body_of(letter, "html"))
        for text in (*parts, *map(str, letter.values())):
            assert "atrium" not in text.lower(), text
            assert "{{" not in text
        assert words(parts[0]) in words("".join(Tags(parts[1]).texts))
    assert all("product/logo" in body_of(one, "html") for one in receiver.received[:-1])
    assert {kind: len(texts) for kind, texts in subjects.items()} == dict.fromkeys(KINDS, 2)
