"""A field type of an extension, wherever types go, and what becomes of it without the extension."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from json import loads
from typing import Any, ClassVar

import pytest
from flask import Flask

from app.collections import definitions, fields
from app.extend import Refused, field_type
from app.extensions import loading
from app.extensions.registry import LoadError
from app.ops import doctor
from tests.builders import Cast, make_collection, make_record
from tests.console.browser import Browser, beside
from tests.console.test_records import form_of
from tests.console.test_schemas import inputs

SPOILED = {"nul": "a\0b", "surrogate": "\ud800", "long": "a" * 3000}
IBAN, OTHER = "DE89370400440532013000", "GB82WEST12345698765432"
PATTERN = "^[A-Z]{2}[0-9]{2}[A-Z0-9]{11,30}$"
SCHEMA = [
    {"name": "title", "type": "text"},
    {"name": "iban", "type": "iban", "unique": True, "options": {"countries": ["DE", "GB"]}},
]


def is_consistent(number: str) -> bool:
    """Whether the check digits fit (ISO 13616)."""
    return int("".join(str(int(one, 36)) for one in number[4:] + number[:4])) % 97 == 1


def bank() -> None:
    """The extension."""

    @field_type("iban")
    class Iban:
        """The number of a bank account."""

        label = "IBAN"
        schema: ClassVar[dict[str, Any]] = {"type": "string", "pattern": PATTERN}
        options = ("countries",)
        example = IBAN

        def clean(self, value: str, options: dict[str, Any]) -> str:
            if value == "raise":
                raise ZeroDivisionError
            if value in SPOILED:
                return SPOILED[value]
            number = value.replace(" ", "").upper()
            if not re.fullmatch(PATTERN, number) or not is_consistent(number):
                raise Refused(code="invalid_iban", message="Must be an IBAN.")
            if number[:2] not in options.get("countries", [number[:2]]):
                raise Refused(code="other_country", message="Must be of another country.")
            return number

        def check_options(self, options: dict[str, Any]) -> None:
            if not isinstance(options.get("countries", []), list):
                raise Refused(code="invalid_option", message="countries must be a list.")


@pytest.fixture
def loaded() -> Iterator[None]:
    with loading.loaded(bank):
        yield


@pytest.fixture
def payees(loaded: None, cast: Cast) -> str:
    """The id of a collection with a field of the type."""
    return str(make_collection(cast.root, "payees", SCHEMA)["id"])


def codes(answer: Any) -> list[tuple[str, str]]:
    assert answer.status_code == 400, (answer.status_code, answer.text)
    return [(one["field"], one["code"]) for one in answer.json["details"]]


def forget(app: Flask) -> None:
    """What a process without the extension begins with."""
    app.extensions.pop("atrium.caches", None)


def test_values_are_cleaned_compared_and_unique(cast: Cast, payees: str) -> None:
    alice = cast.alice
    made = make_record(alice, "payees", iban="de89 3704 0044 0532 0130 00")
    assert made["iban"] == IBAN
    for value, code in (
        ("DE00", "invalid_iban"),
        ("FR1420041010050500013M02606", "other_country"),
        ("x" * 3000, "too_long"),
        (7, "invalid_type"),
    ):
        assert codes(alice.post("records/payees", {"iban": value})) == [("iban", code)]
    assert alice.post("records/payees", {"iban": IBAN}).status_code == 409
    assert cast.charlie.post("records/payees", {"iban": IBAN}).status_code == 201
    make_record(alice, "payees", iban=OTHER)
    for query in ({"iban": "DE89 3704 0044 0532 0130 00"}, {"filter": "iban ~ 'DE%'"}):
        found = alice.get("records/payees", query_string=query).json["items"]
        assert [one["iban"] for one in found] == [IBAN]


def test_definitions_check_options_and_defaults(cast: Cast, loaded: None) -> None:
    def refused(**properties: Any) -> Any:
        schema = [{"name": "iban", "type": "iban", **properties}]
        return codes(cast.root.post("collections", {"name": "payees", "schema": schema}))

    assert refused(options={"countries": "DE"}) == [("iban", "invalid_option")]
    assert refused(options={"banks": []}) == [("iban", "invalid_option")]
    assert refused(default="x") == [("iban", "invalid_iban")]
    made = make_collection(
        cast.root, "payees", [{"name": "iban", "type": "iban", "default": IBAN.lower()}]
    )
    assert made["schema"][0]["default"] == IBAN.lower()
    assert make_record(cast.alice, "payees")["iban"] == IBAN


def test_rules_computed_fields_and_masks_see_a_text(cast: Cast, loaded: None) -> None:
    masked = {"pii": True, "mask_type": "custom", "options": {"mask": "***{last:4}"}}
    computed = {"type": "computed", "return_type": "boolean", "expression": "iban ~ 'DE%'"}
    schema = [{"name": "iban", "type": "iban", **masked}, {"name": "german", **computed}]
    make_collection(cast.root, "payees", schema, create_rule="iban ~ 'DE%'")
    assert make_record(cast.alice, "payees", iban=IBAN)["german"] is True
    assert cast.alice.post("records/payees", {"iban": OTHER}).status_code == 403
    (seen,) = cast.bob.get("records/payees").json["items"]
    assert seen["iban"] == "***3000"


def test_description_has_its_schema_and_its_name(cast: Cast, payees: str) -> None:
    described = cast.alice.get("/openapi.json?collections=1").json["components"]["schemas"]
    kind = {"type": ["string", "null"], "pattern": PATTERN}
    assert described["payees_record"]["properties"]["iban"] == kind
    assert described["payees_create"]["properties"]["iban"] == kind


def test_imports_exports_and_manifest(cast: Cast, payees: str) -> None:
    table = f"title,iban\nAnn,de89 3704 0044 0532 0130 00\nBob,{OTHER}\n"
    done = cast.alice.post("records/payees/import", data=table, content_type="text/csv", headers={})
    assert done.status_code in (200, 201), done.text
    exported = cast.alice.get("records/payees/export?format=csv").text
    assert IBAN in exported
    assert OTHER in exported
    manifest = cast.root.get("manifest/export").text
    plan = cast.root.post("manifest/plan", {"yaml": manifest}).json
    assert (plan["problems"], plan["operations"]) == ([], [])
    other = manifest.replace('"DE","GB"', '"DE"')
    assert other != manifest
    (operation,) = cast.root.post("manifest/plan", {"yaml": other}).json["operations"]
    assert (operation["action"], operation["name"]) == ("update", "payees")


def test_console_offers_and_shows_it(app: Flask, cast: Cast, payees: str) -> None:
    admin, root = Browser(app, cast.alice), Browser(app, cast.root)
    path = f"records/{cast.alice.account_id}/payees"
    form = form_of(admin.get(f"{path}/new").text) | {"do": "save", "f_title": "Ann"}
    assert "Must be an IBAN" in beside(
        admin.send(f"{path}/new", **{**form, "f_iban": "x"}), "f_iban"
    )
    assert admin.send(f"{path}/new", **{**form, "f_iban": IBAN.lower()}).status_code == 303
    for value, is_found in ((IBAN, True), (OTHER, False)):
        query = {"field_0": "iban", "op_0": "=", "value_0": value}
        answer = admin.client.get(f"/console/{path}", query_string=query)
        assert (f">{IBAN}</td>" in answer.text) is is_found
    assert IBAN in admin.get(f"{path}/api").text
    assert '<option value="iban">IBAN</option>' in root.get("collections/new").text
    # Options without an input stay when the form is saved.
    path = f"collections/{payees}/schema"
    form = inputs(root.get(path).text) | {"index_1": "on"}
    planned = root.send(path, **form, do="plan")
    root.done(path, **inputs(planned.text), do="apply")
    stored = cast.root.get(f"collections/{payees}").json["schema"]
    assert stored[1]["options"] == {"countries": ["DE", "GB"], "index": True}


@pytest.mark.parametrize(
    ("value", "error"),
    [
        ("raise", "ZeroDivisionError"),
        ("nul", "TypeError"),
        ("long", "TypeError"),
        ("surrogate", "UnicodeEncodeError"),
    ],
)
def test_whatever_else_it_raises_is_a_500_in_its_name(
    cast: Cast, payees: str, capsys: pytest.CaptureFixture[str], value: str, error: str
) -> None:
    answer = cast.alice.post("records/payees", {"iban": value})
    assert (answer.status_code, "Error" in answer.text) == (500, False)
    lines = [loads(line) for line in capsys.readouterr().out.splitlines()]
    (failed,) = [line for line in lines if line["event"] == "extension failed"]
    assert (failed["handler"], failed["type"]) == ("bank.Iban", error)
    assert cast.alice.post("records/payees", {"iban": IBAN}).status_code == 201


@pytest.mark.parametrize("error", [Refused(code="no", message="No."), ZeroDivisionError()])
def test_default_that_the_class_takes_no_more_keeps_nobody_from_reading(
    app: Flask, cast: Cast, error: Exception
) -> None:
    field = {"name": "iban", "type": "iban", "default": IBAN, "required": True}
    with loading.loaded(bank):
        make_collection(cast.root, "payees", [field])
        made = make_record(cast.alice, "payees")

    def refuse(self: object, value: str, options: dict[str, Any]) -> str:
        raise error

    forget(app)
    of("iban", check=lambda: read(cast, made["id"]), clean=refuse)


def read(cast: Cast, id: str) -> None:
    """The record is read, and a new one is not made with the default."""
    assert cast.alice.get(f"records/payees/{id}").json["iban"] == IBAN
    assert cast.alice.post("records/payees", {}).status_code in (400, 500)


def test_without_its_extension_values_are_read_and_not_written(app: Flask, cast: Cast) -> None:
    with loading.loaded(bank):
        made = make_collection(cast.root, "payees", [*SCHEMA, {"name": "note", "type": "text"}])
        record = make_record(cast.alice, "payees", iban=IBAN, note="x")
    forget(app)
    alice, root = cast.alice, cast.root
    place = f"records/payees/{record['id']}"
    assert alice.get(place).json["iban"] == IBAN
    assert len(alice.get(f"records/payees?iban={IBAN}").json["items"]) == 1
    for body in ({"iban": OTHER}, {"iban": None}, {"iban": IBAN}):
        assert codes(alice.patch(place, body)) == [("iban", "type_not_loaded")]
    assert codes(alice.post("records/payees", {"iban": OTHER})) == [("iban", "type_not_loaded")]
    assert codes(root.acting_in("acme").patch(place, {"iban": OTHER}))
    assert alice.put(place, {"note": "y"}).json["iban"] == IBAN
    assert alice.post("records/payees", {"note": "z"}).status_code == 201
    path = f"collections/{made['id']}"
    assert codes(root.patch(path, {"schema": [{"name": "more", "type": "text"}]})) == [
        ("iban", "type_not_loaded")
    ]
    with app.app_context():
        finding = definitions.check_types()
        assert (finding.state, "payees.iban (iban)" in finding.message) == ("warn", True)
        assert ("types", finding) in [*doctor.run_checks()]
    page = Browser(app, cast.alice).get(f"records/{alice.account_id}/payees/{record['id']}")
    assert IBAN in page.text
    described = alice.get("/openapi.json?collections=1").json["components"]["schemas"]
    assert "iban" in described["payees_record"]["properties"]
    assert "iban" not in described["payees_create"]["properties"]
    assert root.get("manifest/export").status_code == 200
    removal = {"remove_fields": ["iban"]}
    plan = root.post(f"{path}/plan", removal).json
    answer = root.patch(path, {**removal, "plan_hash": plan["plan_hash"]})
    assert answer.status_code == 200, answer.json


def of(name: str, check: Callable[[], None] = lambda: None, **members: Any) -> None:
    """Load an extension with a type of this name; members that are None are left out."""

    def kind() -> None:
        whole = {"clean": lambda self, value, options: value, "label": "x"}
        whole |= {"schema": {"type": "string"}, **members}
        field_type(name)(type("Kind", (), {k: v for k, v in whole.items() if v is not None}))

    with loading.loaded(kind):
        check()


@pytest.mark.parametrize(
    ("name", "members", "message"),
    [
        ("text", {}, "the product has a field type of this name"),
        ("IBAN", {}, "small letters"),
        ("iban", {"clean": None}, "clean"),
        ("iban", {"label": None}, "label"),
        ("iban", {"schema": {"type": "number"}}, "schema"),
        ("iban", {"schema": {"type": "string", "example": object()}}, "JSON"),
    ],
)
def test_unusable_classes_are_not_loaded(name: str, members: Any, message: str) -> None:
    with pytest.raises(LoadError, match=message):
        of(name, **members)
    assert "iban" not in fields.TYPES


def test_two_extensions_cannot_share_a_type() -> None:
    def credit() -> None:
        bank()

    with pytest.raises(LoadError, match="iban"), loading.loaded(bank, credit):
        pass
    assert "iban" not in fields.TYPES


@pytest.mark.long
def test_isolation_check_knows_its_values(app: Flask, cast: Cast, payees: str) -> None:
    required = {"name": "iban", "type": "iban", "required": True, "unique": True}
    make_collection(cast.root, "owners", [required])
    only = "/(console|api/v1)/records"
    result = app.test_cli_runner().invoke(args=["isolation-check", "--only", only])
    assert result.exit_code == 0, result.output
