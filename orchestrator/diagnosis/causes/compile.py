"""What compilers say at run time: torch.compile, Triton, and extensions that are built on the node."""

from __future__ import annotations

from orchestrator.diagnosis.cause import Cause
from orchestrator.diagnosis.causes.words import RAISED

COMPILE = (
    Cause(
        id="compile.no_compiler",
        family="ENV",
        role="cause",
        priority=86,
        title="the node has no C or C++ compiler[: {what}]",
        explanation="torch.compile, Triton and extensions build code on the node when they are first used.",
        remedy="Install gcc and g++ on that node (`sudo apt-get install -y build-essential`); require_commands: [gcc, g++] finds it before a launch.",
        patterns=(
            r"Failed to find C compiler|InvalidCxxCompiler|No working C\+\+ compiler found|Ninja is required to load C\+\+ extensions|command '(?P<what>[\w./+-]{1,80})' failed: No such file or directory|Could not find (?P<what2>nvcc|gcc|g\+\+|hipcc)\b",
        ),
        source="torch, triton",
        section="no-compiler-on-the-node",
    ),
    Cause(
        id="compile.headers",
        family="ENV",
        role="cause",
        priority=85,
        title="a file that the compiler needs is missing: {what}",
        explanation="Headers of Python or a library to link against are not installed on this node.",
        remedy="Install python3-dev for Python.h, and the driver's development files for -lcuda.",
        patterns=(
            r"fatal error: (?P<what>[\w./+-]{1,100}\.(?:h|hpp|cuh)): No such file or directory|(?:/usr/bin/)?ld: cannot find (?P<what2>-l\w{1,40})",
        ),
        source="gcc",
        section="no-compiler-on-the-node",
    ),
    Cause(
        id="compile.cuda_home",
        family="ENV",
        role="cause",
        priority=84,
        title="the CUDA toolkit is missing or of another version",
        explanation="An extension is built with nvcc, and it is not there or does not fit torch's CUDA.",
        remedy="Install the toolkit of torch's CUDA version, set CUDA_HOME, or install a ready-made build of the extension.",
        patterns=(
            r"CUDA_HOME environment variable is not set|detected CUDA version \([\d.]+\) (?:mismatches|that mismatches)|CUDA_HOME does not exist|ROCM_HOME environment variable is not set",
        ),
        source="torch",
        section="cuda-toolkit-missing",
    ),
    Cause(
        id="compile.extension",
        family="ENV",
        role="cause",
        priority=83,
        title="an extension could not be built[: {what}]",
        explanation="Code that is compiled at the start of the script failed to compile on this node.",
        remedy="Read the first compiler error above; build it once per node before the run. If several ranks build at once, let one go first.",
        patterns=(
            r"Error building extension '(?P<what>\w{1,80})'|ninja: build stopped|subprocess\.CalledProcessError: Command '\['ninja'",
        ),
        source="torch",
        section="extension-cannot-be-built",
    ),
    Cause(
        id="compile.inductor",
        family="CODE",
        role="cause",
        priority=65,
        title="torch.compile failed: {what}",
        explanation="The compiler could not turn the model into kernels, or its own tools failed on the node.",
        remedy="Switch the compile section of the config off to go on; `--env TORCHDYNAMO_VERBOSE=1` shows what it stumbled over; clear /tmp/torchinductor_USER on that node.",
        patterns=(
            RAISED
            + r"(?P<what>BackendCompilerFailed|InductorError|LoweringException|CppCompileError|TritonMissing|FailOnRecompileLimitHit|TorchRuntimeError|InternalTorchDynamoError|UserError)\b",
            RAISED
            + r"(?P<what2>Unsupported: .{1,120})|torch\._dynamo\.exc\.(?P<what3>\w{1,60})|torch\._inductor\.exc\.(?P<what4>\w{1,60})|Cannot find a working triton installation",
        ),
        source="torch",
        section="torch-compile-failed",
    ),
    Cause(
        id="compile.triton_resources",
        family="CODE",
        role="cause",
        priority=67,
        title="a Triton kernel needs more than this GPU has: {what}",
        explanation="The kernel's blocks are too large for the shared memory or registers of this type of GPU.",
        remedy="Use smaller blocks or fewer stages; an older GPU among newer ones needs settings of its own.",
        patterns=(
            r"OutOfResources: (?:.{0,20}?out of resources?: )?(?P<what>.{1,160})|out of resource: (?P<what2>.{1,120})",
        ),
        source="triton",
        section="triton-kernel-too-large",
    ),
    Cause(
        id="compile.triton",
        family="CODE",
        role="cause",
        priority=66,
        title="a Triton kernel cannot be compiled[: {what}]",
        explanation="Triton refused the kernel's source, or its assembler (ptxas) failed.",
        remedy="Read the line that the message points to; compare triton's version with the one that torch wants.",
        patterns=(
            r"triton\.compiler\.errors\.\w+|triton\.\w{1,40}\.(?:errors\.)?(?:CompilationError|CompileTimeAssertionFailure)|ptxas (?:fatal|error)\s*:? ?(?P<what>.{0,120})|PTXASError|`ptxas` failed|Triton Error \[(?:CUDA|HIP)\]: (?P<what2>(?!an illegal).{1,80})",
        ),
        source="triton",
        section="triton-kernel-cannot-be-compiled",
    ),
)
