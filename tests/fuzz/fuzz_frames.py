"""The fuzz target: valid frames, spoiled at random, through the path that every frame from a socket takes.

    cd tests && python -m fuzz.fuzz_frames --seconds 600 [--seed N]

Each round makes a random request of any API and version, spoils its frame a few times and hands it to
`parse_request_header` and the decoder, and does the same with a response. Allowed are Malformed,
UnsupportedVersion, or a message that can be encoded and decoded again. Anything else, a decoder that takes
longer than its bytes warrant, or one that takes more memory, ends the run with the seed and the frame.
"""

from __future__ import annotations

import argparse
import sys
import time
import tracemalloc
from collections import Counter
from collections.abc import Callable
from functools import partial
from random import Random, SystemRandom

from fuzz.hostile import spoil
from fuzz.random_messages import declared, random_message
from ottla.protocol.apis import APIS, Api
from ottla.protocol.codec import Malformed, decode, decoder, encode, encoder
from ottla.protocol.frames import (
    UnsupportedVersion,
    parse_request_header,
    parse_response,
    request_frame,
    response_frame,
)
from ottla.protocol.schema import Request, Response

MAX_SECONDS = 1.0  # frames here are a few kilobytes, so even a busy machine has no excuse
MEMORY_PER_BYTE = 64  # small messages may cost this; what large ones may is shown by the property test
SLACK = 64 << 10


def _check_again(cls: type[Request | Response], version: int, written: bytes) -> None:
    """What was read and written is read again, to the same bytes (objects may differ: NaN equals nothing)."""
    assert b"".join(encode(decode(cls, version, memoryview(written)), version)) == written


def read_request(frame: bytes) -> str:
    """What a broker does with a frame; says how it ended."""
    view = memoryview(frame)
    try:
        header = parse_request_header(view)
        message = decode(APIS[header.api_key].request, header.api_version, view, header.body_start)
    except Malformed:
        return "malformed"
    except UnsupportedVersion:
        return "unsupported"
    again = b"".join(encode(message, header.api_version))
    _check_again(type(message), header.api_version, again)
    return "read"


def read_response(api: Api, version: int, frame: bytes) -> str:
    """What a client does with a frame; says how it ended."""
    try:
        _, message = parse_response(api, version, memoryview(frame))
    except Malformed:
        return "malformed"
    again = b"".join(encode(message, version))
    _check_again(type(message), version, again)
    return "read"


def one_round(rng: Random, outcomes: Counter[str]) -> int:
    """Spoil one request and one response; gives the number of frames tried."""
    api = rng.choice(list(APIS.values()))
    version = rng.randint(api.min_version, api.max_version)
    client_id = rng.choice([None, "", "client", "é" * 100])
    request = random_message(rng, api.request, version)
    sent = b"".join(request_frame(request, version, rng.getrandbits(31), client_id))[4:]
    assert read_request(sent) == "read"
    response = encode(random_message(rng, api.response, version), version)
    answered = b"".join(response_frame(api, version, rng.getrandbits(31), response))[4:]
    assert read_response(api, version, answered) == "read"
    tries = 8
    for _ in range(tries):
        spoiled = rng.randbytes(rng.randrange(200)) if rng.random() < 0.05 else spoil(rng, sent)
        outcomes["request " + _watched(spoiled, partial(read_request, spoiled))] += 1
        spoiled = spoil(rng, answered)
        outcomes["response " + _watched(spoiled, partial(read_response, api, version, spoiled))] += 1
    return 2 * tries


def _watched(frame: bytes, read: Callable[[], str]) -> str:
    """The outcome of `read`, which must not be slow, nor need much memory, nor fail."""
    start = time.perf_counter()
    tracemalloc.reset_peak()
    before = tracemalloc.get_traced_memory()[0]
    try:
        outcome = read()
    except Exception as error:
        raise AssertionError(f"{type(error).__name__} on the frame {frame.hex()}") from error
    peak = tracemalloc.get_traced_memory()[1] - before
    seconds = time.perf_counter() - start
    assert seconds < MAX_SECONDS, f"{seconds:.1f} s on the frame {frame.hex()}"
    assert peak <= MEMORY_PER_BYTE * len(frame) + SLACK, f"{peak} bytes on the frame {frame.hex()}"
    return outcome


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=SystemRandom().getrandbits(32))
    arguments = parser.parse_args()
    print(f"seed {arguments.seed}", flush=True)
    outcomes: Counter[str] = Counter()
    frames = rounds = 0
    deadline = time.monotonic() + arguments.seconds
    for cls, version in declared():
        # Compiled beforehand, for the memory that takes is not what is watched.
        decoder(cls, version)
        encoder(cls, version)
    tracemalloc.start()
    while time.monotonic() < deadline:
        # A round has its own seed, so that one that fails can be run alone.
        seed = arguments.seed + rounds
        try:
            frames += one_round(Random(seed), outcomes)
        except BaseException:
            print(f"failed: --seed {seed}", file=sys.stderr)
            raise
        rounds += 1
    print(f"{frames} frames: {', '.join(f'{count} {name}' for name, count in sorted(outcomes.items()))}")


if __name__ == "__main__":
    main()
