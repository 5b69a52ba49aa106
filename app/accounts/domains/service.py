"""The domains of an account, and which account owns a domain."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping, Sequence
from functools import partial

import sqlalchemy as sa

from app import db, events
from app.accounts import names as role_names
from app.accounts import roles, sso_settings
from app.accounts import service as accounts
from app.accounts.domains.models import FAILING_AFTER, AccountDomain, VerifiedDomain
from app.accounts.models import ADMIN, SYSTEM_ACCOUNT_ID
from app.accounts.names import Name, Use
from app.accounts.types import Body, Problem
from app.db import errors
from app.errors import Conflict, InvalidValues, NotFound, problem
from app.rules.named import ROLE

MAX_DOMAINS = 100
"""Domains of one account."""
LONGEST = 253
LONGEST_LABEL = 63
LONGEST_CLAIMED = LONGEST - len("_atrium-challenge.")
# Mailboxes here belong to their users, not to the owner of the domain.
_PUBLIC_MAIL = """
    126.com 139.com 163.com 189.cn aim.com alice.it aol.com arcor.de att.net bellsouth.net
    bigpond.com blueyonder.co.uk bluewin.ch bol.com.br btinternet.com caramail.com centrum.cz
    comcast.net cox.net daum.net docomo.ne.jp duck.com earthlink.net email.com email.cz
    ezweb.ne.jp fastmail.com fastmail.fm foxmail.com free.fr freenet.de gmail.com gmx.at gmx.ch
    gmx.com gmx.de gmx.fr gmx.net googlemail.com hanmail.net hey.com hotmail.be hotmail.co.uk
    hotmail.com hotmail.de hotmail.es hotmail.fr hotmail.it hushmail.com icloud.com ig.com.br
    inbox.com inbox.lv inbox.ru interia.pl keemail.me laposte.net libero.it list.ru live.be
    live.ca live.co.uk live.com live.de live.fr live.it live.nl mac.com mail.com mail.de mail.ee
    mail.ru mailbox.org mailfence.com mailinator.com me.com msn.com naver.com nate.com ntlworld.com
    o2.pl onet.pl op.pl optusnet.com.au orange.fr outlook.com outlook.de outlook.es outlook.fr
    pm.me post.cz posteo.de posteo.net proton.me protonmail.ch protonmail.com qq.com rambler.ru
    rediffmail.com riseup.net rocketmail.com runbox.com sapo.pt sbcglobal.net seznam.cz sfr.fr
    shaw.ca sina.cn sina.com sky.com skynet.be sohu.com softbank.ne.jp startmail.com sympatico.ca
    t-online.de talktalk.net telenet.be terra.com.br tiscali.it tom.com tuta.com tuta.io
    tutamail.com tutanota.com tutanota.de ukr.net uol.com.br verizon.net virgilio.it
    virginmedia.com vodafone.de voila.fr walla.co.il wanadoo.fr web.de windowslive.com wp.pl
    xs4all.nl xtra.co.nz ya.ru yahoo.ca yahoo.co.id yahoo.co.in yahoo.co.jp yahoo.co.uk
    yahoo.com yahoo.com.ar yahoo.com.au yahoo.com.br yahoo.com.mx yahoo.de yahoo.es yahoo.fr
    yahoo.it yandex.com yandex.ru yeah.net ymail.com zoho.com zohomail.com
"""
# Below these, every name may have another owner; of them some serve names to their customers.
_PUBLIC_SUFFIXES = """
    appspot.com azurewebsites.net blogspot.com cloudfront.net firebaseapp.com fly.dev github.io
    gitlab.io herokuapp.com netlify.app ngrok.io onrender.com pages.dev vercel.app web.app
    workers.dev
"""
# With a country behind it, such as co.uk.
_SECOND_LEVEL = """
    ac co com edu go gob gouv gov gub gv id info ltd me mil ne net nom or org plc priv sch
