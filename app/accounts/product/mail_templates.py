"""Texts of mails: the built-in ones, those of the instance, and those of accounts.

An account's own stands before that of the instance, and that before the built-in one, in each
language. An account's admins are strangers to most who get its mails: the only link of its texts is
`{{ link }}`, and they are used only while the operator lets the account have a face of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache

import sqlalchemy as sa

from app import db
from app.accounts import service as accounts
from app.accounts import tenants
from app.accounts.models import InstanceSetting
from app.accounts.product import settings
from app.accounts.product.mail_kinds import ACCOUNT, COMMON, KINDS, MailKind
from app.accounts.product.models import MailTemplate
from app.errors import InvalidValues, NotFound, problem
from app.outbound import mail, mail_markup
from app.outbound.mail import Letter
from app.outbound.mail_markup import LINK, LINK_ONLY, PLACEHOLDER, Token
from app.types import JSONMapping, JSONObject
from app.web.languages import LANGUAGES

NAME = "mail_templates"
"""Of the setting of the instance: the texts by kind and language."""
LONGEST_SUBJECT, LONGEST_TEXT, LONGEST_HTML = 200, 10_000, 30_000
LONGEST_SENT_SUBJECT = 250
MAX_PLACEHOLDERS = 50
UNKNOWN = "There is no such kind of mails, or no such language."
NO_BODY = "Write a text, HTML, or both."
NO_LINK = "Must contain {{ link }}, which leads to what the mail is about."
ONLY_LINK = "The only link of your texts is {{ link }}."
TOUCHED = "Nothing may touch {{ link }}: put a space around it."
TOO_MANY = f"At most {MAX_PLACEHOLDERS} placeholders."


@dataclass(frozen=True)
class Template:
    """The subject and the text of a kind of mails, or its HTML, or both."""

    subject: str
    text: str | None = None
    html: str | None = None
    reply_to: str | None = None


@dataclass(frozen=True)
class Shown:
    """A template as admins see it."""

    kind: str
    language: str
    is_changed: bool
    """Whether it is the instance's, or the account's, own."""
    placeholders: tuple[str, ...]
    subject: str
    text: str | None
    html: str | None
    reply_to: str | None


@dataclass(frozen=True)
class Summary:
    """A kind of mails, and the languages in which its text is changed."""

    kind: str
    title: str
    placeholders: tuple[str, ...]
    changed: tuple[str, ...]


def summaries(account_id: str | None) -> list[Summary]:
    """The kinds of mails of an account, or of the instance (None)."""
    own = _own_of(account_id)
    return [
        Summary(
            name,
            kind.title,
            kind.placeholders,
            tuple(language for language in LANGUAGES if (name, language) in own),
        )
        for name, kind in KINDS.items()
        if account_id is None or kind.for_accounts
    ]


def show(kind: str, language: str, account_id: str | None) -> Shown:
    """The text in force, built-in if nobody has changed it. Raises NotFound."""
    placeholders = _kind(kind, language, account_id).placeholders
    own = _own(kind, language, account_id)
    template = own or of_instance(kind, language)
    return Shown(kind, language, own is not None, placeholders, **asdict(template))


def save(kind: str, language: str, account_id: str | None, body: JSONMapping) -> Shown:
    """Change a text; what is absent is empty. Raises NotFound, Forbidden or InvalidValues."""
    template = checked(kind, language, account_id, body)
    with db.transaction() as session:
        if account_id is None:
            _change_instance({kind: {language: asdict(template)}})
        else:
            tenants.get_for_update(account_id)  # two at once would both create it
            row = session.scalar(_select(account_id, kind, language))
            if row is None:
                row = MailTemplate(account_id=account_id, kind=kind, language=language)
                session.add(row)
            row.subject_line, row.reply_to = template.subject, template.reply_to
            row.body_text, row.body_html = template.text, template.html
        session.flush()
    return show(kind, language, account_id)


def delete(kind: str, language: str, account_id: str | None) -> None:
    """Return to the text that is in force without it. Raises NotFound, also if there is none."""
    _kind(kind, language, account_id)
    with db.transaction() as session:
        if _own(kind, language, account_id) is None:
            raise NotFound("This text is not changed.")
        if account_id is None:
            _change_instance({kind: {language: None}})
        else:
            session.delete(session.scalars(_select(account_id, kind, language)).one())
        session.flush()


def instance_templates() -> JSONObject:
    """The texts of the instance that differ from the built-in ones, by kind and language."""
    query = sa.select(InstanceSetting.value).where(InstanceSetting.id == NAME)
    return db.db.session.scalar(query) or {}


def change_instance(body: Mapping[str, Mapping[str, JSONMapping | None]]) -> None:
    """Change texts of the instance by kind and language; null returns to the built-in text.

    Raises InvalidValues with all problems.
    """
    cleaned = checked_instance(body)
    with db.transaction():
        _change_instance(cleaned)


def checked_instance(body: Mapping[str, Mapping[str, JSONMapping | None]]) -> JSONObject:
    """The cleaned texts of the instance, by kind and language. Raises InvalidValues."""
    problems, cleaned = list[JSONObject](), dict[str, JSONObject]()
    for kind, by_language in body.items():
        for language, one in by_language.items():
            place = f"{kind}.{language}"
            try:
                _kind(kind, language, None)
                template = asdict(checked(kind, language, None, one)) if one else None
                cleaned.setdefault(kind, {})[language] = template
            except NotFound as error:
                problems.append(problem(place, "invalid_option", error.message))
            except InvalidValues as error:
                fields = ({**each, "field": f"{place}.{each['field']}"} for each in error.details)
                problems += fields
    if problems:
        raise InvalidValues(problems)
    return cleaned


def merged(stored: JSONMapping, body: JSONMapping) -> JSONObject:
    """The stored texts of the instance with others; a null one is taken away."""
    kinds = {**stored}
    for kind, by_language in body.items():
        languages = {**kinds.get(kind, {}), **by_language}
        kinds[kind] = {language: one for language, one in languages.items() if one}
    return {kind: languages for kind, languages in kinds.items() if languages}


def _change_instance(body: JSONMapping) -> None:
    query = sa.select(InstanceSetting).where(InstanceSetting.id == NAME).with_for_update()
    row = db.db.session.scalars(query.execution_options(populate_existing=True)).one()
    value = merged(row.value, body)
    if value != row.value:
        row.value, row.version = value, row.version + 1


def checked(kind: str, language: str, account_id: str | None, body: JSONMapping) -> Template:
    """A new text. Raises NotFound, Forbidden `branding_off`, or InvalidValues with all problems."""
    one = _kind(kind, language, account_id)
    if account_id is not None:
        settings.require_branding(account_id)
    values = {
        name: (body.get(name) or "").replace("\r\n", "\n").strip() or None
        for name in ("subject", "text", "html")
    }
    reply_to = body.get("reply_to")
    template = Template(
        values["subject"] or "",
        values["text"],
        values["html"],
        None if reply_to is None else reply_to.strip(),
    )
    if problems := list(_problems(template, one, of_account=account_id is not None)):
        raise InvalidValues(problems)
    return template


def _problems(template: Template, kind: MailKind, *, of_account: bool) -> Iterator[JSONObject]:
    if not template.subject:
        yield problem("subject", "required", "Write a subject.")
    if not template.text and not template.html:
        yield problem("text", "required", NO_BODY)
    if template.reply_to is not None and (
        wrong := accounts.email_problem(template.reply_to, "reply_to")
    ):
        yield wrong
    tokens, faults = mail_markup.parse(
        template.html or "", _own_link_only if of_account else _may_lead_to
    )
    yield from (problem("html", "invalid_html", str(fault)) for fault in faults)
    plain = {"subject": template.subject, "text": template.text or ""}
    plain["html"] = mail_markup.to_text(tokens)
    for name, text in plain.items():
        source = getattr(template, name) or ""
        allowed = "" if name == "subject" else "\n\t"
        # HTML may name characters by their numbers.
        control_fault = mail_markup.control_fault
        if fault := control_fault(source, allowed) or control_fault(text, allowed):
            yield problem(name, "control_character", str(fault))
        placeholders = kind.placeholders
        if name == "subject":
            placeholders = tuple(one for one in placeholders if one != LINK)
        for fault in mail_markup.placeholder_faults(source, placeholders):
            yield problem(name, "unknown_placeholder", str(fault))
        if len(PLACEHOLDER.findall(source)) > MAX_PLACEHOLDERS:
            yield problem(name, "too_many_items", TOO_MANY)
        if source and name != "subject" and kind.has_link and not _has_link(source):
            yield problem(name, "link_missing", NO_LINK)
        # Also of the operator's texts: what touches the link would get its token.
        touched = TOUCHED if mail_markup.TOUCHED_LINK.search(text) else None
        if message := _other_link(text) if of_account else touched:
            yield problem(name, "other_link", message)


def _has_link(text: str) -> bool:
    return any(match[1] == LINK for match in PLACEHOLDER.finditer(text))


def _own_link_only(address: str) -> bool:
    return LINK_ONLY.fullmatch(address) is not None


def _may_lead_to(address: str) -> bool:
    if address.startswith("mailto:"):
        return accounts.email_problem(address.removeprefix("mailto:"), "html") is None
    return _own_link_only(address) or (tenants.is_safe_url(address) and not _has_link(address))


def _other_link(text: str, values: Mapping[str, str] | None = None) -> str | None:
    """What is wrong with the links of an account's text, besides `{{ link }}`.

    Names stand in it as they do in the mail; what the service itself states is no link of theirs.
    """
    if mail_markup.TOUCHED_LINK.search(text):
        return TOUCHED
    shown = PLACEHOLDER.sub(
        lambda match: " " if match[1] == LINK else (values or {}).get(match[1], "Xx"), text
    )
    link = mail_markup.automatic_link(shown)
    if link is None:
        return None
    return f"Mail programs would make a link of “{link[:60]}”. The only link may be {{{{ link }}}}."


def of_instance(kind: str, language: str) -> Template:
    """The text of the operator, built-in if it is not changed."""
    stored = instance_templates().get(kind, {}).get(language)
    return Template(**stored) if stored else _built_in(kind, language)


def find_own(kind: str, language: str, account_id: str) -> Template | None:
    """An account's own text, if it has one."""
    row = db.db.session.scalar(_select(account_id, kind, language))
    if row is None or not KINDS[kind].for_accounts:
        return None
    return template_of(row)


