"""Settings: read once from the environment into one frozen object (contract section 12)."""

from __future__ import annotations

import os
import re
import secrets
from base64 import urlsafe_b64decode
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from email.utils import parseaddr
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from cryptography.fernet import Fernet
from email_validator import EmailNotValidError, validate_email
from flask import Flask, current_app

from app import servers
from app.slugs import SYSTEM_SLUG, slug_problem

PROJECT = Path(__file__).resolve().parent.parent
SHORTEST_TOKEN = 16
SHORTEST_SECRET = 32
WITHOUT_HOST = ("console",)
ORIGIN = re.compile(
    r"([a-z][a-z0-9+.-]*)://(?:[a-z0-9_-]+(?:\.[a-z0-9_-]+)*\.?|\[[0-9a-f:.]+\])(?::([1-9][0-9]{0,4}))?"
)
DEFAULT_PORTS = {"http": "80", "https": "443"}
HOST = re.compile(r"[a-z0-9_-]+(\.[a-z0-9_-]+)*", re.IGNORECASE | re.ASCII)
RATE = re.compile(r"[1-9][0-9]{0,8}/(second|minute|hour|day)")


class ConfigError(Exception):
    """Raised with one line per malformed setting."""


def _text(value: str) -> str:
    return value


def _boolean(value: str) -> bool:
    words = {"true": True, "1": True, "yes": True, "on": True}
    words |= {"false": False, "0": False, "no": False, "off": False}
    if value.lower() not in words:
        raise ValueError("must be true or false")
    return words[value.lower()]


def _number(lowest: int, highest: int) -> Callable[[str], int]:
    def parse(value: str) -> int:
        if not value.isascii() or not value.isdigit() or not lowest <= int(value) <= highest:
            raise ValueError(f"must be a whole number from {lowest} to {highest}")
        return int(value)

    return parse


def _one_of(*allowed: str) -> Callable[[str], str]:
    def parse(value: str) -> str:
        if value not in allowed:
            raise ValueError(f"must be one of {', '.join(allowed)}")
        return value

    return parse


def _list_of(*allowed: str) -> Callable[[str], tuple[str, ...]]:
    def parse(value: str) -> tuple[str, ...]:
        items = tuple(item.strip() for item in value.split(",") if item.strip())
        if allowed and not set(items) <= set(allowed):
            raise ValueError(f"may list only {', '.join(allowed)}")
        return items

    return parse


def _seconds(value: str) -> tuple[int, ...]:
    number = _number(1, 30 * 86400)
    return tuple(number(item.strip()) for item in value.split(",") if item.strip())


def _url(*schemes: str) -> Callable[[str], str]:
    def parse(value: str) -> str:
        if urlsplit(value).scheme not in schemes:
            raise ValueError(f"must be a URL starting with {', '.join(f'{s}:' for s in schemes)}")
        _check_host(value)
        return value.rstrip("/")

    return parse


def _check_host(url: str) -> None:
    parts = urlsplit(url)
    try:
        named = bool(parts.hostname) and parts.port != 0
    except ValueError:  # a port that is no number
        named = False
    if not named and parts.scheme not in WITHOUT_HOST:
        raise ValueError("must name a host, and a port from 1 to 65535 if any")


def _base_url(value: str) -> str:
    parts = urlsplit(value)
    if parts.query or parts.fragment or parts.username or any(map(str.isspace, value)):
        raise ValueError("must have no user, query, fragment or blank")
    return _url("http", "https")(value)


def is_origin(text: str) -> bool:
    """Whether a text is one origin as browsers send it: no pattern, path or default port."""
    found = ORIGIN.fullmatch(text)
    if found is None:
        return False
    scheme, port = found.groups()
    return port != DEFAULT_PORTS.get(scheme, "") and int(port or 1) <= 65_535


def _origins(value: str) -> tuple[str, ...]:
    items = tuple(item.strip() for item in value.split(",") if item.strip())
    if not all(map(is_origin, items)):
        raise ValueError("may list only exact origins such as https://app.example.com")
    return items


