"""Program: the plan that every strategy emits and every device runs.

A Program is a plan: buffers, sources, and steps over them. It knows nothing of the device that will run it, and a
strategy knows nothing but Programs. The unfused reference is a Program over the same buffers (same names, same
fills), which is why building, checking and timing are written once.

Meaning of a plan
- Before a run, every buffer holds what its `fill` says (drawn from the run's seed and the buffer's *name*, so that two
  programs with a buffer of one name see the same data); `output` and `scratch` buffers hold poison instead. Buffers
  with `reset="each_run"` and role `inout` are restored before every sample, outside the timed span.
- Steps of one stream run in the order in which they are listed; `after` names steps (of any stream, listed earlier)
  that must have ended before this one begins. Nothing else orders two streams.
- The timed span goes from the first to the end of the last `counted` step. What is not counted between them is left
  out where all steps are on one stream.
- Numbers may be Extents (`fusiond.model.language.extents`): they stand for the Program's `sizes`, and `at` gives the
same
  Program at others. Nothing that runs a Program needs to know.
- A seam is where a program of the user's has a library do something; a device runs the plain step in its place, or
  takes what it would give from the fills.

Only the standard library is imported here: a bundle must run where nothing can be installed.
"""

from fusiond.model.program.buffers import (
    EQUAL,
    FILL_KINDS,
    Buffer,
    Compare,
    Fill,
    Memory,
    Role,
    Source,
    SourceKind,
    SourceLanguage,
    default_compare,
)
from fusiond.model.program.decoding import decode
from fusiond.model.program.encoding import PLAN_VERSION, encode, to_text
from fusiond.model.program.invariants import problems
from fusiond.model.program.program import (
    Program,
    Seam,
    SizeError,
    blocking_steps,
    home_bytes,
    homes,
    host_steps,
    pooled_frees,
    replace_sources,
    settled,
    sized,
    unsized,
)
from fusiond.model.program.steps import (
    Alloc,
    Argument,
    Bytes,
    Copy,
    CopyBatch,
    Dim3,
    FillStep,
    Free,
    HostCall,
    Launch,
    Pointer,
    Prefetch,
    Scalar,
    Step,
    pitches,
)

__all__ = [
    "EQUAL", "FILL_KINDS", "PLAN_VERSION", "Alloc", "Argument", "Buffer", "Bytes", "Compare", "Copy", "CopyBatch",
    "Dim3", "Fill", "FillStep", "Free", "HostCall", "Launch", "Memory", "Pointer", "Prefetch", "Program", "Role",
    "Scalar", "Seam", "SizeError", "Source", "SourceKind", "SourceLanguage", "Step", "blocking_steps", "decode",
    "default_compare", "encode", "home_bytes", "homes", "host_steps", "pitches", "pooled_frees", "problems",
    "replace_sources", "settled", "sized", "to_text", "unsized",
]  # fmt: skip
