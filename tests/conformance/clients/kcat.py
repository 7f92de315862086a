"""kcat (Debian's command-line client, librdkafka 2.0.2) as a conformance client: one process per call.

Keys and values travel on the pipes with delimiters and lengths of our own, so that binary content survives.
kcat gives one set of headers to all records of a process, so messages are sent as runs of alike ones.
"""

from __future__ import annotations

import os
import re
import selectors
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby

from conformance.clients.model import (
    DEADLINE,
    FETCH_BYTES,
    Delivery,
    Headers,
    Message,
    Received,
    Refused,
    Start,
)
from conformance.clients.readers import Taking

KEY_END = b"\x01\xfe\x02\xfd"
MESSAGE_END = b"\x03\xfc\x04\xfb"
FORMAT = r"%p %o %T %K %S|%h\n%k%s"
HEAD = re.compile(rb"(\d+) (\d+) (-?\d+) (-?\d+) (-?\d+)\|(.*)")


def _escaped(delimiter: bytes) -> str:
    return "".join(f"\\x{byte:02x}" for byte in delimiter)


def _headers(text: bytes) -> Headers:
    pairs = [pair.partition(b"=") for pair in text.split(b",") if pair]
    return tuple((name.decode(), None if value == b"NULL" else value) for name, _, value in pairs)


class _Reader(Taking):
    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        super().__init__()
        assert process.stdout is not None
        self._process = process
        self._out = process.stdout.fileno()
        os.set_blocking(self._out, False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._out, selectors.EVENT_READ)
        self._bytes = bytearray()

    def poll(self, seconds: float) -> list[Received]:
        deadline = time.monotonic() + seconds
        while True:
            received = list(self._parse())
            if received or time.monotonic() >= deadline:
                return received
            if self._selector.select(deadline - time.monotonic()):
                chunk = os.read(self._out, 1 << 20)
                if not chunk:
                    assert self._process.stderr is not None
                    raise Refused(-1, self._process.stderr.read().decode())
                self._bytes += chunk

    def _parse(self) -> Iterator[Received]:
        while (line_end := self._bytes.find(b"\n")) >= 0:
            head = HEAD.fullmatch(self._bytes, 0, line_end)
            assert head is not None, bytes(self._bytes[:200])
            partition, offset, timestamp, key_size, value_size = (int(n) for n in head.groups()[:5])
            headers = _headers(head[6])
            key_at = line_end + 1
            value_at = key_at + max(0, key_size)
            end = value_at + max(0, value_size)
            if len(self._bytes) < end:
                return
            key = None if key_size < 0 else bytes(self._bytes[key_at:value_at])
            value = None if value_size < 0 else bytes(self._bytes[value_at:end])
            del head, self._bytes[:end]
            yield Received(partition, offset, key, value, headers, timestamp)

    def close(self) -> None:
        self._selector.close()


class KcatClient:
    name = "kcat"
    codecs = ("none", "gzip", "snappy", "lz4", "zstd")
    features = frozenset({"idempotence", "null-headers"})

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap

    def produce(
        self,
        topic: str,
        messages: Sequence[Message],
        *,
        partition: int = 0,
        acks: str = "all",
        codec: str = "none",
        idempotent: bool = False,
    ) -> list[Delivery | None]:
        settings = {
            "acks": acks,
            "compression.codec": codec,
            "enable.idempotence": str(idempotent).lower(),
            "message.max.bytes": "2000000",
            "message.timeout.ms": str(int(DEADLINE * 1000)),
        }
        command = ["kcat", "-b", self.bootstrap, "-P", "-t", topic, "-p", str(partition), "-E"]
        command += ["-D", _escaped(MESSAGE_END), *(f"-X{name}={value}" for name, value in settings.items())]
        for (headers, has_key, _), run in groupby(messages, _alike):
            extra = [
                f"-H{name}" if value is None else f"-H{name}={value.decode()}" for name, value in headers
            ]
            if has_key:
                extra += ["-K", _escaped(KEY_END)]
            content = b"".join(_sent(m) + MESSAGE_END for m in run)
            done = subprocess.run(
                [*command, "-Z", *extra],
                input=content,
                capture_output=True,
                timeout=DEADLINE * 2,
                check=False,
            )
            if done.returncode or b"Delivery failed" in done.stderr:
                raise Refused(-1, done.stderr.decode())
        return [None] * len(messages)

    @contextmanager
    def reading(
        self, topic: str, partition: int, start: Start, *, fetch_bytes: int = FETCH_BYTES
    ) -> Iterator[_Reader]:
        position = {
            "earliest": "beginning",
            "latest": "end",
            "offset": str(start.number),
            "timestamp": f"s@{start.number}",
            "tail": f"-{start.number}",
        }[start.kind]
        with self._consuming(topic, "-p", str(partition), "-o", position, fetch_bytes=fetch_bytes) as reader:
            yield reader

    @contextmanager
    def reading_all(self, topic: str, partitions: int) -> Iterator[_Reader]:
        with self._consuming(topic, "-o", "beginning") as reader:
            yield reader

    @contextmanager
    def _consuming(self, topic: str, *where: str, fetch_bytes: int = FETCH_BYTES) -> Iterator[_Reader]:
        command = ["kcat", "-b", self.bootstrap, "-C", "-t", topic, *where, "-u", "-q", "-f", FORMAT]
        command += [f"-Xfetch.message.max.bytes={fetch_bytes}", "-Xtopic.auto.offset.reset=error"]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0)
        reader = _Reader(process)
        try:
            yield reader
        finally:
            reader.close()
            process.kill()
            process.communicate()


def _alike(message: Message) -> tuple[Headers, bool, bool]:
    return message.headers, message.key is not None, message.value is not None


def _sent(message: Message) -> bytes:
    assert message.timestamp is None, "kcat cannot set timestamps"
    assert message.key != b"" and message.value != b"", "kcat sends empty as null"
    value = message.value or b""
    return value if message.key is None else message.key + KEY_END + value
