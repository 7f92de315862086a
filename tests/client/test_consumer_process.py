"""A consumer that its program forgot to close."""

from __future__ import annotations

import subprocess
import sys

from client.consuming import PATIENCE, group

FORGET = """
import gc, sys, time, ottla
servers, topic, group = sys.argv[1:]
consumer = ottla.Consumer(topic, bootstrap_servers=servers, group_id=group)
consumer.poll(0)  # joins the group
with ottla.Admin(servers) as admin:
    deadline = time.monotonic() + 60
    while not any(each.assignment for each in admin.describe_groups(group)[group].members):
        assert time.monotonic() < deadline
    del consumer  # with an assignment that it was not asked about
    gc.collect()
    print(admin.describe_groups(group)[group].members)
"""


def test_a_consumer_that_nobody_closed_leaves_its_group_when_it_is_collected(
    servers: str, topic: str
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FORGET, servers, topic, group()],
        timeout=2 * PATIENCE,
        capture_output=True,
        text=True,
    )
    assert done.stdout == "()\n", done.stderr
    assert "was not closed: use it in a `with` statement" in done.stderr
