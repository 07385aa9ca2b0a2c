#!/usr/bin/env bash
# The CUDA engine on a machine with one NVIDIA GPU that nobody else uses, in nine minutes: its tests, the ladder, its speeds, and vLLM's beside
# them through the same client.
#
#   bench/h200/engine.sh FOLDER OUT [STAGE]…
#
# FOLDER is pack.sh's. STAGE is one of, or a prefix with another of randommodel.py's shapes:
#   check-gpu     check-gpu.sh: all tests that need a GPU
#   ladder        the embedded model at 10,000 controlled and 1,000 plain, random weights at 10,000 with a shared prefix, SmolLM2 at 1,000
#   serve-0.5b    times and rates of Qwen2.5-0.5B's shape; weights are random, so answers mean nothing
#   profile-0.5b  where the time of a step goes, kernel by kernel
#   serve-8b, profile-8b  the same of Llama-3.1-8B's shape
#   vllm-0.5b     what serve-0.5b does, of vLLM, and compared with that where it ran before. FOLDER/vllm.sh, where there is one, is sourced
#                 and makes python3 find vLLM
# Without any, all in this order. Each has a limit of its own and what is left of the whole's; one that fails or is cut off doesn't stop the
# next. OUT gets summary.txt (a line a stage and a run, ok or FAIL), results.txt (times and rates), check-gpu.txt and check-gpu.json,
# and as parcels of parcel.sh, so that large ones come back too, evidence/ (every run in its published form, to be put under evidence/serve)
# and logs/.
#
# For trying it without a GPU: TRY holds options of soak that replace what a run has, such as '--contexts 4 --workers 2', and TOKENS the new
# tokens of a time or rate; SHAPE replaces the ladder's 0.5b and SMOLLM2 its model. LIMIT is the whole's limit in seconds. MODELS is where random models are made and kept.
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
folder=$(readlink -f "${1:?a folder of pack.sh}") && out=$(readlink -m "${2:?a folder for the results}") || exit 2
shift 2
[ -x "$folder/cotenant" ] || { printf 'engine: %s has no cotenant: it isn'\''t a folder of pack.sh\n' "$folder" >&2; exit 2; }
bin=$folder/cotenant
smollm2=${SMOLLM2:-$folder/smollm2.gguf}
models=${MODELS:-/dev/shm/cotenant-models}
port=${PORT:-8123}
url=http://127.0.0.1:$port
hardware=$(nvidia-smi --query-gpu=name,driver_version --format=csv,noheader | head -1)
server=

say() { printf '%s\n' "$*" | tee -a "$out/results.txt"; }
verdict() { printf '%s\t%s\t%s\n' "$@" | tee -a "$out/summary.txt"; }

# model SHAPE: the folder of a random model, which is made unless it is there.
model() {
	local dir=$models/$1
	if ! [ -e "$dir/whole" ]; then
		(flock 9 && [ -e "$dir/whole" ] || python3 -B "$here/randommodel.py" "$1" "$dir" && touch "$dir/whole") 9>"$models/$1.lock" >&2 || return 1
	fi
	printf '%s\n' "$dir"
}

stop() {
	[ -z "$server" ] || { kill "$server" && wait "$server"; } 2>>"$work/logs/server.log"
	server=
}

# ready NAME COMMAND…: starts a server and waits until it answers.
ready() {
	local name=$1 began
	shift
	began=$(date +%s%N)
	"$@" >>"$work/logs/server.log" 2>&1 &
	server=$!
	until curl -sf "$url/health" >/dev/null; do
		kill -0 $server 2>/dev/null || { verdict FAIL "$name" "the server ended: $(tail -1 "$work/logs/server.log")"; server=; return 1; }
		sleep 0.02
	done
	say "$name ready after $((($(date +%s%N) - began) / 1000000)) ms; $(grep -E 'VmRSS|VmHWM' /proc/$server/status | tr -s '\t\n ' ' ')"
}

cotenant() { # cotenant NAME OPTION…
	local name=$1
	shift
	declared="cotenant serve --backend cuda, $("$bin" --version)"
	ready "$name" "$bin" serve --backend cuda --listen "127.0.0.1:$port" "$@"
}

vllm() { # vllm NAME FOLDER
	declared="vLLM $(python3 -c 'import vllm; print(vllm.__version__)' 2>>"$work/logs/server.log"), model runner V2, graphs to 1,024 tokens, 4 API processes, prefix cache"
	VLLM_USE_V2_MODEL_RUNNER=1 ready "$1" python3 -m vllm.entrypoints.cli.main serve "$2" --served-model-name "$(basename "$2")" --dtype bfloat16 --max-model-len 4096 \
		--enable-prefix-caching --host 127.0.0.1 --port "$port" --api-server-count 4 --disable-uvicorn-access-log --chat-template "$2/chat_template.jinja" \
		--generation-config vllm --compilation-config '{"max_cudagraph_capture_size":1024}'
}

# soak WANTED NAME OPTION…: a run, verified, published and verified again from its public form. WANTED is the exit code of soak and verify: 0
# where the run must be admitted, 3 where it isn't a rung.
soak() {
	local wanted=$1 name=$2 codes word=FAIL grade
	shift 2
	[ -z "${TRY:-}" ] || wanted='[03]'
	# shellcheck disable=SC2086
	timeout -k 5 90 "$bin" soak --endpoint "$url" --server-pid "$server" --declare "server=$declared" --declare "hardware=$hardware" \
		--out "$work/runs/$name" --json "$@" ${TRY:-} >"$work/$name.json" 2>>"$work/logs/soak.log"
	codes=$?
	say "$(python3 -B "$here/ledger_line.py" "$name" "$work/$name.json" 2>&1)"
	"$bin" verify "$work/runs/$name" >"$work/logs/$name.verify.txt" 2>&1
	codes="$codes $?"
	"$bin" publish "$work/runs/$name" --rows all --out "$work/evidence/$name" >>"$work/logs/publish.log" 2>&1
	codes="$codes $?"
	grade=$("$bin" verify "$work/evidence/$name" 2>&1 | grep -m 1 '^grade ')
	case "${grade%%;*}, $codes" in 'grade recomputed, '$wanted' '$wanted' 0') word=ok ;; esac
	verdict $word "$name" "soak, verify, publish: $codes; ${grade:-no grade}"
}

