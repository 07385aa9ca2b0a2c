#!/usr/bin/env bash
# Speed of `serve --backend cuda` over HTTP, driven by `soak`, on a machine with one NVIDIA GPU that nobody else uses. Weights are random,
# of the shapes of Qwen2.5-0.5B and Llama-3.1-8B: answers mean nothing, and soak says that they are wrong.
#
#   bench/h200/serve.sh BINARY OUT [0.5b|8b]…     (about a minute a shape)
#
# OUT gets serve.log, results.txt (a line a step) and the run folders.
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
bin=$(readlink -f "${1:?the cotenant binary}")
out=$(readlink -f "${2:?a folder for the results}")
shift 2
mkdir -p "$out"
models=${MODELS:-/dev/shm/cotenant-models}
url=http://127.0.0.1:8123
server=

stop() { [ -n "$server" ] && kill "$server" && wait "$server"; server=; }
trap stop EXIT

say() { printf '%s\n' "$*" | tee -a "$out/results.txt"; }

start() { # start MODEL OPTION…
	local model=$1
	shift
	cat "$models/$model/model.safetensors" >/dev/null # a warm page cache
	local began=$(date +%s%N)
	"$bin" serve --backend cuda --model "$models/$model" --listen 127.0.0.1:8123 "$@" 2>>"$out/serve.log" &
	server=$!
	until curl -sf $url/health >/dev/null; do
		kill -0 $server 2>/dev/null || { say "$model: the server ended"; tail -3 "$out/serve.log"; return 1; }
		sleep 0.02
	done
	say "$model ready after $((($(date +%s%N) - began) / 1000000)) ms; $(grep VmRSS /proc/$server/status | tr -s '\t ' ' '), $(grep VmHWM /proc/$server/status | tr -s '\t ' ' ')"
}

step() { # step NAME CONTEXTS WORKERS TOKENS OPTION…
	local name=$1 contexts=$2 workers=$3 tokens=$4
	shift 4
	timeout 60 "$bin" soak --endpoint $url --contexts "$contexts" --workers "$workers" --max-tokens "$tokens" --body-json '{"ignore_eos":true}' \
		--gpu none --out "$out/runs/$name" "$@" --json >"$out/$name.json" 2>>"$out/serve.log"
	python3 "$here/serve_line.py" "$name" "$out/$name.json" | tee -a "$out/results.txt"
}

for shape in "${@:-0.5b}"; do
	[ -s "$models/$shape/model.safetensors" ] || python3 "$here/randommodel.py" "$shape" "$models/$shape" || exit 1
	start "$shape" || continue
	many=4000
	[ "$shape" = 8b ] && many=400
	step "$shape-warm" 200 64 8 --base-tokens 432 --unique --seed 1
	step "$shape-ttft" 40 1 1 --base-tokens 432 --unique --seed 2
	step "$shape-alone" 4 1 257 --base-tokens 432 --unique --seed 3
	step "$shape-streams64" 64 64 512 --base-tokens 160 --unique --seed 4
	step "$shape-streams64-again" 64 64 512 --base-tokens 160 --unique --seed 5
	step "$shape-unique64" $many 64 8 --base-tokens 432 --unique --seed 6
	step "$shape-unique256" $many 256 8 --base-tokens 432 --unique --seed 7
	step "$shape-shared256" $((2 * many)) 256 8 --base-tokens 432 --seed 8
	step "$shape-shared64" 10000 64 8 --base-tokens 432 --seed 9
	curl -s $url/metrics | grep -E '^cotenant_(device_memory|kv_pages|prefix|non_finite|prompt_tokens|generation)' >"$out/$shape-metrics.txt"
	grep VmRSS /proc/$server/status
	stop
done