def compact(text: JSONMapping) -> JSONObject:
    """Return the parts of a text that are set."""
    return {name: value for name, value in text.items() if value is not None}


def template_of(row: MailTemplate) -> Template:
    """The stored text of an account."""
    return Template(row.subject_line, row.body_text, row.body_html, row.reply_to)


def render(template: Template, values: Mapping[str, str], *, of_account: bool) -> Letter | None:
    """The letter with the values of placeholders.

    None if an account's text would get a link other than its own by what is put in.
    """
    if of_account:
        tokens = _tokens(template, _own_link_only)
        names = {name: values.get(name, "") for name in COMMON}
        texts = (template.subject, template.text or "", mail_markup.to_text(tokens))
        if any(_other_link(one, names) for one in texts):
            return None
        return _letter(template, tokens, values)
    return letter(template, values)


def letter(template: Template, values: Mapping[str, str]) -> Letter:
    """The letter of a text of the operator, with the values of placeholders."""
    return _letter(template, _tokens(template, _may_lead_to), values)


def _tokens(template: Template, may_lead_to: Callable[[str], bool]) -> list[Token]:
    if template.html:
        return mail_markup.parse(template.html, may_lead_to)[0]
    return mail_markup.tokens_of_text(template.text or "")


def _letter(template: Template, tokens: Sequence[Token], values: Mapping[str, str]) -> Letter:
    subject = " ".join(mail_markup.fill(template.subject, values).split())
    text = template.text or mail_markup.to_text(tokens)
    return Letter(
        subject[:LONGEST_SENT_SUBJECT],
        mail_markup.wrap(mail_markup.fill(text, values)),
        mail_markup.to_html(tokens, values),
    )