metrics() {
	curl -s "$url/metrics" | grep -E '^(cotenant|vllm)[_:](device_memory|gpu_memory|kv_|prefix|non_finite|prompt_tokens|generation)' >"$work/logs/$1.metrics.txt"
}

ladder() {
	local dir nonce
	nonce=$(date +%F)
	if cotenant ladder-embedded; then
		soak 0 embedded-controlled-10000 --contract controlled --contexts 10000 --workers 64 --nonce "$nonce"
		soak 0 embedded-plain-1000 --contexts 1000 --workers 64 --nonce "$nonce"
		metrics ladder-embedded
		stop
	fi
	if dir=$(model "${SHAPE:-0.5b}") && cotenant ladder-random --model "$dir"; then
		soak 0 random-plain-10000 --contexts 10000 --workers 64 --base-tokens 432 --nonce "$nonce"
		metrics ladder-random
		stop
	fi
	if cotenant ladder-smollm2 --model "$smollm2" --served-name smollm2; then
		soak 0 smollm2-plain-1000 --contexts 1000 --workers 64 --nonce "$nonce"
		metrics ladder-smollm2
		stop
	fi
}

# speeds NAME SHAPE: the same runs for any server, but those that would take too long. All but streams64, which are as many as there are
# contexts, can be admitted; in streams64-1000 answers come and go, so that their prompts are paid for.
speeds() {
	local name=$1 many=10000
	[ "$2" = 8b ] && many=1000
	step() { soak "$1" "$name-$2" --contexts "$3" --workers "$4" --max-tokens "${TOKENS:-$5}" --body-json '{"ignore_eos":true}' --gpu none "${@:6}"; }
	step 0 warm 100 64 8 --base-tokens 432 --unique --seed 1
	step 0 ttft 100 1 1 --base-tokens 432 --unique --seed 2
	step 0 alone 100 1 17 --base-tokens 432 --unique --seed 3
	step 3 streams64 64 64 512 --base-tokens 160 --unique --seed 4
	[ "$name" != serve-0.5b ] || step 0 streams64-1000 1000 64 512 --base-tokens 160 --unique --seed 5
	step 0 unique64 $many 64 8 --base-tokens 432 --unique --seed 6
	step 0 unique256 $many 256 8 --base-tokens 432 --unique --seed 7
	step 0 shared256 $many 256 8 --base-tokens 432 --seed 8
	[ "$2" = 8b ] || step 0 shared64 10000 64 8 --base-tokens 432 --seed 9
	metrics "$name"
	stop
}

