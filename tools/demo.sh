#!/bin/sh
# The main job from end to end, in a folder of its own: a daemon, a job, its progress, the answer.
set -eu
cd "$(dirname "$0")/.."
FUSIOND_DB=$PWD/demo/fusiond.sqlite
export FUSIOND_DB
mkdir -p demo

show() { printf '\n$ %s\n' "$*"; "$@"; }

fusiond serve >demo/daemon.log 2>&1 &
daemon=$!
trap 'kill $daemon 2>/dev/null; wait $daemon 2>/dev/null || true' EXIT INT TERM
for _ in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do
    fusiond jobs --json >/dev/null 2>&1 && grep -q " serving " demo/daemon.log && break
    kill -0 $daemon 2>/dev/null || { cat demo/daemon.log >&2; exit 1; }
    sleep 0.5
done

show fusiond submit configs/jobs/hist-maxpool.yaml --wait
show fusiond best --pair hist,maxpool