def _mail_url(value: str) -> str:
    # A misspelt starttls would send passwords in the clear.
    if urlsplit(value).query not in ("", "starttls=0", "starttls=1"):
        raise ValueError("takes no option but starttls=0 or starttls=1")
    return _url("console", "smtp", "smtps")(value)


def _email(value: str) -> str:
    try:
        validate_email(value, check_deliverability=False)
    except EmailNotValidError:
        raise ValueError("must be an e-mail address") from None
    return value


def _sender(value: str) -> str:
    if not value.isprintable():
        raise ValueError("must be one line")
    _email(parseaddr(value)[1])
    return value


def _host(value: str) -> str:
    if not HOST.fullmatch(value) or len(value) > 253:
        raise ValueError("must be a bare host name such as example.com")
    return value.lower()


def _account_slug(value: str) -> str:
    # Whoever belongs to the system account is a superadmin.
    problem = "It is the superadmins' account." if value == SYSTEM_SLUG else slug_problem(value)
    if problem:
        raise ValueError(f"must be the slug of an account. {problem}")
    return value


def _line(value: str) -> str:
    if not value.isprintable() or len(value) > 200:
        raise ValueError("must be one line of at most 200 characters")
    return value


def _rate(value: str) -> str:
    if value != "off" and not RATE.fullmatch(value):
        raise ValueError("must be off, or a number per second, minute, hour or day: 600/minute")
    return value


def _setting(parse: Callable[[str], Any], default: Any, help: str, **options: Any) -> Any:
    return field(metadata={"parse": parse, "default": default, "help": help, **options})


