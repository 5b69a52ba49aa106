"""Everything that scim2-tester checks of RFC 7643 and RFC 7644."""

from __future__ import annotations

from tests.scim.conftest import Directory


def test_scim2_tester_finds_nothing(okta: Directory) -> None:
    # Where they are used, as they take longer to load than all tests together.
    from scim2_client.engines.wsgi import WSGISCIMClient
    from scim2_tester import Status, check_server

    client = WSGISCIMClient(
        okta.app.wsgi_app, base_url="http://atrium.test/scim/v2", headers=okta.headers
    )
    results = check_server(client)
    wrong = [
        (result.title, result.resource_type, result.reason)
        for result in results
        if result.status in (Status.ERROR, Status.CRITICAL)
    ]
    assert wrong == []
    assert len([result for result in results if result.status is Status.SUCCESS]) > 50
