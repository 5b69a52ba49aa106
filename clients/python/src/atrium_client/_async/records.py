"""Records of a collection."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Generic, Literal
from urllib.parse import quote

from atrium_client._async.session import PREFIX
from atrium_client.files import Source, opened
from atrium_client.filters import Condition
from atrium_client.records import (
    ChangesT,
    ItemT,
    NewT,
    Page,
    RecordT,
    ReplacementT,
    match_header,
    page_of,
    query,
    with_etag,
)

if TYPE_CHECKING:
    from atrium_client._async.client import AsyncClient

Filter = Condition | str | None
Names = str | Sequence[str]
Separator = Literal["comma", "semicolon", "tab", "pipe"]
Expected = str | Mapping[str, Any] | None
"""An ETag, or a record as it was read."""


class AsyncRecords(Generic[ItemT, RecordT, NewT, ReplacementT, ChangesT]):
    """The records of a collection, with the types of what lists and requests return and take."""

    def __init__(self, client: AsyncClient, collection: str) -> None:
        self._session = client.session
        self._path = f"records/{quote(collection, safe='')}"

    async def get(
        self,
        record_id: str,
        *,
        expand: Names = (),
        as_of: datetime | None = None,
        file_links: int | None = None,
    ) -> RecordT:
        """Return a record, as it was at `as_of`.

        The addresses of its files work for `file_links` seconds without a credential.
        """
        params = query(expand=expand, as_of=as_of, file_links=file_links)
        return await self._one("GET", record_id, params=params)

    async def list(
        self,
        *,
        filter: Filter = None,
        search: str | None = None,
        highlight: bool = False,
        sort: Names = (),
        fields: Names = (),
        expand: Names = (),
        page: int = 1,
        page_size: int = 100,
        total: bool = True,
        file_links: int | None = None,
        trash: bool = False,
    ) -> Page[ItemT]:
        """Return a page of records, or of those in the trash.

        What `search` finds comes by relevance, unless there is a `sort`; `highlight` adds
        `_highlights`, the found parts of the fields as HTML.
        """
        params = query(filter=filter, sort=sort, fields=fields, expand=expand, page=page)
        params |= query(search=search, highlight=highlight or None)
        params |= query(page_size=page_size, include_total=total, file_links=file_links)
        params |= query(trash=trash or None)
        return page_of(await self._session.json("GET", self._path, params=params))

    async def iterate(
        self,
        *,
        filter: Filter = None,
        search: str | None = None,
        highlight: bool = False,
        sort: Names = (),
        fields: Names = (),
        expand: Names = (),
        page_size: int = 100,
        file_links: int | None = None,
        trash: bool = False,
    ) -> AsyncIterator[ItemT]:
        """Yield all records, or those in the trash, page by page as they are needed.

        `search` and `highlight` are those of `list`.
        """
        params = query(filter=filter, sort=sort, fields=fields, expand=expand, limit=page_size)
        params |= query(search=search, highlight=highlight or None)
        params |= query(file_links=file_links, trash=trash or None)
        cursor: str | None = ""
        while cursor is not None:
            paged = {**params, "cursor": cursor}
            answer = await self._session.json("GET", self._path, params=paged)
            for record in answer["items"]:
                yield record
            cursor = answer["next_cursor"] if answer["has_more"] else None

    async def create(self, record: NewT) -> RecordT:
        """Create a record."""
        return await self._one("POST", json=record)

    async def update(
        self, record_id: str, changes: ChangesT, *, if_match: Expected = None
    ) -> RecordT:
        """Change some fields of a record. Raises PreconditionFailed if it is not as expected."""
        return await self._write("PATCH", record_id, changes, if_match)

    async def replace(
        self, record_id: str, record: ReplacementT, *, if_match: Expected = None
    ) -> RecordT:
        """Replace a record; absent fields take their default."""
        return await self._write("PUT", record_id, record, if_match)

    async def delete(
        self, record_id: str, *, if_match: Expected = None, permanently: bool = False
    ) -> None:
        """Delete a record; `permanently` passes by the trash, or deletes what is there."""
        params = query(permanently=permanently or None)
        headers = match_header(if_match)
        await self._session.request("DELETE", self._url(record_id), headers=headers, params=params)

    async def create_many(self, records: Sequence[NewT]) -> Sequence[RecordT]:
        """Create records, all or none."""
        created: Sequence[RecordT] = await self._batch("POST", {"records": records}, "created")
        return created

    async def upsert_many(self, records: Sequence[NewT], *, on: str) -> Mapping[str, Any]:
        """Update the records whose value of a unique field exists, and create the others."""
        params = {"mode": "upsert", "on": on}
        body = {"records": records}
        answer: Mapping[str, Any] = await self._session.json(
            "POST", f"{self._path}/batch", json=body, params=params
        )
        return answer

    async def update_many(self, changes: Mapping[str, ChangesT]) -> Sequence[RecordT]:
        """Change records by their ids, all or none."""
        records = [{"id": record_id, "data": data} for record_id, data in changes.items()]
        updated: Sequence[RecordT] = await self._batch("PATCH", {"records": records}, "updated")
        return updated

    async def delete_many(self, record_ids: Sequence[str]) -> Sequence[str]:
        """Delete records, all or none; returns their ids."""
        deleted: Sequence[str] = await self._batch("DELETE", {"ids": record_ids}, "deleted")
        return deleted

    async def import_file(
        self,
        file: Source,
        media_type: str = "text/csv",
        *,
        upsert: str | None = None,
        encoding: str | None = None,
        separator: Separator | None = None,
        dry_run: bool = False,
    ) -> Mapping[str, Any]:
        """Import the records of a file, all or none; returns how many.

        The file is a path, its bytes, or a stream. `upsert` names a unique field: records that have
        its value already are updated. Encoding and separator of CSV are found unless given.
        """
        with opened(file) as (_, stream):
            content = stream.read()
        params = query(upsert=upsert, encoding=encoding, separator=separator, dry_run=dry_run)
        answer: Mapping[str, Any] = await self._session.json(
            "POST",
            f"{self._path}/import",
            content=content,
            headers={"Content-Type": media_type},
            params=params,
        )
        return answer

    async def aggregate(
        self,
        *functions: str,
        group_by: Names = (),
        filter: Filter = None,
        search: str | None = None,
        having: Filter = None,
    ) -> Sequence[Mapping[str, Any]]:
        """Return results such as those of `count()` and `sum(price)`, for each group."""
        params = query(functions=functions, group_by=group_by, filter=filter, having=having)
        params |= query(search=search)
        answer = await self._session.json("GET", f"{self._path}/aggregate", params=params)
        results: Sequence[Mapping[str, Any]] = answer["results"]
        return results

    async def history(self, record_id: str, *, page: int = 1) -> Page[Mapping[str, Any]]:
        """Return a page of a record's changes."""
        path = f"{self._path}/{quote(record_id, safe='')}/history"
        return page_of(await self._session.json("GET", path, params=query(page=page)))

    async def restore(
        self, record_id: str, audit_id: int | None = None, *, values: ChangesT | None = None
    ) -> RecordT:
        """Write the state of a record at an entry of its history, as a new change.

        Without an entry, bring it back from the trash, with `values` in the place of its own.
        """
        given = {"audit_id": audit_id, "values": values}
        body = {name: one for name, one in given.items() if one is not None}
        return await self._one("POST", record_id, "/restore", json=body)

    async def _write(self, method: str, record_id: str, body: Any, expected: Expected) -> RecordT:
        return await self._one(method, record_id, json=body, headers=match_header(expected))

    async def _one(
        self, method: str, record_id: str = "", action: str = "", **options: Any
    ) -> RecordT:
        response = await self._session.request(method, self._url(record_id, action), **options)
        record: RecordT = with_etag(response)
        return record

    async def _batch(self, method: str, body: Any, result: str) -> Any:
        return (await self._session.json(method, f"{self._path}/batch", json=body))[result]

    def _url(self, record_id: str = "", action: str = "") -> str:
        return f"{PREFIX}/{self._path}/{quote(record_id, safe='')}{action}"
