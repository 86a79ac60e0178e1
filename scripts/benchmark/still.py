"""A rank that does nothing until FOLDER has `done`. Word: FOLDER, in which it says that it is up."""

import os
import sys
import time

folder = sys.argv[1]
with open(os.path.join(folder, os.environ["RANK"] + ".up"), "w"):  # noqa: PTH118, PTH123 - small, because of many
    pass
while not os.path.exists(os.path.join(folder, "done")):  # noqa: PTH110, PTH118
    time.sleep(1)
