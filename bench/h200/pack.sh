#!/usr/bin/env bash
# What a machine with a GPU and without Go needs for engine.sh, in one folder; parcel.sh carries it there.
#
#   bench/h200/pack.sh FOLDER [SmolLM2-135M-Instruct.Q4_1.gguf]
#
# FOLDER gets `cotenant`, the test binaries of the packages that use a GPU, `build.json`, which says what they were built from, and
# `smollm2.gguf`.
set -euo pipefail
folder=$(readlink -m "${1:?a folder for what is packed}")
model=${2:-}
mkdir -p "$folder"
[ -z "$model" ] || cp "$model" "$folder/smollm2.gguf"
cd "$(dirname "$0")/../.."
export CGO_ENABLED=0
go build -trimpath -o "$folder/cotenant" ./cmd/cotenant
go test -c -trimpath -o "$folder/kernels.test" ./internal/kernels
go test -c -trimpath -o "$folder/cuda.test" ./internal/backend/cuda
# Only a commit whose tree is what was built can stand for it.
dirty=false
[ -z "$(git status --porcelain --untracked-files=no)" ] || dirty=true
printf '{"commit": "%s", "modified": %s}\n' "$(git rev-parse HEAD)" "$dirty" >"$folder/build.json"
