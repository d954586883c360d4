"""What strangers without a key cost the operator of a network: memory of the proxy and of the SuperLink.

python benchmarks/proxy_limits.py
"""

from __future__ import annotations

import http.client
import socket
import ssl
import sys
import tempfile
import threading
import time
from collections import Counter
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "deployment"))

from deployed import free_ports, network

from hanse.wings.operate import server_access

ANYBODY = ssl._create_unverified_context()
LARGEST = int(server_access.MOST[:-1]) << 20


def memory(process: int, what: str = "VmRSS") -> int:
    """Return the MB that a process holds, or has held at most (``VmHWM``)."""
    [line] = [x for x in Path(f"/proc/{process}/status").read_text().splitlines() if x.startswith(what)]
    return int(line.split()[1]) // 1024


def held(sockets: list[ssl.SSLSocket]) -> int:
    """Return how many connections wait for more."""
    found = 0
    for one in sockets:
        one.settimeout(0.05)
        try:
            one.recv(1)
        except TimeoutError:
            found += 1
        except OSError:
            pass
    return found


def slow(port: int, worker: int) -> None:
    """Send all but the end of 60 bodies, and then a byte every 20 s."""
    before, sockets = memory(worker), list[ssl.SSLSocket]()
    for _ in range(60):
        sockets.append(ANYBODY.wrap_socket(socket.create_connection(("127.0.0.1", port))))
        with suppress(OSError):
            sockets[-1].sendall(
                b"POST /v1/fleet/push-object HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % LARGEST
            )
            sockets[-1].sendall(bytes(LARGEST - 100_000))
    time.sleep(1)
    print(f"60 unfinished bodies: proxy {before} -> {memory(worker)} MB, {held(sockets)} held")
    for _ in range(2):
        time.sleep(20)
        for one in sockets:
            with suppress(OSError):
                one.sendall(b"x")
    print(f"a byte every 20 s: {held(sockets)} held")


def whole(port: int, name: str, size: int) -> Counter[object]:
    """Send 40 whole bodies at once; return how often they were answered how."""
    found, body = Counter[object](), bytes(size)

    def send() -> None:
        made = http.client.HTTPSConnection("127.0.0.1", port, timeout=120, context=ANYBODY)
        try:
            made.request("POST", f"/v1/fleet/{name}", body, {"Content-Type": "application/protobuf"})
            found[made.getresponse().status] += 1
        except OSError as wrong:
            found[type(wrong).__name__] += 1

    threads = [threading.Thread(target=send) for _ in range(40)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        [port] = free_ports(1)
        net = replace(network(Path(folder, "net"), 1), listen=f"127.0.0.1:{port}")
        try:
            net.up(only=[])
            superlink, proxy = net.processes.pid("superlink"), net.processes.pid("proxy")
            assert superlink is not None
            children = Path(f"/proc/{proxy}/task/{proxy}/children").read_text().split()
            for name, size in (("push-messages", (1 << 20) - 1000), ("push-object", LARGEST - 1000)):
                before, answers = memory(superlink), whole(port, name, size)
                print(f"40 bodies of {size:,} bytes for {name}: SuperLink {before} ->", end=" ")
                print(f"{memory(superlink, 'VmHWM')} MB at most, answers {dict(answers)}")
            slow(port, int(children[0]))
        finally:
            net.down()


if __name__ == "__main__":
    main()
