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
printf '\n$ fusiond plan %s --count --svg demo/softmax.svg --json >demo/softmax.json\n' $job
fusiond plan $job --count --svg demo/softmax.svg --json >demo/softmax.json
show fusiond best $job
cat <<'END'

What happened: a softmax, as JAX hands it to XLA, is four kernels by XLA's rules. fusiond wrote others that do it in
fewer, checked each of them on the processor against the unfused one, and counted what an H100 would have to do: bytes
from and to its memory, instructions, and the shortest time in which they can be done. `promising` says that trying the
fused one on a GPU is worth it; nothing was measured. On a machine with a GPU, `device: cuda` in the job measures it.
demo/softmax.svg shows each kernel below the roof of what an H100 can do, demo/softmax.json all that was counted.
END
