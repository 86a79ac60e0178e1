"""What the kernel says of GPUs: NVIDIA's Xid numbers by class, and amdgpu's records."""

from __future__ import annotations

from orchestrator.diagnosis.cause import Cause

APPLICATION = (8, 11, 13, 31, 32, 43, 68, 69, 137)
"""A program did something wrong; the GPU is well."""
MEMORY = (48, 64, 92, 94, 95, 140, 157)
RETIRED = (63, 156, 160, 161)
LINKS = (74, 121, 144, 145, 146, 147, 148, 149, 150)
FIRMWARE = (38, 61, 62, 109, 110, 119, 120, 143, 158)
BUS = (79,)
AFTERWARDS = (45, 154)
"""Told after another one, as its consequence."""
KNOWN = (*APPLICATION, *MEMORY, *RETIRED, *LINKS, *FIRMWARE, *BUS, *AFTERWARDS)


def _xid(numbers: tuple[int, ...], *, others: bool = False) -> str:
    which = "|".join(str(number) for number in numbers)
    number = rf"(?!(?:{which})\b)\d+" if others else which
    return rf"NVRM: Xid \((?:PCI:)?(?P<bdf>[0-9a-fA-F:.]{{7,16}})\): (?P<xid>{number})\b(?:, pid='?(?P<pid>\d+))?"


def _numbers(numbers: tuple[int, ...]) -> str:
    return f"Numbers: {', '.join(str(number) for number in numbers)}."


