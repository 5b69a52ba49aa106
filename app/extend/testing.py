"""What tests of an extension need: an instance with it, people who call it, time, and jobs.

    with Instance(Path("extensions/shop")) as instance:
        instance.collection("orders", {"title": "text"})
        ann = instance.account("acme").user("ann")
        assert ann.post("records/orders", {"title": "A lamp"}).status_code == 201

The names here follow semantic versioning, as those of `app.extend` do (docs/extensions.md).
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, suppress
from datetime import timedelta
from email import message_from_bytes, policy
from email.message import EmailMessage
from functools import cache, partial
from hashlib import sha256
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NoReturn, Self, cast

import orjson
import sqlalchemy as sa
from flask import Flask
from werkzeug.test import TestResponse

from app import clock, config, create_app, db
from app.accounts import service as accounts
from app.accounts.models import ADMIN, SYSTEM_ACCOUNT_ID, User
from app.accounts.models import Account as AccountRow
from app.auth import passwords, tokens
from app.config import Config
from app.config.settings import with_extension_settings
from app.extensions import loading, migrations, registry
from app.extensions.registry import Extension
from app.extensions.running import HandlerFailed
from app.jobs import Job, queue, worker
from app.ops import cli
from app.types import JSONMapping, JSONObject

PASSWORD = "Correct-horse-1"  # noqa: S105 - of people who exist within a test
MAX_ROUNDS = 1000
OPEN = {f"{operation}_rule": "true" for operation in ("list", "view", "create", "update", "delete")}
CSRF_TOKEN = re.compile(r'name="csrf_token" value="([^"]+)"')
ENVIRONMENT = {
    "SERVICE_ENV": "test",
    "SERVICE_BASE_URL": "http://atrium.test",
    "SERVICE_LOGIN_RATE_LIMIT": "off",
}


class Instance(AbstractContextManager["Instance"]):
    """An instance of Atrium with extensions, on SQLite, that is gone at the end of its `with`.

    What a handler raises in a request, other than a refusal, is raised by the client that sent it;
    with `raises=False` the answer is a 500, as elsewhere.

    Each extension is its name, as SERVICE_EXTENSIONS has it; the folder of its project, with a
    package of the same name; or a function that registers handlers. Settings are given by name:
    `Instance("shop", SERVICE_QUOTAS="records=5")`.
    """

    def __init__(
        self,
        *extensions: str | Path | Callable[[], object],
        raises: bool = True,
        **settings: str,
    ) -> None:
        self._extensions, self._settings, self._raises = extensions, settings, raises
        self._stack = ExitStack()
        self._travel: Any = None
        self.app: Flask
        """Flask's application: of the insides of Atrium, without a promise."""

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            folder = Path(stack.enter_context(TemporaryDirectory(prefix="atrium-")))
            stack.enter_context(loading.loaded(*map(_source, self._extensions)))
            stack.enter_context(with_extension_settings(self._settings))
            environ = {**ENVIRONMENT, "SERVICE_INSTANCE_DIR": str(folder), **self._settings}
            environ["SERVICE_EXTENSIONS"] = ",".join(registry.EXTENSIONS)
            self.app = create_app(Config.from_env(environ))
            if self._raises:
                self.app.config["PROPAGATE_EXCEPTIONS"] = True
                self.app.register_error_handler(HandlerFailed, _raise_cause)
            with self.app.app_context():
                _fill(db.db.engine)
                migrations.upgrade()
                db.db.engine.dispose()  # the clock of connections from now on is that of tests
                sa.event.listen(db.db.engine, "connect", _read_our_clock)
                stack.callback(db.db.engine.dispose)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        with self.app.app_context():
            db.db.session.remove()
        self._stack.close()

    @property
    def superadmin(self) -> Client:
        """A superadmin, who defines collections and makes accounts."""
        return self._user(SYSTEM_ACCOUNT_ID, "root@system.example", ADMIN)

    @property
    def anybody(self) -> Client:
        """A client without a credential."""
        return Client(self)

    def account(self, slug: str, name: str | None = None) -> Account:
        """An account, created if there is none with this slug."""
        with self.app.app_context():
            found = db.db.session.query(AccountRow).filter_by(slug=slug).first()
            found = found or accounts.create_account(name or slug.title(), slug)
            return Account(self, found.id, slug, found.name)

    def collection(
        self, name: str, fields: Mapping[str, str | JSONMapping], **properties: Any
    ) -> JSONObject:
        """Create a collection, open to everybody who is signed in unless rules say otherwise.

        `fields` has the type of each field, or its definition as in the API; `properties` are
        further ones of the collection, such as `create_rule`.
        """
        schema = [
            {"name": field, **({"type": one} if isinstance(one, str) else one)}
            for field, one in fields.items()
        ]
        body = {"name": name, "schema": schema, **OPEN, **properties}
        return _expect(self.superadmin.post("collections", body), 201)

    def apply(self, manifest: str) -> JSONObject:
        """Apply a manifest in YAML; returns what was done."""
        plan = _expect(self.superadmin.post("manifest/plan", {"yaml": manifest}), 200)
        body = {"yaml": manifest, "plan_hash": plan["plan_hash"]}
        return _expect(self.superadmin.post("manifest/apply", body), 200)

    def run_jobs(self) -> None:
        """Do what workers would, until nothing is due.

        That is after hooks, events and periodic jobs of extensions, mails, webhooks, workflows, and
        what the product does by itself. Retries and periodic jobs wait for their time:
        `move_clock`. What fails is in `failed_jobs`.
        """
        with self.app.app_context():
            worker.schedule_periodic()
            for _ in range(MAX_ROUNDS):
                due = [
                    partial(runner.run, *ids)
                    for runner in queue.RUNNERS.values()
                    for ids in runner.due()
                ]
                if not due:
                    return
                for run in due:
                    with suppress(worker.JobFailed):  # it is one of `failed_jobs`
                        run()
        raise AssertionError(f"After {MAX_ROUNDS} rounds there is still a job that is due.")

    def run_command(self, *words: str) -> str:
        """Run a command as `bin/atrium` does; returns what it prints. Fails if the command does."""
        result = self.app.test_cli_runner().invoke(args=words)
        if result.exit_code:
            raise AssertionError(f"It ended with {result.exit_code}: {result.output}")
        return result.output

    def failed_jobs(self) -> list[tuple[str, str]]:
        """The kind and the error of each job that failed, those that will be tried again too."""
        failed = sa.select(Job.kind, Job.last_error).where(Job.last_error.is_not(None))
        with self.app.app_context():
            rows = db.connection().execute(failed.order_by(Job.created_at)).all()
            return [(row.kind, str(row.last_error)) for row in rows]

    def mails(self) -> list[EmailMessage]:
        """The mails sent so far, oldest first; `run_jobs` sends what waits."""
        with self.app.app_context():
            files = sorted((config.current().instance_dir / "outbox").glob("*.eml"))
        parse = partial(message_from_bytes, policy=policy.default)
        return [cast(EmailMessage, parse(file.read_bytes())) for file in files]

    def move_clock(self, **by: float) -> None:
        """Move the time of the process and of the database forward: `move_clock(hours=2)`.

        It runs on from there, and is that of the machine again when the instance ends. Needs the
        package time-machine, which `make test` installs.
        """
        if self._travel is None:
            with self.app.app_context():
                worker.schedule_periodic()  # else their first time would be after this move
            travel = import_module("time_machine").travel(clock.now(), tick=True)
            self._travel = self._stack.enter_context(travel)
        self._travel.shift(timedelta(**by))

    def _user(self, account_id: str, email: str, role: str) -> Client:
        with self.app.app_context():
            found = db.db.session.query(User).filter_by(account_id=account_id, email=email).first()
            if found is None:
                with db.transaction():
                    hash = _password_hash()
                    found = accounts.create_user(
                        account_id, email=email, password_hash=hash, role=role
                    )
                    accounts.mark_verified(found)
            return Client(self, found.id, account_id, email, found.account.slug)