"""
PUBLIC_MAIL, PUBLIC_SUFFIXES, SECOND_LEVEL = (
    frozenset(words.split()) for words in (_PUBLIC_MAIL, _PUBLIC_SUFFIXES, _SECOND_LEVEL)
)


def page(account_id: str, skip: int, limit: int) -> tuple[Sequence[AccountDomain], int]:
    """A page of an account's domains by name, and their number."""
    own = AccountDomain.account_id == account_id
    query = sa.select(AccountDomain).where(own).order_by(AccountDomain.domain)
    count = sa.select(sa.func.count()).select_from(AccountDomain).where(own)
    rows = db.db.session.scalars(query.offset(skip).limit(limit)).all()
    return rows, db.db.session.scalar(count) or 0


def failing(account_id: str) -> Sequence[AccountDomain]:
    """The account's verified domains without their record, by name."""
    query = sa.select(AccountDomain).where(
        AccountDomain.account_id == account_id,
        AccountDomain.verified_at.is_not(None),
        AccountDomain.failed_checks >= FAILING_AFTER,
    )
    return db.db.session.scalars(query.order_by(AccountDomain.domain)).all()


def get(account_id: str, domain_id: str) -> AccountDomain:
    """A domain of an account. Raises NotFound, also for another account's."""
    return _require(db.db.session.scalar(_select(account_id, domain_id)))


def get_for_update(account_id: str, domain_id: str) -> AccountDomain:
    """The same as stored now, locked until the transaction ends. Raises NotFound."""
    query = _select(account_id, domain_id).with_for_update()
    return _require(db.db.session.scalar(query.execution_options(populate_existing=True)))


def create(account_id: str, domain: str) -> AccountDomain:
    """Add a domain, which a DNS record must prove. Raises InvalidValues, or Conflict if added."""
    domain = accounts.domain_key(domain.strip().removesuffix("."))
    _refuse([domain_problem(domain)])
    own = AccountDomain.account_id == account_id
    with db.transaction() as session:
        accounts.get_for_update(account_id)  # two at once would pass the limit
        count = sa.select(sa.func.count()).select_from(AccountDomain).where(own)
        if (session.scalar(count) or 0) >= MAX_DOMAINS:
            raise Conflict(f"An account can have {MAX_DOMAINS} domains. Remove one first.")
        row = AccountDomain(account_id=account_id, domain=domain, token=secrets.token_urlsafe(24))
        message = "The account has this domain already."
        with errors.conflict_on_unique("account_domains", "domain", "domain", message):
            session.add(row)
            session.flush()
        return row


def change(account_id: str, domain_id: str, body: Body) -> AccountDomain:
    """Change the settings of a domain; they apply while it is verified.

    Raises InvalidValues or NotFound.
    """
    with db.transaction() as session:
        row = get_for_update(account_id, domain_id)
        _refuse([_role_problem(body), _joining_problem(account_id, body)])
        for name, value in body.items():
            setattr(row, name, value)
        session.flush()
        return row


def delete(account_id: str, domain_id: str) -> None:
    """Remove a domain; its addresses are as free as before. Raises NotFound."""
    with db.transaction() as session:
        row = get_for_update(account_id, domain_id)
        release(row)
        session.delete(row)


def release(row: AccountDomain) -> None:
    """End the account's ownership of a domain, in the open transaction."""
    owned = (
        VerifiedDomain.domain == row.domain,
        VerifiedDomain.owner_account_id == row.account_id,
    )
    db.db.session.execute(sa.delete(VerifiedDomain).where(*owned))


def owner_of(email: str) -> str | None:
    """The id of the account that owns the domain of an email address."""
    return db.db.session.scalar(
        sa.select(VerifiedDomain.owner_account_id).where(VerifiedDomain.domain == of_address(email))
    )


def find_verified(account_id: str, email: str) -> AccountDomain | None:
    """The account's verified domain of an email address, with its settings."""
    return db.db.session.scalar(
        sa.select(AccountDomain)
        .join(VerifiedDomain, VerifiedDomain.domain == AccountDomain.domain)
        .where(
            AccountDomain.account_id == account_id,
            AccountDomain.domain == of_address(email),
            AccountDomain.verified_at.is_not(None),
            VerifiedDomain.owner_account_id == account_id,
        )
    )


