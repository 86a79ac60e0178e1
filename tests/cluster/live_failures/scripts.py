"""What the scripts of several rows begin with."""

from __future__ import annotations

HEAD = """
import os, sys, time
RANK = int(os.environ["RANK"])
OUT = os.environ["AORTA_OUTPUT_DIR"]

def wait_for_go():
    print("ready", flush=True)
    while not os.path.exists(OUT + "/go"):
        time.sleep(0.02)

def work_on():
    for step in range(6000):
        time.sleep(0.1)

"""
"""Plain ranks: they say when they are ready, go on once the test says so, and have work for ten minutes."""

GLOO = """
import datetime, os, sys, time
import torch
import torch.distributed as dist
RANK = int(os.environ["RANK"])
WORLD = int(os.environ["WORLD_SIZE"])
OUT = os.environ["AORTA_OUTPUT_DIR"]

def join(seconds=8, backend="gloo", together=60):
    # On a busy machine ranks may come to the group far apart.
    dist.init_process_group(backend, timeout=datetime.timedelta(seconds=together))
    dist.barrier()
    dist.distributed_c10d._set_pg_timeout(datetime.timedelta(seconds=seconds))
    print("ready", flush=True)

def wait_for_go():
    while not os.path.exists(OUT + "/go"):
        time.sleep(0.02)

"""
"""Ranks of a process group whose collectives have a time-out of a few seconds."""
