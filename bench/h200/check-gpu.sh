#!/usr/bin/env bash
# Every test that needs a GPU, on a machine with one: all must run and pass. What can be skipped is not there.
#
#   bench/h200/check-gpu.sh FOLDER OUT
#
# FOLDER holds test binaries, made on any machine by
#   for p in kernels backend/cuda; do CGO_ENABLED=0 go test -c -o FOLDER/$(basename $p).test ./internal/$p; done
# OUT gets check-gpu.txt: the GPU, and a line a test. COTENANT_CUDA_MODEL may name a model whose greedy text is compared with the CPU's
# besides. torch and transformers are needed, as the oracle of logits.
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
folder=$(readlink -f "${1:?a folder of test binaries}")
out=$(readlink -f "${2:?a folder for the results}")
export COTENANT_REQUIRE_GPU=1
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
{
	nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader
	failed=0
	python3 "$here/logits.py" "$scratch/logits" 2>"$scratch/err" || { tail -3 "$scratch/err"; failed=1; }
	export COTENANT_CUDA_LOGITS=$scratch/logits
	ran=0
	for binary in "$folder"/*.test; do
		# TestFaults and TestSharedGPU are of drivers that are played, TestKernelsOnHost of a compiler.
		"$binary" -test.v -test.skip '^(TestFaults|TestSharedGPU|TestKernelsOnHost)$' -test.timeout 8m >"$scratch/log" 2>&1 || failed=1
		echo "== $(basename "$binary")"
		grep -E '^ *--- |off by|panic:' "$scratch/log"
		n=$(grep -c '^ *--- PASS' "$scratch/log")
		ran=$((ran + n))
		if [ "$n" = 0 ] || grep -qE '^ *--- (SKIP|FAIL)' "$scratch/log"; then
			failed=1
			grep -vE '^=== ' "$scratch/log" | cut -c1-300 | tail -20
		fi
	done
	[ "$failed" = 0 ] && echo "PASS: $ran tests" || echo "FAIL"
	exit $failed
} 2>&1 | tee "$out/check-gpu.txt"
exit "${PIPESTATUS[0]}"
