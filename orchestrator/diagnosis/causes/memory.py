"""What is said when the memory of a node, of a cgroup or of /dev/shm is used up."""

from __future__ import annotations

from orchestrator.diagnosis.cause import Cause
from orchestrator.diagnosis.causes.words import RAISED

_LESS = "Lower dataloader.num_workers and what each rank keeps in memory"

MEMORY = (
    Cause(
        id="host.oomk",
        family="OOM_HOST",
        role="confirm",
        priority=99,
        title="out of memory: the kernel killed {comm} (pid {pid})[, {rss} kB in memory]",
        explanation="The memory of the node, or of the cgroup that the process belongs to, was used up, and the kernel chose this process.",
        remedy=_LESS + " (data, pinned buffers, CPU offload); or raise the limit of the cgroup or add memory.",
        patterns=(
            r"(?:Memory cgroup out of memory|Out of memory): Killed process (?P<pid>\d+) \((?P<comm>[^)]{1,40})\)(?:.{0,80}? anon-rss:(?P<rss>\d+)kB)?",
            r"Memory cgroup out of memory: Kill process (?P<pid2>\d+) \((?P<comm2>[^)]{1,40})\) score|Out of memory: Kill process (?P<pid3>\d+) \((?P<comm3>[^)]{1,40})\) score",
        ),
        source="a run of ours, Linux",
        section="out-of-memory-on-the-host",
    ),
    Cause(
        id="host.oom_cons",
        family="OOM_HOST",
        role="confirm",
        priority=80,
        title="out of memory ({c})[: {task} was chosen]",
        explanation="CONSTRAINT_MEMCG means that a cgroup's own limit was reached, CONSTRAINT_NONE that the whole machine was full.",
        remedy="With a cgroup: raise its memory.max. Otherwise: " + _LESS[0].lower() + _LESS[1:] + ".",
        patterns=(r"oom-kill:constraint=(?P<c>\w+)(?:.{0,400}?,task=(?P<task>[^,]{1,40}),pid=(?P<pid>\d+))?",),
        source="a run of ours, Linux",
        section="out-of-memory-on-the-host",
    ),
    Cause(
        id="host.oomd",
        family="OOM_HOST",
        role="confirm",
        priority=95,
        title="a memory watchdog of the node killed {what}",
        explanation="systemd-oomd or earlyoom ends processes before the kernel has to; the kernel log then says nothing.",
        remedy=_LESS + ", or exempt the user's slice (ManagedOOMPreference=omit; for earlyoom --avoid).",
        patterns=(
            r"systemd-oomd(?:\[\d+\])?: (?:Killed|Marked) (?P<what>\S{1,200})|Killed (?P<what2>/\S{1,200}) due to memory (?:used|pressure)",
            r"earlyoom(?:\[\d+\])?: sending SIG(?:TERM|KILL) to process (?P<pid>\d+) (?:uid \d+ )?\"(?P<what3>[^\"]{1,60})\"",
        ),
        source="systemd, earlyoom",
        section="out-of-memory-on-the-host",
    ),
    Cause(
        id="host.alloc",
        family="OOM_HOST",
        role="cause",
        priority=85,
        title="out of memory on the host[: {wanted} bytes wanted]",
        explanation="The node refused memory to the process: it is full, or a limit (ulimit -v, overcommit, cgroup) is reached.",
        remedy=_LESS + "; look at `free -m` and `ulimit -v` on that node.",
        patterns=(
            r"DefaultCPUAllocator: (?:can't allocate memory|not enough memory)(?:: you tried to allocate (?P<wanted>\d+) bytes)?",
            r"\bstd::bad_alloc\b",
            RAISED + r"(?:numpy\.\w+\.)?(?:_Array)?MemoryError\b",
            r"\[Errno 12\] Cannot allocate memory|fork: Cannot allocate memory|terminate called .{0,40}bad_alloc",
        ),
        source="torch, glibc",
        section="out-of-memory-on-the-host",
    ),
    Cause(
        id="host.pinned",
        family="OOM_HOST",
        role="cause",
        priority=86,
        title="no pinned memory left on the host",
        explanation="Memory that the GPU reads directly must stay in RAM; the node has no more of it to give.",
        remedy="Set pin_memory: false or lower dataloader.num_workers and the prefetch; check `ulimit -l`.",
        patterns=(r"cudaHostAlloc\b.{0,80}(?:failed|out of memory)|Failed to allocate pinned memory",),
        source="torch",
        section="out-of-memory-on-the-host",
    ),
    Cause(
        id="host.killed_line",
        family="KILLED",
        role="hint",
        priority=40,
        title="a process was killed (SIGKILL)",
        explanation="A shell reports that its child got SIGKILL; whether memory ran out or somebody sent it, the kernel log decides.",
        remedy='Look at `dmesg` on that node for "Killed process"; without such a line a person or another program sent the signal.',
        patterns=(
            r"^\s{0,8}(?:\S{1,200}: line \d{1,6}:\s{1,8})?(?P<pid>\d{1,8})?\s{0,8}Killed\s{0,60}(?:$|\(|\w*python|torchrun|\S*/)",
        ),
        source="a run of ours",
        section="killed-by-sigkill",
    ),
    Cause(
        id="shm.full",
        family="SHM",
        role="cause",
        priority=95,
        title="shared memory (/dev/shm) is full",
        explanation="Data-loader workers hand batches over in shared memory, and the node (often a container with 64 MiB) has no room left there.",
        remedy="Enlarge it: `sudo mount -o remount,size=16G /dev/shm` (Docker: --shm-size=16g), or lower dataloader.num_workers.",
        patterns=(
            r"unable to (?:allocate|mmap|write|resize).{0,60}shared memory|It is possible that dataloader's workers are out of shared memory",
            r"unable to write to file </torch_\w{1,60}>|shm_open: No space left|torch_shm_manager.{0,80}(?:error|failed)",
            r"DataLoader worker \(pid\(?s?\)? ?[\d, ]+\) is killed by signal: Bus error",
        ),
        source="a run of ours, torch",
        section="shared-memory-is-full",
    ),
    Cause(
        id="shm.manager",
        family="SHM",
        role="cause",
        priority=80,
        title="shared memory between processes of a rank failed",
        explanation="A tensor could not be handed from a worker to its rank; the worker is gone, or a file of the hand-over was deleted.",
        remedy="Look for a dead worker just before; in sessions that end, set RemoveIPC=no in /etc/systemd/logind.conf.",
        patterns=(
            r"unable to open shared memory object </\S{1,80}> in read-(?:write|only) mode|could not unlink the shared memory file|received \d+ items of ancdata",
        ),
        source="torch",
        section="shared-memory-hand-over-failed",
    ),
)
