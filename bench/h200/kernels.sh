#!/usr/bin/env bash
# Times of the kernels that a step is made of, on the machine's first GPU: of every plan for a product, of a norm and its product as two
# launches and as one, of attention, of products of quantised weights. Microseconds a launch in a graph, bytes and operations a second, the share of what an H200 reaches.
#
#   bench/h200/kernels.sh NEW [OLD]
#
# NEW and OLD are test binaries, made on any machine from the commits to be compared by
#   CGO_ENABLED=0 go test -c -o NEW ./internal/kernels
# With OLD a table of the chosen plans follows. * marks what a plan function chooses: where another is faster, its estimate is to be
# mended (internal/kernels/product.go, norm.go). Some minutes for a binary, of which half is the driver's compiling.
set -euo pipefail
export COTENANT_REQUIRE_GPU=1
products='BenchmarkProduct$/.*/M(1|8|64|704)$'
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
times() { # binary, name
	timeout 500 "$1" -test.run '^$' -test.bench "$products|BenchmarkProductNorm|BenchmarkAttention|BenchmarkQuantizedProduct" -test.benchtime 1x >"$scratch/log" 2>&1 ||
		{ tail -20 "$scratch/log" >&2; exit 1; }
	grep -E '^(product|norm|attention|quantized) ' "$scratch/log" >"$scratch/$2"
}
times "${1:?a test binary of internal/kernels}" new
cat "$scratch/new"
[ $# -gt 1 ] || exit 0
times "$2" old
printf '\n%-34s %10s %10s %7s\n' "chosen for M, N, K, mode" "old us" "new us" "new/old"
awk '
	$1 == "product" && $10 ~ /^\*/ {
		key = $3 " " $5 " " $7 " " $9
		for (i = 11; i < NF; i++) if ($i == "dependent") us = $(i + 1) + 0
		if (FILENAME == ARGV[1]) old[key " " ++n[key]] = us
		else if ((key " " ++m[key]) in old) printf "%-34s %10.2f %10.2f %7.2f\n", key, old[key " " m[key]], us, us / old[key " " m[key]]
	}' "$scratch/old" "$scratch/new"
