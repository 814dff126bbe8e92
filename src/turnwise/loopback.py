"""Addresses of this machine, which no proxy can reach."""

import os

_HERE = ("127.0.0.1", "localhost")


def spare_loopback() -> None:
    """Tell the clients of this process, and of programs that it starts, to ask servers on this machine directly.

    Where the environment names a proxy, most send it even those calls, unless they are told so.
    """
    for name, other in (("no_proxy", "NO_PROXY"), ("NO_PROXY", "no_proxy")):
        spared = [host.strip() for host in (os.environ.get(name) or os.environ.get(other, "")).split(",")]
        if "*" not in spared:
            os.environ[name] = ",".join(dict.fromkeys([*filter(None, spared), *_HERE]))