def is_sso_only(account_id: str, email: str) -> bool:
    """Whether the account lets addresses of this domain sign in with providers only."""
    domain = find_verified(account_id, email)
    return domain is not None and domain.sso_only


def any_joins(account_id: str) -> bool:
    """Whether addresses of some verified domain of the account become users by themselves."""
    joining = (
        AccountDomain.account_id == account_id,
        AccountDomain.verified_at.is_not(None),
        AccountDomain.auto_join.is_(True),
    )
    return bool(db.db.session.scalar(sa.select(sa.exists().where(*joining))))


def _select(account_id: str, domain_id: str) -> sa.Select[AccountDomain]:
    own = (AccountDomain.account_id == account_id, AccountDomain.id == domain_id.lower())
    return sa.select(AccountDomain).where(*own)


def _require(row: AccountDomain | None) -> AccountDomain:
    if row is None:
        raise NotFound("There is no such domain.")
    return row


def _role_problem(body: Body) -> Problem | None:
    name = body.get("auto_join_role")
    if name is None:
        return None
    if name == ADMIN:
        return problem("auto_join_role", "invalid_option", "Nobody joins as admin by a domain.")
    wrong: list[Problem] = []
    roles.resolve({"role": name}, wrong)
    message = f"There is no role {name[:100]}."
    return problem("auto_join_role", "invalid_reference", message) if wrong else None


def _joining_problem(account_id: str, body: Body) -> Problem | None:
    if not body.get("auto_join") or account_id != SYSTEM_ACCOUNT_ID:
        return None
    return problem("auto_join", "invalid_option", "Nobody becomes a superadmin by a domain.")


@role_names.place
def in_joining(name: Name) -> Iterator[Use]:
    """The role of users who join by a domain, in all accounts."""
    if name.kind != ROLE:
        return
    columns = (AccountDomain.account_id, AccountDomain.id, AccountDomain.domain)
    query = sa.select(*columns).where(AccountDomain.auto_join_role == name.value)
    for row in role_names.pages(query, *columns[:2]):
        follow = partial(_store_role, row.account_id, row.id)
        texts = {"auto_join_role": name.value}
        yield Use(f"domains.{row.domain}", texts, follow, row.account_id, are_names=True)


def _store_role(account_id: str, domain_id: str, texts: Mapping[str, str]) -> None:
    get_for_update(account_id, domain_id).auto_join_role = texts["auto_join_role"]


def _refuse(problems: Sequence[Problem | None]) -> None:
    if details := [one for one in problems if one]:
        raise InvalidValues(details)


@events.subscribe(events.AccountClosed)
def _remove_of_account(event: events.AccountClosed) -> None:
    # Without the session: a closed account has no audit entries of single domains.
    connection = db.connection()
    owned = VerifiedDomain.owner_account_id == event.account_id
    connection.execute(sa.delete(VerifiedDomain.__table__).where(owned))
    own = AccountDomain.account_id == event.account_id
    connection.execute(sa.delete(AccountDomain.__table__).where(own))


def of_address(email: str) -> str:
    """The domain of an email address in its normal form, equal for all spellings of a mailbox."""
    return accounts.domain_key(accounts.email_key(email).rpartition("@")[2])


def domain_problem(domain: str) -> Problem | None:
    """The problem with claiming a domain in its normal form."""
    labels = domain.split(".")
    fits = len(domain) <= LONGEST_CLAIMED and max(map(len, labels)) <= LONGEST_LABEL
    if not fits or not sso_settings.DOMAIN.fullmatch(domain):
        return problem("domain", "pattern_mismatch", "Not a domain name, such as acme.example.")
    if domain.replace(".", "").isdigit():
        return problem("domain", "pattern_mismatch", "Not a domain name, but an IP address.")
    if domain in PUBLIC_MAIL:
        message = "Anyone can have an address in this domain, so no account can own it."
        return problem("domain", "invalid_option", message)
    is_country = len(labels) == 2 and len(labels[1]) == 2
    if domain in PUBLIC_SUFFIXES or (is_country and labels[0] in SECOND_LEVEL):
        message = "Names below this domain have different owners. Name your own domain."
        return problem("domain", "invalid_option", message)
    return None