XID = (
    Cause(
        id="xid.bus",
        family="GPU_HW",
        role="confirm",
        priority=98,
        title="GPU {bdf} has fallen off the bus[ (Xid {xid})]",
        explanation="The driver lost the GPU on PCIe: power, heat, a riser or the GPU itself. " + _numbers(BUS),
        remedy="Leave the node out with `--exclude`, power it off and on, and have the hardware looked at if it comes back.",
        patterns=(_xid(BUS), r"NVRM: GPU (?P<bdf2>[0-9a-fA-F:.]{7,16}): GPU has fallen off the bus"),
        source="NVIDIA driver",
        section="gpu-lost",
    ),
    Cause(
        id="xid.memory",
        family="GPU_HW",
        role="confirm",
        priority=97,
        title="memory error of GPU {bdf} (Xid {xid})",
        explanation="Memory of the GPU could not be corrected (48, 94, 95, 140), errors come too often (92), or no spare row is left (64, 157). "
        + _numbers(MEMORY),
        remedy="Reset the GPU or reboot the node; with 64 and 157, or when it comes back within days, have the GPU replaced.",
        patterns=(_xid(MEMORY),),
        source="NVIDIA driver",
        section="gpu-memory-error",
    ),
    Cause(
        id="xid.retired",
        family="GPU_HW",
        role="confirm",
        priority=45,
        title="GPU {bdf} has taken a bad part out of use (Xid {xid})",
        explanation="The driver replaced a row or a page that had failed; by itself it ends no run, but it says that one happened before. "
        + _numbers(RETIRED),
        remedy="Reset the GPU at the next chance so that the change holds; watch whether it comes again.",
        patterns=(_xid(RETIRED),),
        source="NVIDIA driver",
        section="gpu-memory-error",
    ),
    Cause(
        id="xid.link",
        family="GPU_HW",
        role="confirm",
        priority=96,
        title="link error of GPU {bdf} (Xid {xid})",
        explanation="NVLink or the link to the CPU of the board failed; collectives over it end or hang. "
        + _numbers(LINKS),
        remedy="Reset all GPUs of the node together or reboot it; `nvidia-smi nvlink -e` shows whether errors count up again.",
        patterns=(_xid(LINKS),),
        source="NVIDIA driver",
        section="nvlink-failed",
    ),
    Cause(
        id="xid.firmware",
        family="GPU_HW",
        role="confirm",
        priority=95,
        title="the firmware of GPU {bdf} does not answer (Xid {xid})",
        explanation="A controller inside the GPU stopped; the GPU takes no more work until it is reset. "
        + _numbers(FIRMWARE),
        remedy="Reset the GPU or reboot the node; if it comes again, update the driver, then leave the node out with `--exclude`.",
        patterns=(_xid(FIRMWARE),),
        source="NVIDIA driver",
        section="gpu-hang",
    ),
    Cause(
        id="xid.application",
        family="CODE",
        role="confirm",
        priority=60,
        title="a program used GPU {bdf} wrongly (Xid {xid})",
        explanation="A kernel of the process met an address or an instruction that is not allowed; the GPU itself is most likely well. "
        + _numbers(APPLICATION),
        remedy="Find the kernel with `--env CUDA_LAUNCH_BLOCKING=1`; suspect the GPU only if it is always the same one.",
        patterns=(_xid(APPLICATION),),
        source="NVIDIA driver",
        section="illegal-memory-access-on-the-gpu",
    ),
    Cause(
        id="xid.afterwards",
        family="NOISE",
        role="confirm",
        priority=5,
        title="GPU {bdf} was cleaned up after an end (Xid {xid})",
        explanation="The driver tidies up after a process that ended badly, or tells what the last error needs. "
        + _numbers(AFTERWARDS),
        remedy="Look at the line before it.",
        patterns=(_xid(AFTERWARDS),),
        source="NVIDIA driver",
        section="lines-that-mean-little",
    ),
    Cause(
        id="gpu.xid",
        family="GPU_HW",
        role="confirm",
        priority=40,
        title="the driver reports an error of GPU {bdf} (Xid {xid})",
        explanation="NVIDIA's driver wrote an error record whose number is in none of the classes known here.",
        remedy="Look the number up in NVIDIA's list of Xid errors; reset the GPU if it does not work any more.",
        patterns=(_xid(KNOWN, others=True),),
        source="NVIDIA driver",
        section="other-gpu-error-record",
    ),
    Cause(
        id="amd.ras",
        family="GPU_HW",
        role="confirm",
        priority=95,
        title="uncorrectable hardware error of an AMD GPU[ {bdf}]",
        explanation="The error records of the GPU (RAS) hold an error that could not be repaired, or too many bad pages.",
        remedy="Reboot the node; `amd-smi bad-pages` and `amd-smi metric --ecc` show the state; have the GPU replaced if it comes back.",
        patterns=(
            r"amdgpu(?: (?P<bdf>[0-9a-fA-F]{4}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.\d))?.{0,120}(?:uncorrectable hardware error|RAS poison|[Bb]ad page(?:s)? (?:threshold|over)|poison (?:is )?(?:consumed|consumption)|ERREVENT_ATHUB)",
        ),
        source="amdgpu driver",
        section="gpu-memory-error",
    ),
    Cause(
        id="amd.reset",
        family="GPU_HW",
        role="confirm",
        priority=90,
        title="an AMD GPU[ {bdf}] hung and was reset",
        explanation="A queue of the GPU made no progress and the driver reset it; all that ran there is lost.",
        remedy="Reboot the node if the reset failed; leave the node out with `--exclude` when the same GPU does it again.",
        patterns=(
            r"amdgpu(?: (?P<bdf>[0-9a-fA-F]{4}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.\d))?.{0,120}(?:ring \S{1,40} timeout|GPU reset (?:begin|failed)|device lost from bus|GPU recovery disabled|[Ff]ailed to (?:evict|suspend) (?:queue|process))",
        ),
        source="amdgpu driver",
        section="gpu-hang",
    ),
    Cause(
        id="amd.page_fault",
        family="CODE",
        role="confirm",
        priority=60,
        title="a program used an AMD GPU[ {bdf}] wrongly",
        explanation="A kernel met an address that is not mapped; the GPU itself is most likely well.",
        remedy="Launch with `--env AMD_SERIALIZE_KERNEL=3` to find the kernel.",
        patterns=(
            r"amdgpu(?: (?P<bdf>[0-9a-fA-F]{4}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.\d))?.{0,120}(?:retry|no-retry|VM) ?page fault(?:.{0,160}?pid (?P<pid>\d+))?",
        ),
        source="amdgpu driver",
        section="memory-access-fault-by-gpu",
    ),
)
