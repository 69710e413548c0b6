#!/usr/bin/env bash
# Everything that needs a card, in under ten minutes: tests, load gate, peers, roofline, one diagnosis.
#     scripts/gpu_check.sh                    results to benchmarks/results/
#     OUT=folder scripts/gpu_check.sh         results to that folder
#     WHEELS=folder scripts/gpu_check.sh      first install the wheels in it, without a network
# Steps run one by one, each with its own time limit: a failure loses no other step. The exit code is 1 if one failed.
# Without a card it says so and exits 0. Not yet run on a card.
set -u
ROOT=$(cd "$(dirname "$0")/.." && pwd)
cd "$ROOT" || exit 2
PY=${PYTHON:-$([ -x .venv/bin/python ] && echo "$ROOT/.venv/bin/python" || echo python3)}

if ! "$PY" -c 'import sys, torch; sys.exit(not torch.cuda.is_available())' 2>/dev/null; then
    echo "gpu_check: torch finds no CUDA card here; nothing was run and nothing is claimed"
    exit 0
fi

WORK=$(mktemp -d)
trap 'rm -rf "$WORK"' EXIT
RESULTS=${OUT:-$ROOT/benchmarks/results}
LOG=${OUT:-$ROOT/build/gpu_check}/gpu_check.log
mkdir -p "$RESULTS" "$(dirname "$LOG")" build/benchmarks
: >"$LOG"
export HF_HUB_OFFLINE=1 PYTHONUNBUFFERED=1 PYTHONPATH=${PYTHONPATH:-} TRITON_INTERPRET=0

if [ -n "${WHEELS:-}" ]; then
    "$PY" -m pip install --quiet --no-index --no-deps --no-compile --target "$WORK/site" "$WHEELS"/*.whl || exit 2
    PYTHONPATH=$WORK/site:$PYTHONPATH
fi
# The top-level folders are parts of the package. Where it is not installed, a tree of links stands for it.
if ! "$PY" -P -c 'import inferdoc.probes' 2>/dev/null; then
    mkdir "$WORK/tree"
    cp -rs "$ROOT/inferdoc" "$WORK/tree/"
    cp -rs "$ROOT/probes" "$ROOT/rules" "$ROOT/reports" "$WORK/tree/inferdoc/"
    PYTHONPATH=$WORK/tree:$PYTHONPATH
fi

NAMES=() STATES=() SECONDS_TAKEN=()
step() { # name, time limit in seconds, command
    local name=$1 limit=$2 start=$SECONDS code
    shift 2
    echo "== $name (at most $limit s)" | tee -a "$LOG"
    timeout --kill-after=5 "$limit" "$@" 2>&1 | tee -a "$LOG" | tail -n 40
    code=${PIPESTATUS[0]}
    NAMES+=("$name")
    SECONDS_TAKEN+=($((SECONDS - start)))
    case $code in
        0) STATES+=(passed) ;;
        124 | 137) STATES+=("out of time") ;;
        *) STATES+=("failed ($code)") ;;
    esac
}

diagnose() {
    # Relative paths, because the evidence quotes them; the name says whether the trace was recorded.
    local folder=build/gpu_check slice=traces/mooncake/mooncake_trace.slice56.jsonl trace= found
    mkdir -p "$folder"
    for found in shared ../shared; do
        [ -f "$found/$slice" ] && trace=$folder/mooncake_slice56.jsonl && cp "$found/$slice" "$trace" && break
    done
    [ -n "$trace" ] || { trace=$folder/synthetic.jsonl && "$PY" -c '
import json, random
draw = random.Random(0)
for i in range(56):
    shared, own = draw.choice([0, 1, 3]), draw.randint(1, 12)
    hashes = list(range(shared)) + [1000 + 100 * i + j for j in range(own)]
    length = 512 * len(hashes) - draw.randint(0, 511)
    print(json.dumps({"timestamp": 400 * i, "input_length": length, "output_length": draw.randint(30, 600), "hash_ids": hashes}))
' >"$trace"; }
    "$PY" benchmarks/shapes.py llama-8b >"$folder/config.json" || return 1
    rm -rf "$folder/diagnosis"
    timeout 140 "$PY" -P -m inferdoc diagnose --device cuda --model "$folder/config.json" --load-format dummy \
        --trace "$trace" --length-scale 1/4 --max-model-len 8192 --budget 115s --output "$folder/diagnosis"
    local code=$?
    [ -f "$folder/diagnosis/evidence.json" ] && cp "$folder/diagnosis/evidence.json" "$RESULTS/diagnose_cuda.json"
    return $code
}
export -f diagnose
export PY RESULTS

# The kernels' tests compile most and come last.
step tests 120 "$PY" -P -m pytest tests/gpu/test_memory_and_device.py tests/gpu/test_graphs.py \
    tests/gpu/test_compression_and_drafts.py tests/gpu/test_kernels.py \
    -v --maxfail=20 -p no:cacheprovider
step gate 60 "$PY" benchmarks/gate_on_card.py --output "$RESULTS/gate_cuda.json"
step peers 130 "$PY" benchmarks/engine_vs_peers.py --work cuda --peers transformers-continuous \
    --limit 110 --output "$RESULTS/engine_vs_peers_cuda.json"
step roofline 120 "$PY" benchmarks/roofline.py --no-job --limit 100 --output "$RESULTS/roofline.json"
step diagnose 150 bash -c diagnose
# No bar is about it, so it runs where time is left, and only the log has its result.
if [ "$SECONDS" -lt 460 ]; then
    step static 110 "$PY" benchmarks/engine_vs_peers.py --work cuda --peers transformers-static --rounds 2 --limit 90
fi

echo "== summary" | tee -a "$LOG"
for i in "${!NAMES[@]}"; do
    printf '%-10s %-14s %4d s\n' "${NAMES[i]}" "${STATES[i]}" "${SECONDS_TAKEN[i]}"
done | tee -a "$LOG"
for state in "${STATES[@]}"; do
    [ "$state" = passed ] || exit 1
done
