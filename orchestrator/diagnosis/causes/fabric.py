"""What NCCL and RCCL say of RDMA networks and of NVLink between nodes."""

from __future__ import annotations

from orchestrator.diagnosis.cause import Cause

FABRIC = (
    Cause(
        id="nccl.ib_err",
        family="FABRIC",
        role="cause",
        priority=82,
        title="the RDMA network failed (status {st})[ towards {peer}]",
        explanation="A network card gave up on a transfer. 12: no answer (peer ended, link, MTU, GID or flow control); 4: memory of the GPU could not be used (peermem, ACS); 10: not allowed; 13: receiver not ready; 5: told after another error.",
        remedy="With 12 see whether the peer ended first; then `ibstat` and link counters on both nodes; `--env NCCL_IB_DISABLE=1` shows whether sockets work.",
        patterns=(
            r"Got completion (?:from peer (?P<peer>\S{1,60}?)(?:<\d+>)? )?with (?:status|error)[ =](?:\w{1,40}\()?(?P<st>\d{1,5})\b\)?.{0,160}?vendor[ _]?err[ =](?P<ve>\d+)",
            r"status=IBV_WC_\w{1,40}\((?P<st2>\d+)\)",
        ),
        source="NCCL",
        section="rdma-network-failed",
    ),
    Cause(
        id="nccl.ib_async",
        family="FABRIC",
        role="cause",
        priority=84,
        title="a port of the RDMA network failed during the run[: {dev}]",
        explanation="A network card reported an event of its port: the link went down, or its table of addresses changed.",
        remedy="Check cable, transceiver and switch port of that card; `ibstat` shows the state now.",
        patterns=(
            r"NET/IB\s*:\s*(?P<dev>\w{1,24}):\d+ .{0,40}async fatal event|NET/IB ?: Got async event ?: (?:port error|.{0,20}fatal|GID table change)|IBV_EVENT_(?:PORT_ERR|DEVICE_FATAL|QP_FATAL|GID_CHANGE)|NET/IB.{0,60}GID table changed",
        ),
        source="NCCL",
        section="rdma-network-failed",
    ),
    Cause(
        id="nccl.memlock",
        family="LIMITS",
        role="cause",
        priority=86,
        title="the RDMA network cannot register memory",
        explanation="Memory for the network card must be locked in RAM, and the limit of this session (ulimit -l) is too low for that.",
        remedy="Put `* soft memlock unlimited` and `* hard memlock unlimited` into /etc/security/limits.conf of that node and log in anew; `aorta-launch check` shows the limit.",
        patterns=(
            r"Call to ibv_(?:reg_mr|create_cq|create_qp|reg_dmabuf_mr)\w* failed|ibv_reg_mr.{0,60}Cannot allocate memory|[Uu]nable to register memory",
        ),
        source="NCCL",
        section="locked-memory-limit",
    ),
    Cause(
        id="nccl.iommu",
        family="FABRIC",
        role="hint",
        priority=45,
        title="the kernel lacks iommu=pt",
        explanation="RCCL warns at the start; on some AMD machines transfers between GPUs then hang, on others the kernel passes through anyway.",
        remedy="Add iommu=pt to the kernel's command line of that node and reboot.",
        patterns=(r"[Mm]issing \\?\"?iommu=pt",),
        source="RCCL",
        section="settings-of-the-node-for-rdma",
    ),
    Cause(
        id="nccl.numabal",
        family="FABRIC",
        role="hint",
        priority=20,
        title="automatic NUMA balancing is on",
        explanation="Costs speed, breaks nothing.",
        remedy="Run `sudo sysctl kernel.numa_balancing=0` on that node.",
        patterns=(r"NUMA auto balancing",),
        source="RCCL",
        section="settings-of-the-node-for-rdma",
    ),
    Cause(
        id="nccl.imex",
        family="FABRIC",
        role="cause",
        priority=80,
        title="NVLink between nodes is not ready (IMEX)",
        explanation="The service that lets GPUs of several nodes share memory does not run, or runs with other members on some node.",
        remedy="Start nvidia-imex with the same node list on all nodes, or launch with `--env NCCL_MNNVL_ENABLE=0`.",
        patterns=(
            r"(?:WARN|[Ee]rror|ERROR|[Ff]ailed).{0,120}\bIMEX\b|\bIMEX\b.{0,80}(?:not (?:running|configured|available|ready)|fail)|CUDA_ERROR_NOT_PERMITTED.{0,80}fabric|Cuda failure 800 'operation not permitted'",
        ),
        source="NCCL",
        section="nvlink-between-nodes",
    ),
)
