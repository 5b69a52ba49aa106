"""The meters: flows are counted per day (UTC), stocks have a level."""

from __future__ import annotations

REQUESTS, DELIVERIES, STEPS, MAILS = "requests", "deliveries", "workflow_steps", "mails"
RECORDS, ROW_BYTES, FILE_BYTES = "records", "row_bytes", "file_bytes"
FLOWS = (REQUESTS, DELIVERIES, STEPS, MAILS)
STOCKS = (RECORDS, ROW_BYTES, FILE_BYTES)
METERS = (*FLOWS, *STOCKS)
