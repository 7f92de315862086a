"""Ottla: a Kafka you can pip install.

`ottla.Producer`, `ottla.Consumer` and `ottla.Admin` are the clients of `ottla.client`. They are imported on
first use: the broker and the command line do not pay for them, and they need the `client` extra.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ottla.client import Admin, Consumer, Producer

__version__ = "0.1.0"
__all__ = ["Admin", "Consumer", "Producer", "__version__"]

_CLIENTS = frozenset({"Admin", "Consumer", "Producer"})


def __getattr__(name: str) -> object:
    if name in _CLIENTS:
        import ottla.client

        return getattr(ottla.client, name)
    raise AttributeError(f"module 'ottla' has no attribute {name!r}")
