#!/bin/sh
# The main job from end to end: a daemon, a job, its progress, the answer. The answer goes into the user's own store, where
# the next `fusiond best` finds it; a daemon that serves it already is used as it is.
set -eu
cd "$(dirname "$0")/.."
mkdir -p demo

show() { printf '\n$ %s\n' "$*"; "$@"; }

: >demo/daemon.log  # now, not when the daemon has started: the last one's log says that it serves
fusiond serve >>demo/daemon.log 2>&1 &
daemon=$!
trap 'kill $daemon 2>/dev/null; wait $daemon 2>/dev/null || true' EXIT INT TERM
for _ in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do
    grep -q " serving " demo/daemon.log && break
    if ! kill -0 $daemon 2>/dev/null; then
        grep -q "already" demo/daemon.log && break  # another daemon serves this store
        cat demo/daemon.log >&2
        exit 1
    fi
    sleep 0.5
done

job=configs/jobs/softmax-h100.yaml
show fusiond submit $job --wait
show fusiond plan $job --count --svg demo/softmax.svg --json >demo/softmax.json
show fusiond best $job
cat <<'END'

What happened: a softmax, written as XLA gets it from JAX, is four kernels when each instruction is compiled by XLA's
rules. fusiond wrote kernels that do it in fewer, checked each on the processor against the unfused ones, and counted what
an H100 would have to do for them: the bytes that must come from its memory, the instructions, the shortest time in which
that can be done. `promising` means that the fused one must move or do so much less that trying it on a GPU is worth it;
nothing was measured, and on a GPU the same command measures. demo/softmax.svg shows each kernel below the roof of what an
H100 can do, demo/softmax.json all that was counted.
END
