"""Who may see the pages over TCP: nobody without the token, on no path."""

from typing import Any

import httpx
import pytest

from fusiond.store.database import Store

Served = tuple[str, str, Store]
PATHS = (
    "/", "/health", "/jobs", "/judge", "/page/jobs/x", "/metrics", "/openapi.json", "/static/style.css", "/nothing",
)  # fmt: skip


def base(url: str) -> str:
    return url.partition("/?")[0]


@pytest.mark.slow
@pytest.mark.parametrize("path", PATHS)
def test_nothing_without_the_token(served: Served, path: str) -> None:
    url, _, _ = served
    for method in ("GET", "POST", "DELETE"):
        assert httpx.request(method, base(url) + path).status_code == 401
        for wrong in ({"params": {"token": "wrong"}}, {"headers": {"authorization": "Bearer wrong"}},
                      {"headers": {"cookie": "fusiond_token=wrong"}}, {"params": {"token": ""}}):  # fmt: skip
            assert httpx.request(method, base(url) + path, **wrong).status_code == 403


def test_the_url_gives_a_cookie_and_goes_from_the_address(served: Served) -> None:
    url, _, _ = served
    with httpx.Client(follow_redirects=False) as client:
        moved = client.get(f"{url}&state=done", headers={"accept": "text/html"})
        assert (moved.status_code, moved.headers["location"]) == (303, "/?state=done")
        cookie = moved.headers["set-cookie"].lower()
        assert "httponly" in cookie
        assert "samesite=strict" in cookie
        page = client.get(base(url) + "/")
    assert page.status_code == 200
    assert page.headers["cache-control"] == "no-store"
    assert page.headers["referrer-policy"] == "no-referrer"
    assert "default-src 'none'" in page.headers["content-security-policy"]


def test_a_program_brings_it_as_a_bearer_or_in_the_url(served: Served) -> None:
    url, job, _ = served
    token = url.partition("token=")[2]
    found = httpx.get(f"{base(url)}/jobs/{job}", headers={"authorization": f"Bearer {token}"})
    assert found.json()["id"] == job
    assert httpx.get(f"{base(url)}/health", params={"token": token}).json()["state"] == "serving"


def test_a_form_of_another_page_is_refused(served: Served, page: Any) -> None:
    _, job, _ = served
    said = page(f"/page/jobs/{job}/cancel", "POST", headers={"origin": "http://elsewhere.example"})
    assert (said.status_code, said.text) == (403, "a form of another page\n")
    own = page(f"/page/jobs/{job}/cancel", "POST", headers={"origin": base(served[0])})
    assert (own.status_code, own.headers["location"]) == (303, f"/page/jobs/{job}")


@pytest.mark.parametrize("odd", ["fusiond_token=\x80", "a=b; ;=;fusiond_token", "fusiond_token=" + "x" * 4000])
def test_odd_cookies_are_no_token(served: Served, odd: str) -> None:
    url, _, _ = served
    assert httpx.get(base(url) + "/", headers=[(b"cookie", odd.encode("latin-1"))]).status_code in (401, 403)
