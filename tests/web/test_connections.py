"""Connections that ask nothing, against a server on real sockets: others are served (attack 11)."""

import contextlib
import http.client
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from web_cases import Growing

from hanse.cli.serve import listen, prepare
from hanse.web.connections import Connections

STRANGER, OTHER = "127.0.0.2", "127.0.0.3"  # all of 127/8 is this machine


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[[Connections], int]]:
    Growing(tmp_path / "run").round()
    with contextlib.ExitStack() as stack:

        def start(connections: Connections) -> int:
            server, _ = prepare(tmp_path, "127.0.0.1", 0, None, connections=connections)
            listening = stack.enter_context(listen("127.0.0.1", 0))
            thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
            thread.start()
            stack.callback(thread.join, 30)
            stack.callback(setattr, server, "should_exit", True)
            return int(listening.getsockname()[1])

        yield start


@contextlib.contextmanager
def half_open(port: int, many: int, address: str) -> Iterator[list[socket.socket]]:
    """Hold connections that have sent the beginning of a request."""
    with contextlib.ExitStack() as stack:
        held = []
        for _ in range(many):
            one = stack.enter_context(socket.create_connection(("127.0.0.1", port), 30, (address, 0)))
            one.settimeout(30)
            one.sendall(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n")
            held.append(one)
        yield held


def asked(port: int, address: str, path: str = "/runs.json") -> int:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30, source_address=(address, 0))
    with contextlib.closing(connection):
        connection.request("GET", path)
        return connection.getresponse().status


def is_closed(one: socket.socket) -> bool:
    try:
        return one.recv(1) == b""
    except ConnectionResetError:
        return True


def test_hundreds_of_half_open_connections_leave_others_served(serve: Callable[[Connections], int]) -> None:
    port = serve(Connections(wait_s=600))
    with half_open(port, 420, STRANGER) as held:
        assert asked(port, OTHER) == 200
        assert asked(port, STRANGER) == 200  # even from there: the oldest that waits makes room
        assert all(is_closed(one) for one in held[:220])


def test_from_many_addresses_the_oldest_that_waits_makes_room(serve: Callable[[Connections], int]) -> None:
    port = serve(Connections(total=6, each=4, wait_s=600))
    with half_open(port, 3, STRANGER) as first, half_open(port, 3, OTHER):
        assert asked(port, "127.0.0.4") == 200
        assert is_closed(first[0])


def test_headers_and_forms_have_a_time_limit(serve: Callable[[Connections], int]) -> None:
    port = serve(Connections(wait_s=0.05))
    with half_open(port, 1, OTHER) as (headers,), half_open(port, 1, OTHER) as (form,):
        assert is_closed(headers)
        form.settimeout(30)
    with socket.create_connection(("127.0.0.1", port), 30) as form:
        form.sendall(b"POST /login HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 9\r\n\r\nkey=")
        assert is_closed(form)


def test_a_page_that_is_watched_is_not_closed_for_anybody(serve: Callable[[Connections], int]) -> None:
    """A live stream is a request under way: it outlives the time limit and makes room for nobody."""
    port = serve(Connections(total=2, each=2, wait_s=0.05))
    watching = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    with contextlib.closing(watching):
        watching.request("GET", "/")
        answer = watching.getresponse()
        id_ = answer.headers["location"].rpartition("/")[2]
        answer.read()
        watching.request("GET", f"/run/{id_}/events")
        stream = watching.getresponse()
        assert stream.readline() == b"retry: 2000\n"
        with half_open(port, 1, OTHER) as (late,):
            assert is_closed(late)  # the limit has passed
        assert asked(port, OTHER) == 200
        stream.readline()
        assert stream.readline().startswith(b'data: {"whole":true')


def test_without_anybody_to_make_room_a_new_connection_is_refused(serve: Callable[[Connections], int]) -> None:
    port = serve(Connections(total=1, each=1, wait_s=600))
    watching = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    with contextlib.closing(watching):
        watching.request("GET", "/")
        answer = watching.getresponse()
        answer.read()
        watching.request("GET", answer.headers["location"] + "/events")
        assert watching.getresponse().readline() == b"retry: 2000\n"
        assert asked(port, OTHER) == 503