class Account:
    """An account of an instance."""

    def __init__(self, instance: Instance, id: str, slug: str, name: str) -> None:
        self._instance, self.id, self.slug, self.name = instance, id, slug, name

    def user(self, name: str, role: str = ADMIN) -> Client:
        """A signed-in user, `{name}@{slug}.example`, created if there is none."""
        return self._instance._user(self.id, f"{name}@{self.slug}.example", role)

    def service_user(self, name: str, role: str = "editor") -> str:
        """Create a service user for `caller.as_service(name)`; returns its id."""
        body = {"kind": "service", "name": name, "role": role, "account_id": self.id}
        return str(_expect(self._instance.superadmin.post("users", body), 201)["id"])


class Client:
    """Calls an instance as one user, or as nobody.

    Answers are responses of werkzeug's test client: `status_code`, `json`, `text`, `headers`.
    """

    def __init__(
        self,
        instance: Instance,
        user_id: str | None = None,
        account_id: str = "",
        email: str = "",
        slug: str = "",
    ) -> None:
        self._instance, self.user_id, self.account_id = instance, user_id, account_id
        self.email, self._slug = email, slug
        self._browser: Any = None
        self._is_signed_in = False

    def request(self, method: str, path: str, json: object = None, **options: Any) -> TestResponse:
        """Send a request; a path without a leading slash is one of the API.

        `options` are those of werkzeug's test client, such as `headers` and `query_string`.
        """
        headers = dict(options.pop("headers", {}))
        if self.user_id is not None:
            headers.setdefault("Authorization", f"Bearer {self._token()}")
        if json is not None:
            options |= {"data": orjson.dumps(json), "content_type": "application/json"}
        url = path if path.startswith("/") else f"/api/v1/{path}"
        client = self._instance.app.test_client(use_cookies=False)
        return client.open(url, method=method, headers=headers, **options)

    def get(self, path: str, **options: Any) -> TestResponse:
        """Send a GET."""
        return self.request("GET", path, **options)

    def post(self, path: str, json: object = None, **options: Any) -> TestResponse:
        """Send a POST."""
        return self.request("POST", path, json, **options)

    def put(self, path: str, json: object = None, **options: Any) -> TestResponse:
        """Send a PUT."""
        return self.request("PUT", path, json, **options)

    def patch(self, path: str, json: object = None, **options: Any) -> TestResponse:
        """Send a PATCH."""
        return self.request("PATCH", path, json, **options)

    def delete(self, path: str, **options: Any) -> TestResponse:
        """Send a DELETE."""
        return self.request("DELETE", path, **options)

    def open_page(self, path: str, language: str = "en") -> TestResponse:
        """Open a page of the console, in a language: `open_page("/console/records")`.

        Where the role does not open the console, the answer is that of the sign-in, a 403. A
        superadmin opens pages of an account at `/console/accounts/{id}/...`.
        """
        browser, refusal = self._console()
        answer: TestResponse = refusal or browser.get(path, headers={"Accept-Language": language})
        return answer

    def send_form(self, path: str, **form: object) -> TestResponse:
        """Send a form of a page of the console."""
        browser, refusal = self._console()
        data = {"csrf_token": _csrf_token(browser, path), **form}
        answer: TestResponse = refusal or browser.post(path, data=data)
        return answer

    def _console(self) -> tuple[Any, TestResponse | None]:
        """A browser that is signed in, and the answer if that is refused."""
        if self._browser is None:
            self._browser = self._instance.app.test_client()
        if self.user_id is not None and not self._is_signed_in:
            form = {"account": self._slug, "email": self.email, "password": PASSWORD}
            token = _csrf_token(self._browser, "/console/sign-in")
            page = "/console/sign-in"
            answer: TestResponse = self._browser.post(page, data={"csrf_token": token, **form})
            if answer.status_code != 303:
                return self._browser, answer
            self._is_signed_in = True
        return self._browser, None

    def _token(self) -> str:
        with self._instance.app.app_context():
            of_account = {"account_id": self.account_id, "id": self.user_id}
            user = db.db.session.query(User).filter_by(**of_account).one()
            return tokens.access(user, authenticated_at=clock.now())


