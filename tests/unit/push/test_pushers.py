"""A server without push subscriptions pays nothing for push."""

from __future__ import annotations

import subprocess
import sys


def test_nothing_of_http_is_loaded_before_there_is_something_to_push() -> None:
    code = "import sys, pubsubd.push.pushers; print({'aiohttp', 'jwt', 'cryptography'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)

    assert done.stdout == "set()\n", done.stdout + done.stderr