stage() { # stage STAGE: in a process of its own, under its limit
	local dir shape=${1#*-} run
	trap stop EXIT
	case $1 in
	check-gpu) COTENANT_CUDA_MODEL=$smollm2 "$here/check-gpu.sh" "$folder" "$out" ;;
	ladder) ladder ;;
	serve-*) dir=$(model "$shape") && cotenant "$1" --model "$dir" && speeds "$1" "$shape" ;;
	profile-*) dir=$(model "$shape") && COTENANT_REQUIRE_GPU=1 COTENANT_CUDA_PROFILE=$dir "$folder/cuda.test" -test.run - -test.bench Step -test.benchtime 1x >"$work/logs/$1.txt" 2>&1 ;;
	vllm-*)
		# shellcheck disable=SC1091
		[ ! -e "$folder/vllm.sh" ] || . "$folder/vllm.sh" >>"$work/logs/vllm.log" 2>&1
		dir=$(model "$shape") && vllm "$1" "$dir" && speeds "$1" "$shape" || return 1
		for run in "$work/runs/serve-$shape"-*; do
			[ ! -e "$run" ] || "$bin" compare "$work/runs/vllm-${run##*/serve-}" "$run" --vary server >"$work/logs/compare-${run##*/serve-}.txt" 2>&1
		done
		return 0
		;;
	*) printf 'engine: no stage %s\n' "$1" >&2; return 2 ;;
	esac
}

limit() { # limit STAGE: seconds
	case $1 in check-gpu) echo 140 ;; ladder) echo 90 ;; profile-*) echo 20 ;; serve-8b) echo 95 ;; vllm-*) echo 220 ;; *) echo 75 ;; esac
}

if [ "${1:-}" = --stage ]; then # how this script calls itself
	stage "$2"
	exit
fi
[ $# -gt 0 ] || set -- check-gpu ladder serve-0.5b profile-0.5b serve-8b profile-8b vllm-0.5b
export work
work=$(mktemp -d "${TMPDIR:-/tmp}/cotenant-engine-XXXXXX")
trap 'rm -rf "$work"' EXIT
mkdir -p "$out" "$models" "$work/runs" "$work/evidence" "$work/logs"
for s; do # while the tests run, what later stages need
	case $s in *-*) model "${s#*-}" ;; esac >>"$work/logs/models.log" 2>&1
done &
for s; do
	left=$((${LIMIT:-540} - SECONDS)) most=$(limit "$s") began=$SECONDS
	[ "$most" -lt "$left" ] && [ -z "${TRY:-}" ] || most=$left
	if [ "$most" -le 0 ]; then
		verdict FAIL "$s" "no time left"
		continue
	fi
	timeout -k 10 "$most" "$0" "$folder" "$out" --stage "$s"
	code=$?
	[ $code = 0 ] && word=ok || word=FAIL
	[ $code = 124 ] && code='cut off' || code="exit $code"
	verdict $word "$s" "$code, $((SECONDS - began)) of $most s"
done
wait
for p in evidence logs; do
	rm -rf "${out:?}/$p"
	"$here/parcel.sh" split "$work/$p" "$out/$p" 15
done
! grep -q '^FAIL' "$out/summary.txt"
