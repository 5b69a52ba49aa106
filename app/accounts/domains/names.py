"""Names of domains: their normal form, and those that nobody may claim."""

from __future__ import annotations

from app.accounts import service as accounts
from app.accounts import sso_settings
from app.accounts.types import Problem
from app.errors import problem

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
