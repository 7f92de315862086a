"""The quick start: a broker from nothing, a topic, an unmodified Kafka client, a clean end.

Everything shown is run: the commands are the ones a user would type, and the client is confluent-kafka, which
knows nothing of Ottla. The broker and its data in .demo/ belong to it alone.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Producer, TopicPartition
from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parent.parent
DATA = ROOT / ".demo" / "quickstart"
OTTLA = Path(sys.executable).with_name("ottla")
ORDERS = [
    ("anna", "flat white"),
    ("ben", "espresso"),
    ("anna", "croissant"),
    ("chloe", "filter coffee"),
    ("ben", "another espresso"),
    ("anna", "the bill, please"),
]
MANY = 100_000
PATIENCE = 30.0

console = Console(highlight=False)


def heading(text: str) -> None:
    console.print(f"\n[bold cyan]{text}[/]")


def run(*arguments: str, bootstrap: str) -> None:
    """Shows and runs one `ottla` command."""
    console.print(f"[dim]$[/] ottla {' '.join(arguments)}")
    sys.stdout.flush()
    subprocess.run([OTTLA, *arguments], env={**os.environ, "OTTLA_BOOTSTRAP": bootstrap}, check=True)


def start() -> tuple[subprocess.Popen[str], str]:
    shutil.rmtree(DATA, ignore_errors=True)
    DATA.mkdir(parents=True)
    console.print("[dim]$[/] ottla serve --data .demo/quickstart/data --listen 127.0.0.1:0")
    began = time.monotonic()
    with (DATA / "broker.log").open("w") as log:
        command = [str(OTTLA), "serve", "--json", "--data", str(DATA / "data"), "--listen", "127.0.0.1:0"]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        process.wait()
        raise SystemExit(f"the broker did not start:\n{(DATA / 'broker.log').read_text()}")
    bootstrap: str = json.loads(line)["bootstrap"]
    console.print(
        f"ready on [bold]{bootstrap}[/] after {time.monotonic() - began:.2f} s, process {process.pid}"
    )
    return process, bootstrap


def write_orders(bootstrap: str) -> None:
    table = Table(
        "customer", "order", "partition", "offset", title="acknowledged by the broker", title_justify="left"
    )

    def delivered(error: KafkaError | None, message: object) -> None:
        if error is not None:
            raise SystemExit(f"not delivered: {error}")
        key, value, partition, offset = (
            getattr(message, name)() for name in ("key", "value", "partition", "offset")
        )
        table.add_row(key.decode(), value.decode(), str(partition), str(offset))

    producer = Producer(
        {"bootstrap.servers": bootstrap, "enable.idempotence": True, "compression.type": "zstd"}
    )
    for customer, order in ORDERS:
        producer.produce("coffee", order.encode(), customer.encode(), on_delivery=delivered)
    producer.flush(PATIENCE)
    console.print(table)


def write_many(bootstrap: str) -> None:
    value = b"x" * 100
    producer = Producer(
        {"bootstrap.servers": bootstrap, "queue.buffering.max.messages": MANY, "linger.ms": 5}
    )
    began = time.monotonic()
    for n in range(MANY):
        producer.produce("beans", value, partition=n % 3)
    if producer.flush(PATIENCE):
        raise SystemExit("not everything was acknowledged")
    taken = time.monotonic() - began
    console.print(f"wrote {MANY:,} records of 100 bytes in {taken:.2f} s, each acknowledged")


def read_many(bootstrap: str) -> None:
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "quickstart", "enable.auto.commit": False}
    )
    try:
        consumer.assign([TopicPartition("beans", partition, OFFSET_BEGINNING) for partition in range(3)])
        began, count = time.monotonic(), 0
        while count < MANY:
            if time.monotonic() - began > PATIENCE:
                raise SystemExit(f"only {count} of {MANY} records came back")
            count += len(consumer.consume(min(10_000, MANY - count), 1.0))
        console.print(f"read  {count:,} of them back in {time.monotonic() - began:.2f} s")
    finally:
        consumer.close()


def main() -> None:
    heading("A broker, from nothing")
    process, bootstrap = start()
    try:
        heading("A topic")
        run("topic", "create", "coffee", "--partitions", "3", bootstrap=bootstrap)
        run("topic", "create", "beans", "--partitions", "3", bootstrap=bootstrap)

        heading("An unmodified Kafka client writes (confluent-kafka, idempotent, zstd)")
        write_orders(bootstrap)

        heading("Another client reads; the orders of one customer stay in order")
        run("consume", "coffee", "--keys", "--offsets", bootstrap=bootstrap)

        heading("And more of it")
        write_many(bootstrap)
        read_many(bootstrap)
        run("topic", "list", bootstrap=bootstrap)
    finally:
        heading("The end")
        process.send_signal(signal.SIGTERM)
        code = process.wait(PATIENCE)
        console.print(f"SIGTERM; the broker ended with {code}, its log is in .demo/quickstart/data")


if __name__ == "__main__":
    main()
