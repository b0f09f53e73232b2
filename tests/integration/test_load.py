"""Minutes of many clients at once, some of whom leave early: no error, no leak, clean books.

LUNA_LOAD_SECONDS  how long (default 180);  LUNA_TEST_SEED  the lengths and the leavers
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable

from load_client import READ_TIMEOUT_S, LoadClient
from luna_server import LunaServer, wait_until

N_STREAMS = 64
SECONDS = float(os.environ.get("LUNA_LOAD_SECONDS", "180"))
SEED = int(os.environ.get("LUNA_TEST_SEED", "20261129"))
# What may come after the warm part: allocator slack of 64 connections, not a leak.
RSS_GROWTH_BYTES_MAX = 24 << 20


def test_64_streams_for_minutes_give_no_error_no_leak_and_clean_books(
    start_server: Callable[..., LunaServer],
) -> None:
    print(f"LUNA_TEST_SEED={SEED} LUNA_LOAD_SECONDS={SECONDS}")
    server = start_server(n_devices=2)
    begin = time.monotonic()
    clients = [LoadClient(server.port, SEED + i, begin + SECONDS) for i in range(N_STREAMS)]
    threads = [threading.Thread(target=client.run, daemon=True) for client in clients]
    for thread in threads:
        thread.start()
    threads[0].join(SECONDS / 3)
    warm_rss_bytes = server.rss_bytes()
    for thread in threads:
        thread.join(SECONDS + READ_TIMEOUT_S)
    errors = [error for client in clients for error in client.errors]
    assert not errors, f"{len(errors)} clients failed, the first: {errors[0]}"
    assert not any(thread.is_alive() for thread in threads), "a client never ended"
    n_whole, n_left = sum(c.n_whole for c in clients), sum(c.n_left for c in clients)
    print(f"{n_whole} whole answers, {n_left} left early")
    assert n_whole >= N_STREAMS and n_left > 0
    wait_until(server.is_idle, 30, "all sequences and KV blocks are gone")
    assert server.metric("luna_kv_audit_failures_total") == 0
    assert server.metric("luna_requests_total", code="server_error") == 0
    growth = server.rss_bytes() - warm_rss_bytes
    print(f"resident memory: {warm_rss_bytes >> 20} MiB warm, growth {growth / 2**20:.1f} MiB")
    assert growth <= RSS_GROWTH_BYTES_MAX
    assert server.stop() == 0