def _expect(answer: TestResponse, status: int) -> JSONObject:
    if answer.status_code != status:
        raise AssertionError(f"{answer.status_code} instead of {status}: {answer.text}")
    found: JSONObject = answer.get_json()
    return found


def _csrf_token(browser: Any, path: str) -> str:
    found = CSRF_TOKEN.search(browser.get(path).text)
    return found[1] if found else ""


def _raise_cause(error: HandlerFailed) -> NoReturn:
    raise error.__cause__ if isinstance(error.__cause__, Exception) else error


@cache
def _password_hash() -> str:
    return passwords.hash(PASSWORD)  # slow by intention, and the same for all


def _source(extension: str | Path | Callable[[], object]) -> Extension | Callable[[], object]:
    if isinstance(extension, Path):
        return loading.project(extension)
    return loading.find(extension) if isinstance(extension, str) else extension


def _fill(engine: sa.Engine) -> None:
    """Copy a migrated database into an empty one; it is migrated once for these migrations."""
    folder = config.PROJECT / "migrations"
    files = sorted(folder.rglob("*.py"))
    digest = sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:16]
    cached = config.PROJECT / ".pytest_cache" / "atrium" / f"{digest}.db"
    if cached.exists():
        with closing(sqlite3.connect(cached)) as source, _raw(engine) as target:
            source.backup(target)
        return
    cli.bind_migrate(config.running())
    import_module("flask_migrate").upgrade()
    cached.parent.mkdir(parents=True, exist_ok=True)
    draft = cached.with_suffix(f".{id(engine)}")
    with closing(sqlite3.connect(draft)) as target, _raw(engine) as source:
        source.backup(target)
    for other in cached.parent.glob("*.db"):  # of other migrations
        other.unlink(missing_ok=True)
    draft.replace(cached)


@contextmanager
def _raw(engine: sa.Engine) -> Iterator[sqlite3.Connection]:
    pooled = engine.raw_connection()
    try:
        yield cast(sqlite3.Connection, pooled.driver_connection)
    finally:
        pooled.close()


_calculator = sqlite3.connect(":memory:", check_same_thread=False)


def _read_our_clock(connection: Any, record: object) -> None:
    """Let statements read the time of Python, which tests move."""
    connection.create_function("strftime", -1, _strftime)


def _strftime(form: str, moment: str = "now", *changes: str) -> str | None:
    moment = clock.iso(clock.now()) if moment == "now" else moment
    query = f"SELECT strftime({', '.join('?' * (2 + len(changes)))})"
    found: str | None = _calculator.execute(query, (form, moment, *changes)).fetchone()[0]
    return found
