"""When the API server reports each change of a route to those who watch it.

Two watches see it: one of that route alone, and one of its whole kind in all namespaces, as the controllers have. The second
brings each event after all earlier ones of other namespaces. Both run in a process of their own, `watched.py NAMESPACE NAME`,
so that reading the events of others does not delay who measures.
"""

import json
import os
import re
import subprocess
import sys
import threading
import time

from api import Api, wait_for

KIND = "HTTPRoute"
ALONE, WHOLE_KIND = "alone", "whole-kind"
# Lines of other namespaces are long, and are not parsed.
LONGEST_LINE = 16 << 10


class Watched:
    """Follows the host to which the first filter of a route redirects; use as a context."""

    def __init__(self, namespace: str, name: str):
        self._reported: dict[tuple[str, str], float] = {}
        self._program = subprocess.Popen([sys.executable, __file__, namespace, name], stdout=subprocess.PIPE, text=True)
        threading.Thread(target=self._read, daemon=True).start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._program.kill()
        self._program.wait()

    def _read(self) -> None:
        for line in self._program.stdout:
            watch, host, seconds = line.split()
            self._reported.setdefault((watch, host), float(seconds))

    def reported(self, watch: str, host: str) -> float:
        """When this watch brought the redirect to `host`, in seconds of the monotonic clock, which all processes share."""
        return wait_for(f"the watch {watch} reports {host}", lambda: self._reported.get((watch, host)), 20)


def _follow(api: Api, watch: str, namespace: str, name: str) -> None:
    own = re.compile(rf'"name":"{re.escape(name)}","namespace":"{re.escape(namespace)}"'.encode())
    alone = watch == ALONE
    for line in api.watch_lines(KIND, name if alone else "", namespace if alone else ""):
        arrived = time.monotonic()
        if len(line) > LONGEST_LINE or not own.search(line):
            continue
        host = json.loads(line)["object"]["spec"]["rules"][0]["filters"][0]["requestRedirect"]["hostname"]
        # One write, since two threads write.
        os.write(sys.stdout.fileno(), f"{watch} {host} {arrived}\n".encode())


if __name__ == "__main__":
    threads = [threading.Thread(target=_follow, args=(Api(), watch, *sys.argv[1:])) for watch in (ALONE, WHOLE_KIND)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
