"""Which hosts a request to the HTTP door may name, and from which pages it may come."""

from __future__ import annotations

import socket

import pytest
from tests.gateway.test_http_request import asked
from tests.support.rows import for_each

from greenroom.gateway.doors.http_auth import Access, BearerToken
from greenroom.gateway.doors.http_request import (
    CLOSE,
    HttpRefusal,
)


def placed(access: Access, host: bytes | None, origin: bytes | None = None) -> int:
    """The status with which a request from there is refused; 0: it is not."""
    headers = [(b"host", host)] if host is not None else []
    headers += [(b"origin", origin)] if origin is not None else []
    try:
        access.check_place(asked(headers))
    except HttpRefusal as refusal:
        return refusal.status if CLOSE in refusal.headers else -1
    return 0


@pytest.mark.parametrize(
    ("listens", "host", "status"),
    [
        ("127.0.0.1", b"localhost", 0),
        ("127.0.0.1", b"LocalHost:80", 0),
        ("127.0.0.1", b"[::1]:80", 0),
        ("127.0.0.1", b"gate.example", 0),
        ("127.0.0.1", b"Gate.Example:443", 0),
        ("127.0.0.1", b"10.0.0.7", 421),
        ("127.0.0.1", b"other.example", 421),
        ("127.0.0.1", None, 421),
        ("127.0.0.1", b"", 421),
        ("127.0.0.1", b"localhost/", 421),
        ("127.0.0.1", b"localhost:", 0),
        ("127.0.0.1", b"localhost?", 421),
        ("127.0.0.1", b"[::1]x", 421),
        ("127.0.0.1", b"[localhost]", 421),
        ("127.0.0.1", b"[::1]:80x", 421),
        ("127.0.0.1", b"localhost?a", 421),
        ("127.0.0.1", b"localhost#a", 421),
        ("127.0.0.1", b"ann@localhost", 421),
        ("127.0.0.1", b"localhost:port", 421),
        ("127.0.0.1", b"localhost:99999", 421),
        ("10.0.0.7", b"10.0.0.7:80", 0),
        ("10.0.0.7", b"localhost", 0),  # a proxy of this machine
        ("10.0.0.7", b"this-machine", 0),
        ("10.0.0.7", b"10.0.0.8", 421),
        ("Far.Example", b"far.example", 0),
        ("0.0.0.0", b"10.0.0.8", 0),
        ("::", b"[fe80::1]:80", 0),
        ("0.0.0.0", b"127.0.0.1", 0),
        ("0.0.0.0", b"this-machine", 0),
        ("0.0.0.0", b"other.example", 421),
    ],
)
def test_a_request_names_one_of_our_hosts(
    listens: str, host: bytes | None, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "This-Machine")
    access = Access(listens, [BearerToken.of("ann", "0123456789abcdef")], hosts=["Gate.Example"])
    assert [placed(access, host) for _ in range(2)] == [status] * 2


@for_each(
    ("origin", "status", "reads"),
    [
        (b"https://app.example", 0, True),
        (b"HTTPS://App.Example", 0, True),
        (b"https://app.example:8443", 403, False),
        (b"http://app.example", 403, False),
        (b"http://localhost:5173", 0, False),
        (b"https://[::1]", 0, False),
        (b"ftp://localhost", 403, False),
        *(
            (odd, 403, False)
            for odd in (
                b"http://[::1]x",
                b"http://[::1]x:80",
                b"http://[::1].example",
                b"http://x[::1]",
                b"http://[localhost]",
                b"http://[::1",
                b"http://::1",
                b"http://localhost#",
                b"http://localhost?",
                b"http://local\thost",
                b"http://localhost\\.example",
                b"http://localhost:80:80",
                b"http://localhost, http://localhost",
            )
        ),
        (b"//localhost", 403, False),
        (b"http://ann@localhost", 403, False),
        (b"http://localhost/path", 403, False),
        (b"null", 403, False),
        (b"", 403, False),
    ],
)
def test_a_page_may_send_from_here_or_by_name_and_reads_only_by_name(
    origin: bytes, status: int, reads: bool
) -> None:
    access = Access("127.0.0.1", origins=["https://App.Example/"])
    assert [placed(access, b"localhost", origin) for _ in range(2)] == [status] * 2
    assert access.may_read(asked([(b"host", b"localhost"), (b"origin", origin)])) is reads


def test_a_host_that_was_let_in_is_no_origin_that_is_however_many_others_are_tried() -> None:
    access = Access("127.0.0.1", hosts=["http://app.example", "app.example"])
    assert (placed(access, b"app.example"), placed(access, b"app.example", b"app.example")) == (0, 403)
    assert placed(access, b"app.example", b"http://localhost") == 0
    assert placed(access, b"http://localhost") == 421
    for number in range(1000):
        assert placed(access, b"h%d.example" % number) == 421
    assert placed(access, b"app.example") == 0
