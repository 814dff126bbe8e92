"""Servers on this machine are asked directly, whatever proxy the environment names."""

import os
import urllib.request

import pytest

from turnwise.loopback import spare_loopback


@pytest.mark.parametrize(
    ("lower", "upper", "spared"),
    [
        (None, None, "127.0.0.1,localhost"),
        ("intern.example", None, "intern.example,127.0.0.1,localhost"),
        (None, "a.example, localhost", "a.example,localhost,127.0.0.1"),
        ("*", "*", "*"),
    ],
)
def test_this_machine_is_added_to_what_is_spared(monkeypatch, lower, upper, spared):
    monkeypatch.setenv("http_proxy", "http://proxy.example:3128")
    for name, value in (("no_proxy", lower), ("NO_PROXY", upper)):
        monkeypatch.setenv(name, "")
        if value is None:
            monkeypatch.delenv(name)
        else:
            monkeypatch.setenv(name, value)
    for _ in range(2):  # the second time nothing changes
        spare_loopback()
        assert (urllib.request.getproxies()["no"], os.environ["NO_PROXY"]) == (spared, spared)
        assert urllib.request.proxy_bypass("127.0.0.1:8000") and urllib.request.proxy_bypass("localhost")