def details(kind: str, language: str, account: str, context: JSONMapping) -> str:
    """What has happened, in a kind whose mails say it: `templates/email/<kind>_details.txt`."""
    context = {"account": account, **context}
    return mail.render_text(f"{kind}_details", language, context).strip()


@cache
def _built_in(kind: str, language: str) -> Template:
    names = {name: f"{{{{ {name} }}}}" for name in KINDS[kind].own}
    names["account"] = f"{{{{ {ACCOUNT} }}}}"
    text = mail.render_text(kind, language, names)
    subject, _, body = text.partition("\n")
    return Template(subject.strip(), body.strip())


def _own(kind: str, language: str, account_id: str | None) -> Template | None:
    if account_id is not None:
        return find_own(kind, language, account_id)
    stored = instance_templates().get(kind, {}).get(language)
    return Template(**stored) if stored else None


def _own_of(account_id: str | None) -> set[tuple[str, str]]:
    if account_id is None:
        stored = instance_templates()
        return {(kind, language) for kind, languages in stored.items() for language in languages}
    query = sa.select(MailTemplate.kind, MailTemplate.language)
    rows = db.db.session.execute(query.where(MailTemplate.account_id == account_id))
    return {(row.kind, row.language) for row in rows}


def _select(account_id: str, kind: str, language: str) -> sa.Select[MailTemplate]:
    return sa.select(MailTemplate).where(
        MailTemplate.account_id == account_id,
        MailTemplate.kind == kind,
        MailTemplate.language == language,
    )


def _kind(kind: str, language: str, account_id: str | None) -> MailKind:
    found = KINDS.get(kind)
    if found is None or language not in LANGUAGES or not (account_id is None or found.for_accounts):
        raise NotFound(UNKNOWN)
    return found