@dataclass(frozen=True)
class Config:
    """Every setting; `SERVICE_` and the upper-case name is its environment variable."""

    env: str = _setting(
        _one_of("development", "test", "production"),
        "development",
        "production refuses weak secrets",
    )
    instance_dir: Path = _setting(  # noqa: RUF009 - a description, not a default
        Path, PROJECT / "instance", "where development keeps its database, keys and mail"
    )
    database_url: str = _setting(
        servers.database, "", "default: SQLite in the instance folder", unprefixed=True, secret=True
    )
    redis_url: str = _setting(
        servers.redis,
        "",
        "default: none, the embedded worker runs jobs",
        unprefixed=True,
        secret=True,
    )
    secret_key: str = _setting(
        _text, "", "signs tokens; generated once in development", secret=True
    )
    secret_key_previous: tuple[str, ...] = _setting(
        _list_of(), (), "older keys that still verify, comma-separated", secret=True
    )
    encryption_key: tuple[str, ...] = _setting(
        _list_of(), (), "Fernet keys for stored secrets, newest first", secret=True
    )
    base_url: str = _setting(
        _base_url, "http://127.0.0.1:8000", "the address users reach this service at"
    )
    base_domain: str = _setting(_host, "", "<slug>.<this domain> names the account")
    access_token_expire_minutes: int = _setting(_number(1, 1440), 60, "access token lifetime")
    refresh_token_expire_days: int = _setting(_number(1, 365), 7, "refresh token lifetime")
    single_tenant: bool = _setting(_boolean, False, "one account, which need not be named")
    single_tenant_account: str = _setting(_account_slug, "default", "the slug of the one account")
    single_tenant_account_name: str = _setting(_line, "Default", "the name of the one account")
    registration: str = _setting(
        _one_of("open", "invite", "off"), "open", "who may register: anyone, the invited, nobody"
    )
    cors_origins: tuple[str, ...] = _setting(_origins, (), "origins of browser applications")
    login_rate_limit: str = _setting(_one_of("on", "off"), "on", "lock-out of password guessers")
    login_tries: int = _setting(_number(1, 10_000), 10, "failures per user and address, 15 min")
    login_tries_per_address: int = _setting(_number(1, 10_000), 50, "failures per address, 15 min")
    login_tries_per_user: int = _setting(_number(1, 10_000), 100, "failures per user, 15 min")
    mail_tries: int = _setting(_number(1, 10_000), 10, "mails asked for per mailbox, in 1 hour")
    mail_tries_per_address: int = _setting(
        _number(1, 100_000), 500, "registrations and mails asked for per address, in 1 hour"
    )
    rate_limit: str = _setting(
        _rate, "off", "requests of one caller, or of one address that nobody signed in from"
    )
    password_min_length: int = _setting(_number(8, 128), 12, "shortest password")
    password_require: tuple[str, ...] = _setting(
        _list_of("upper", "lower", "digit", "special"),
        ("upper", "lower", "digit", "special"),
        "character classes every password needs",
    )
    superadmin_email: str = _setting(_email, "", "first superadmin, made when none exists")
    superadmin_password: str = _setting(_text, "", "the first superadmin's password", secret=True)
    mail_url: str = _setting(
        _mail_url,
        "console:",
        "console: writes .eml files; smtp://user:pass@host:port?starttls=1; smtps://",
        secret=True,
    )
    mail_from: str = _setting(_sender, "Atrium <atrium@localhost>", "sender of mails")
    audit_logging_enabled: bool = _setting(_boolean, True, "whether changes are audited")
    row_security_enabled: bool = _setting(
        _boolean, True, "whether PostgreSQL itself keeps accounts apart, too"
    )
    audit_checkpoint_key: tuple[str, ...] = _setting(
        _list_of(), (), "keys that sign audit checkpoints, newest first", secret=True
    )
    audit_checkpoint_email: str = _setting(_email, "", "where audit checkpoints are mailed to")
    webhooks_per_account: int = _setting(_number(1, 1000), 20, "webhooks that an account may have")
    webhook_timeout_seconds: int = _setting(_number(1, 120), 30, "time for one delivery's attempt")
    webhook_retry_delays: tuple[int, ...] = _setting(
        _seconds, (60, 300, 1800, 7200, 43200), "seconds before each retry, comma-separated"
    )
    webhook_allow_private: bool | None = _setting(
        _boolean, None, "whether webhooks may reach private addresses; default: not in production"
    )
    workflows_per_account: int = _setting(
        _number(1, 1000), 50, "workflows that an account may have, and as many hooks"
    )
    workflow_concurrency: int = _setting(
        _number(1, 1000), 20, "instances of an account's workflows that run at once"
    )
    workflow_lease_seconds: int = _setting(
        _number(1, 600), 20, "after which a step of a lost worker is taken over"
    )
    workflow_retention_days: int = _setting(
        _number(1, 3650), 30, "days that instances of workflows are kept when they are over"
    )
    max_body_bytes: int = _setting(_number(1024, 2**30), 10 * 2**20, "largest request body")
    batch_max: int = _setting(_number(1, 10_000), 1000, "records in one batch")
    metrics_token: str = _setting(
        _text, "", "the Bearer token for /metrics, closed without one", secret=True
    )
    trusted_proxies: int = _setting(_number(0, 10), 0, "reverse proxies in front of the service")

    @classmethod
    def from_env(cls, environ: Mapping[str, str] | None = None) -> Config:
        """Read and check every setting. Raises ConfigError naming all that are malformed."""
        environ = os.environ if environ is None else environ
        values: dict[str, Any] = {}
        problems: list[str] = []
        for name, meta in _settings():
            variable, text = _lookup(environ, name, meta)
            try:
                values[name] = meta["parse"](text) if text else meta["default"]
            except ValueError as error:
                problems.append(f"{variable} {error}")
                values[name] = meta["default"]
        config = cls(**values)
        problems += _unsafe(config)
        if problems:
            raise ConfigError("\n".join(dict.fromkeys(problems)))
        return _with_local_defaults(config)

    @property
    def production(self) -> bool:
        """Whether this process must refuse what is only fit for development."""
        return self.env == "production"

    @property
    def private_targets(self) -> bool:
        """Whether requests to addresses that users name may reach our own network."""
        allowed = self.webhook_allow_private
        return not self.production if allowed is None else allowed

    def listing(self) -> list[tuple[str, str, str]]:
        """(variable, value with secrets hidden, help) of every setting."""
        rows = []
        for name, meta in _settings():
            value = getattr(self, name)
            shown = ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
            if meta.get("secret"):
                shown = "(set)" if value else ""
            rows.append((f"SERVICE_{name.upper()}", shown, meta["help"]))
        return rows


