"""Keep a billing service in step with the accounts: ATRIUM, TOKEN and BILLING say where.

`billing.py position` reads events after the saved position, and sends BILLING what the accounts
have become: `PUT /customers/{account_id}`. Doing it twice does no harm, so that nothing is lost.
"""

import json
import os
import sys
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen


def call(method, url, body=None, **headers):
    data = None if body is None else json.dumps(body).encode()
    headers = {"Content-Type": "application/json", **headers}
    with urlopen(Request(url, data, headers, method=method), timeout=30) as answer:  # noqa: S310
        return json.loads(answer.read() or "null")


def customer_of(url, **headers):
    try:
        account = call("GET", url, **headers)
    except HTTPError as error:
        return {"state": "closed"} if error.code == 404 else sys.exit(f"{url}: {error}")
    state = "active" if account["is_active"] else "suspended"
    return {"state": state, "name": account["name"], "plan": account["plan"]}


position, base = Path(sys.argv[1]), f"{os.environ['ATRIUM']}/api/v1"
sign_in, page = {"Authorization": f"Bearer {os.environ['TOKEN']}"}, {"has_more": True}
while page["has_more"]:
    after = position.read_text() if position.exists() else 0
    query = f"after={after}&types=account.*,plan.changed&limit=500"
    page = call("GET", f"{base}/operator/events?{query}", **sign_in)
    for id in dict.fromkeys(event["account_id"] for event in page["items"]):
        customer = customer_of(f"{base}/accounts/{id}", **sign_in)
        call("PUT", f"{os.environ['BILLING']}/customers/{id}", customer)
    position.write_text(str(page["next"]))
