"""The endpoints that an issuer publishes (OpenID Connect Discovery 1.0, section 4)."""

from __future__ import annotations

from dataclasses import replace

from app import config
from app.accounts import tenants
from app.errors import problem
from app.outbound import client, web_waits
from app.sso import validation
from app.sso.connections import Connection, Metadata
from app.sso.oauth import documents, exchange
from app.sso.validation import Problem
from app.types import JSONObject

# No symmetric algorithms: whoever knows the secret or the public key could sign.
ALGORITHMS = ["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384"]
PATH = "/.well-known/openid-configuration"
LONGEST_ADDRESS = 2000
REQUIRED = {
    "authorize_url": "authorization_endpoint",
    "token_url": "token_endpoint",
    "jwks_url": "jwks_uri",
}
ADDRESSES = {**REQUIRED, "userinfo_url": "userinfo_endpoint"}
# What is usual where the document does not say it.
AUTH_METHODS = ["client_secret_basic"]
POST = "client_secret_post"
LISTS = (
    ("response_types_supported", ["code"]),
    ("code_challenge_methods_supported", ["S256"]),
    ("id_token_signing_alg_values_supported", ALGORITHMS),
    ("token_endpoint_auth_methods_supported", [*AUTH_METHODS, POST]),
)
SENDS_ISSUER = "authorization_response_iss_parameter_supported"
STORED = ("issuer", *ADDRESSES.values(), *(name for name, _ in LISTS), SENDS_ISSUER)


def resolve(connection: Connection, *, fresh: bool = False) -> Connection:
    """Return a connection with what its issuer publishes. Raises Unreachable.

    `fresh`: read it now, as tests and renewals do.
    """
    if not connection.provider.discovers:
        return connection
    issuer = connection.address("issuer")
    load = documents.read if fresh else documents.load

    def parse(document: JSONObject) -> JSONObject:
        faults = _problems(document, issuer)
        if faults:
            raise exchange.Unreachable(" ".join(faults))
        return _stored(document)

    document = load(connection, _address(issuer), parse)
    if document["issuer"] != issuer:  # the same address without its slash
        raise exchange.Unreachable(_wrong_issuer(document["issuer"]))
    return replace(connection, metadata=_metadata(document))


def problems(issuer: str, account_id: str) -> list[Problem]:
    """Return all problems with what an issuer publishes now, also with each of its addresses.

    Without any, it is stored for the account, whose sign-ins then need not read it.
    """
    try:
        document = exchange.published(_address(issuer))
        faults = _problems(document, issuer)
        addresses, rules = _metadata(document).addresses, validation.request_rules()
        with web_waits.one_lookup_deadline():
            for name in validation.FETCHED:
                refusal = client.url_problem(addresses[name], rules) if name in addresses else None
                if refusal:
                    faults.append(f"{ADDRESSES[name]}: {refusal}")
    except exchange.Unreachable as error:
        faults = [error.detail]
    if not faults:
        documents.save(account_id, _address(issuer), _stored(document))
    return [problem("config.issuer", "invalid_option", text) for text in faults]


def _stored(document: JSONObject) -> JSONObject:
    return {name: document[name] for name in STORED if name in document}


def _address(issuer: str) -> str:
    return f"{issuer.removesuffix('/')}{PATH}"


def _problems(document: JSONObject, issuer: str) -> list[str]:
    # Exactly the same, or another issuer could speak for this one (section 4.3).
    faults = [] if document.get("issuer") == issuer else [_wrong_issuer(document.get("issuer"))]
    faults += [
        f"{ADDRESSES[name]} is missing or no URL."
        for name in ADDRESSES
        if (name in REQUIRED or ADDRESSES[name] in document)
        and not _is_address(document.get(ADDRESSES[name]))
    ]
    faults += [
        f"{name} has none of {', '.join(usable)}."
        for name, usable in LISTS
        if not set(_texts(document, name, usable)).intersection(usable)
    ]
    return faults


def _wrong_issuer(published: object) -> str:
    text = str(published)[:200] if isinstance(published, str) else "missing"
    return f"Its issuer is {text}: enter exactly that one."


def _is_address(value: object) -> bool:
    is_url = isinstance(value, str) and len(value) <= LONGEST_ADDRESS and value.isprintable()
    if not is_url or not tenants.is_safe_url(str(value)) or "#" in str(value):
        return False
    return str(value).startswith("https://") or not config.current().production


def _metadata(document: JSONObject) -> Metadata:
    published = {name: document.get(ADDRESSES[name]) for name in ADDRESSES}
    methods = _texts(document, "token_endpoint_auth_methods_supported", AUTH_METHODS)
    return Metadata(
        {name: str(value) for name, value in published.items() if _is_address(value)},
        accepts_post=POST in methods,
        sends_issuer=document.get(SENDS_ISSUER) is True,
    )


def _texts(document: JSONObject, name: str, usual: list[str]) -> list[str]:
    values = document.get(name, usual)
    return [one for one in values if isinstance(one, str)] if isinstance(values, list) else []