def environment(**more: str) -> dict[str, str]:
    """The environment for a program that we start."""
    return {**os.environ, **more}


def current() -> Config:
    """The running application's settings."""
    config: Config = running().extensions["atrium.config"]
    return config


def running() -> Flask:
    """The running application itself: each look through Flask's proxy costs more than it finds."""
    found: Flask = current_app._get_current_object()  # type: ignore[attr-defined]
    return found


def _settings() -> list[tuple[str, Mapping[str, Any]]]:
    return [(f.name, f.metadata) for f in fields(Config)]


def _lookup(environ: Mapping[str, str], name: str, meta: Mapping[str, Any]) -> tuple[str, str]:
    variable = f"SERVICE_{name.upper()}"
    if not environ.get(variable) and meta.get("unprefixed"):
        variable = name.upper()
    return variable, environ.get(variable, "").strip()


def _with_local_defaults(config: Config) -> Config:
    changes: dict[str, Any] = {}
    if not config.database_url:
        changes["database_url"] = f"sqlite:///{config.instance_dir.resolve() / 'atrium.db'}"
    if not config.production:
        if not config.secret_key:
            changes["secret_key"] = _kept(config.instance_dir / "secret_key", _random_secret)
        if not config.encryption_key:
            changes["encryption_key"] = (_kept(config.instance_dir / "encryption_key", _fernet),)
        if not config.audit_checkpoint_key:
            file = config.instance_dir / "audit_checkpoint_key"
            changes["audit_checkpoint_key"] = (_kept(file, _fernet),)
    return Config(**{f.name: changes.get(f.name, getattr(config, f.name)) for f in fields(config)})


def _random_secret() -> str:
    return secrets.token_urlsafe(48)


def _fernet() -> str:
    return Fernet.generate_key().decode()


def _kept(path: Path, make: Callable[[], str]) -> str:
    try:
        return _read_or_made(path, make)
    except OSError as error:
        told = f"{error.filename}: {error.strerror}"
        raise ConfigError(f"SERVICE_INSTANCE_DIR must be a folder to write to ({told})") from error


def _read_or_made(path: Path, make: Callable[[], str]) -> str:
    # Linking a finished file is atomic: of two processes that start at once both read one key.
    if not path.exists():
        # The mails in it carry links that sign people in.
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        draft = path.with_name(f"{path.name}.{secrets.token_hex(4)}")
        draft.touch(mode=0o600)
        draft.write_text(make())
        try:
            path.hardlink_to(draft)
        except FileExistsError:
            pass
        finally:
            draft.unlink()
    return path.read_text().strip()


def _unsafe(config: Config) -> list[str]:
    problems = []
    for key in config.encryption_key:
        try:
            Fernet(key)
        except ValueError:
            problems.append("SERVICE_ENCRYPTION_KEY must list Fernet keys (32 bytes in base64)")
    if not all(map(_is_32_bytes, config.audit_checkpoint_key)):
        problems.append("SERVICE_AUDIT_CHECKPOINT_KEY must list keys of 32 bytes in base64")
    if bool(config.superadmin_email) != bool(config.superadmin_password):
        problems.append("SERVICE_SUPERADMIN_EMAIL and SERVICE_SUPERADMIN_PASSWORD go together")
    if config.production:
        for key in (config.secret_key, *config.secret_key_previous):
            if len(key) < SHORTEST_SECRET or len(set(key)) < 10:
                problems.append(
                    f"SERVICE_SECRET_KEY and its predecessors need {SHORTEST_SECRET} or more"
                    " random characters in production"
                )
        if config.metrics_token and len(config.metrics_token) < SHORTEST_TOKEN:
            problems.append(
                f"SERVICE_METRICS_TOKEN needs {SHORTEST_TOKEN} or more characters in production"
            )
        if not config.encryption_key:
            problems.append("SERVICE_ENCRYPTION_KEY is required in production")
        if urlsplit(config.base_url).scheme != "https":
            problems.append("SERVICE_BASE_URL must be an https:// address in production")
    return problems


def _is_32_bytes(key: str) -> bool:
    try:
        return len(urlsafe_b64decode(key)) == 32
    except ValueError:
        return False
