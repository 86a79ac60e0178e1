"""The catalogue of causes against what the torch and the Python of this machine really say."""

from __future__ import annotations

import traceback
from pathlib import Path

import pytest
from failures_page import RANKS

from orchestrator.diagnosis.logs.scan import scan_text

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
pytestmark = pytest.mark.torch

SAYS = [
    ("train.shape", "torch.zeros(32, 768) @ torch.zeros(512, 1024)"),
    ("train.shape", "torch.zeros(3) + torch.zeros(4)"),
    ("train.shape", "torch.zeros(3).view(2, 2)"),
    ("train.shape", "torch.nn.Conv2d(3, 4, 3)(torch.zeros(1, 5, 9, 9))"),
    ("train.shape", "torch.nn.functional.cross_entropy(torch.zeros(4, 3), torch.zeros(5, dtype=torch.long))"),
    ("train.shape", "torch.cat([torch.zeros(2, 3), torch.zeros(2, 4)])"),
    ("train.dtype", "torch.zeros(2, 2) @ torch.zeros(2, 2, dtype=torch.bfloat16)"),
    ("train.dtype", "torch.nn.Linear(2, 2)(torch.zeros(2, 2, dtype=torch.float64))"),
    ("train.dtype", "torch.nn.Conv1d(1, 1, 1)(torch.zeros(1, 1, 4, dtype=torch.bfloat16))"),
    ("train.embedding", "torch.nn.Embedding(4, 2)(torch.tensor([7]))"),
    ("train.embedding", "torch.nn.functional.nll_loss(torch.zeros(2, 3), torch.tensor([1, 9]))"),
    ("train.inplace", "x = torch.ones(3, requires_grad=True); y = x.exp(); y += 1; y.sum().backward()"),
    ("train.inplace", "x = torch.ones(3, requires_grad=True); x += 1"),
    ("train.backward", "x = torch.ones(3, requires_grad=True); y = (x * x).sum(); y.backward(); y.backward()"),
    ("train.backward", "torch.ones(1).backward()"),
    ("train.backward", "(torch.ones(3, requires_grad=True) * 2).backward()"),
    ("nan.stop", "torch.multinomial(torch.tensor([float('nan'), 1.0]), 1)"),
    ("host.alloc", "torch.empty(1 << 55)"),
    ("host.alloc", "bytearray(1 << 55)"),
    ("data.collate", "list(torch.utils.data.DataLoader([torch.zeros(2), torch.zeros(3)], batch_size=2))"),
    ("data.collate", "list(torch.utils.data.DataLoader([None, None], batch_size=2))"),
    ("data.empty", "torch.utils.data.DataLoader([], shuffle=True)"),
    ("ckpt.keys", "torch.nn.Linear(2, 3).load_state_dict(torch.nn.Linear(3, 3).state_dict())"),
    (
        "ckpt.corrupt",
        "torch.save(torch.zeros(100000), path); path.write_bytes(path.read_bytes()[:200000]); torch.load(path)",
    ),
    ("ckpt.weights_only", "torch.save(Path, path); torch.load(path)"),
    ("ckpt.none", "torch.load('/nowhere/step_1.pt')"),
    ("c10d.uninit", "torch.distributed.all_reduce(torch.zeros(1))"),
    ("rdzv.eaddrinuse", "torch.distributed.TCPStore('127.0.0.1', port, 1, True)"),
    ("py.pickle", "__import__('pickle').dumps(lambda: 0)"),
    ("py.json", "__import__('json').loads('')"),
    ("py.json", "__import__('yaml').safe_load('a: b: c')"),
    ("py.recursion", "f = lambda: g['f'](); g = {'f': f}; f.__globals__['g'] = g; f()"),
    ("py.unicode", "b'\\xe4'.decode()"),
    ("env.module", "import no_such_module"),
    ("env.import_name", "from torch import no_such_name"),
    ("env.lib_missing", "__import__('ctypes').CDLL('libnosuch.so.7')"),
    ("data.missing", "open('/nowhere/labels.csv')"),
    ("disk.enospc", "open('/dev/full', 'w').write('x' * 100000)"),
    ("py.syntax", "exec('def f(:')"),
]
BESIDE = [
    ("ckpt.short", "path.write_bytes(b''); torch.load(path)"),
    ("ckpt.short", "path.write_bytes(b'hello, no checkpoint'); torch.load(path)"),
]
"""What torch says by the way only: its last word is an exception that could mean anything."""


def play(code: str, folder: Path) -> str:
    store = torch.distributed.TCPStore("127.0.0.1", 0, 1, True, wait_for_workers=False)
    try:
        exec(code, {"torch": torch, "Path": Path, "path": folder / "step.pt", "port": store.port})
    except Exception:
        return traceback.format_exc()
    pytest.fail(f"nothing was raised by {code}")


@pytest.mark.parametrize(("cause", "code"), SAYS)
def test_what_is_really_raised_is_known(cause: str, code: str, tmp_path: Path) -> None:
    text = play(code, tmp_path)
    hits = sorted(scan_text(text), key=lambda hit: (RANKS[hit.cause.role], -hit.cause.priority))
    assert hits, text
    assert hits[0].cause.id == cause, text


@pytest.mark.parametrize(("cause", "code"), BESIDE)
def test_a_file_that_is_no_checkpoint_is_told_by_the_way(cause: str, code: str, tmp_path: Path) -> None:
    hits = scan_text(play(code, tmp_path))
    assert cause in {hit.cause.id for hit in hits if hit.cause.role == "hint"}
    # Nothing but the bare exception speaks against it.
    assert all(hit.cause.priority < 10 for hit in hits if hit.cause.role == "cause")
