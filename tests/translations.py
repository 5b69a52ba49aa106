"""The catalogs of `app/translations/`: `messages` of pages and mails, `errors` of services.

`python -m tests.translations` writes new texts into every catalog and drops those that are gone.
Pages translate with `gettext`; services raise errors in English, whose texts are found here by
their look: sentences that are no documentation.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from babel.messages.catalog import Catalog
from babel.messages.extract import extract_from_dir
from babel.messages.pofile import write_po

from app.web import languages

PROJECT = Path(__file__).resolve().parent.parent
LANGUAGES = ("de",)
HEADER = "# Texts of Atrium. `make translations` adds new ones."
METHODS = [("app/**.py", "python"), ("templates/**.*", "jinja2")]
KEYWORDS: dict[str, Any] = {
    "_": None,
    "gettext": None,
    "gettext_noop": None,
    "lazy_gettext": None,
    "ngettext": (1, 2),
}
Found = Iterator[tuple[str, int]]  # text, line

# What has no errors for people: the console translates its own, operators read English.
NOT_FOR_PAGES = {"console", "welcome", "isolation", "ops", "db", "config", "jobs", "sso/scim"}
DOCUMENTATION = {"metadata", "description", "help", "doc", "summary", "example", "examples"}
NO_ERRORS = {"info", "warning", "debug", "exception", "option", "command", "echo", "ConfigError"}
NO_ERRORS |= {"gettext_noop", "ClickException", "arguments", "response", "alt_response", "fails"}
NO_ERRORS |= {"text", "Counter", "Gauge", "Histogram"}  # SQL; metrics
NO_ERRORS |= {"doc"}  # properties of schemas
NO_PAGE = re.compile(r"schemas$|openapi_text|^commands$")
SENTENCE = re.compile(r"[A-Z{].*[a-z}].*[.?]|[A-Z][a-z]+\.|[A-Z][a-z ]+: \{\w+\}", re.DOTALL)
MIN_LETTERS = 6  # outside of placeholders, so that a text can be recognized


def extracted(domain: str) -> Catalog:
    """All texts of a domain in the sources."""
    catalog = Catalog(project="Atrium", fuzzy=False)
    for text, place in sorted(_messages() if domain == "messages" else _errors(), key=str):
        catalog.add(text, locations=[place])
    return catalog


def _messages() -> Iterator[tuple[Any, tuple[str, int]]]:
    options = {"templates/**.*": {"silent": "false"}}
    for folder in ("app", "templates"):
        methods = [(pattern, method) for pattern, method in METHODS if pattern.startswith(folder)]
        found = extract_from_dir(
            str(PROJECT),
            methods,
            options,
            KEYWORDS,
            directory_filter=lambda path: not Path(path).name.startswith((".", "_", "node_")),
        )
        for name, _, text, _, _ in found:
            yield text, (name, 0)


def _errors() -> Iterator[tuple[str, tuple[str, int]]]:
    for path in sorted((PROJECT / "app").rglob("*.py")):
        name, source = path.relative_to(PROJECT), ast.parse(path.read_text())
        if any(name.is_relative_to(f"app/{folder}") for folder in NOT_FOR_PAGES):
            continue
        if NO_PAGE.search(path.stem):
            continue
        is_api = re.search(r"routes\b", str(name))  # has descriptions beside errors
        raised = (node for node in ast.walk(source) if isinstance(node, ast.Raise))
        for part in raised if is_api else [source]:
            for text in _sentences(part):
                yield text, (str(name), 0)


def _sentences(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.JoinedStr | ast.Constant):
        yield from _sentence(node)
    elif not _is_documentation(node):
        for child in _values(node) if isinstance(node, ast.Dict) else ast.iter_child_nodes(node):
            yield from _sentences(child)


def _is_documentation(node: ast.AST) -> bool:
    if isinstance(node, ast.keyword):
        return node.arg in DOCUMENTATION
    if isinstance(node, ast.Call):
        return _name(node.func) in NO_ERRORS
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)  # a docstring


def _values(node: ast.Dict) -> Iterator[ast.expr]:
    for key, value in zip(node.keys, node.values, strict=True):
        if not (isinstance(key, ast.Constant) and key.value in DOCUMENTATION):
            yield value


def _sentence(node: ast.JoinedStr | ast.Constant) -> Iterator[str]:
    if isinstance(node, ast.Constant) and not isinstance(node.value, str):
        return
    text = _template(node)
    if text.startswith("SELECT "):
        return
    letters = re.sub(r"\{\w*\}|[^A-Za-z]", "", text)
    if SENTENCE.fullmatch(text.strip()) and len(letters) >= MIN_LETTERS:
        yield text


def _template(node: ast.JoinedStr | ast.Constant) -> str:
    """The text with a `{name}` for each value."""
    if isinstance(node, ast.Constant):
        return _numbered(re.sub(r"\{(?::\w*)?\}", "{value}", str(node.value)))
    parts = [
        f"{{{_name(part.value).lower() or 'value'}}}"
        if isinstance(part, ast.FormattedValue)
        else str(ast.literal_eval(part))
        for part in node.values
    ]
    return _numbered("".join(parts))


def _numbered(text: str) -> str:
    """The text with a number at the second and third placeholder of a name."""
    used: list[str] = []

    def number(found: re.Match[str]) -> str:
        used.append(found[1])
        count = used.count(found[1])
        return f"{{{found[1]}{count}}}" if count > 1 else found[0]

    return re.sub(r"\{([a-z_]+)(?::\w*)?\}", number, text)


def _name(node: ast.expr) -> str:
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        return node.attr
    return _name(node.value) if isinstance(node, ast.Subscript) else ""


def stored(language: str, domain: str) -> Catalog:
    """The catalog of a language; an empty one for a new language."""
    if not _path(language, domain).exists():
        return Catalog(locale=language, fuzzy=False)
    return languages.catalog(language, domain)


def save(catalog: Catalog, language: str, domain: str) -> None:
    """Write a catalog."""
    catalog.project, catalog.header_comment = "Atrium", HEADER
    path = _path(language, domain)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        write_po(file, catalog, width=100, include_lineno=False)


def _path(language: str, domain: str) -> Path:
    return languages.FOLDER / language / "LC_MESSAGES" / f"{domain}.po"


def update() -> None:
    """Write the texts of the sources into all catalogs."""
    for domain in ("messages", "errors"):
        template = extracted(domain)
        for language in LANGUAGES:
            catalog = stored(language, domain)
            template.creation_date = catalog.creation_date  # no change of its own
            catalog.update(template, no_fuzzy_matching=True, update_header_comment=False)
            catalog.obsolete.clear()
            save(catalog, language, domain)
            missing = sum(1 for message in catalog if message.id and not _is_translated(message))
            summary = f"{language}/{domain}: {len(catalog)} texts, {missing} without a translation"
            sys.stdout.write(f"{summary}\n")


def _is_translated(message: Any) -> bool:
    forms = message.string if isinstance(message.string, tuple | list) else [message.string]
    return all(forms) and not message.fuzzy


if __name__ == "__main__":
    update()
