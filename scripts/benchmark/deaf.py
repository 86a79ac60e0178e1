"""A rank that hears no TERM. Word: FOLDER, in which it says that it is up."""

import os
import signal
import sys
import time

for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
    signal.signal(number, signal.SIG_IGN)
with open(os.path.join(sys.argv[1], os.environ["RANK"] + ".up"), "w"):  # noqa: PTH118, PTH123 - small, because of many
    pass
time.sleep(600)
