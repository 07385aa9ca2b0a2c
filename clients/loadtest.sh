#!/usr/bin/env bash
# Drives a running server with AIPerf and GuideLLM, a few requests each, and checks that none failed.
#
#   clients/loadtest.sh http://127.0.0.1:8080 [OUT]
#
# COTENANT_TEST_MODEL picks a model (else the server's first), COTENANT_API_KEY is its key, REQUESTS how many (24). OUT keeps what
# the tools write. Both are installed by pip into a folder that is removed afterwards, or into CLIENTS_CACHE, which is kept.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
if [ $# -lt 1 ]; then
  sed -n '2,7s/^# \{0,1\}//p' "$0" >&2
  exit 2
fi
url=${1%/}
requests=${REQUESTS:-24}
work=${CLIENTS_CACHE:-}
if [ -z "$work" ]; then
  work=$(mktemp -d)
  trap 'rm -rf "$work"' EXIT
fi
out=${2:-$work/out}
mkdir -p "$work" "$out"
[ -x "$work/load/bin/python" ] || python3 -m venv "$work/load"
bin=$work/load/bin
"$bin/python" -m pip install -q --disable-pip-version-check -r "$here/loadtest/requirements.txt"

auth=()
[ -z "${COTENANT_API_KEY:-}" ] || auth=(-H "Authorization: Bearer $COTENANT_API_KEY")
curl -fsS --retry 30 --retry-delay 1 --retry-all-errors "$url/health" >/dev/null
model=${COTENANT_TEST_MODEL:-$(curl -fsS "${auth[@]}" "$url/v1/models" | "$bin/python" -c 'import json, sys; print(json.load(sys.stdin)["data"][0]["id"])')}

# Neither tool can do without a tokenizer folder when it makes prompts up; this one has a token a byte and needs no download.
"$bin/python" "$here/loadtest/byte_tokenizer.py" "$work/tokenizer"
"$bin/python" "$here/loadtest/prompts.py" "$requests" "$work/guidellm.jsonl" "$work/aiperf.jsonl"

key=()
[ -z "${COTENANT_API_KEY:-}" ] || key=(--api-key "$COTENANT_API_KEY")
echo "== AIPerf" >&2
# Its connections are kept on purpose: a server that closes them after a stream fails here. --request-rate keeps its closed loop
# from spinning.
(cd "$work" && "$bin/aiperf" profile -m "$model" -u "$url" --endpoint-type chat --streaming --tokenizer "$work/tokenizer" "${key[@]}" \
  --concurrency 4 --request-rate 200 --arrival-pattern constant --connection-reuse-strategy pooled \
  --request-count "$requests" --input-file "$work/aiperf.jsonl" --custom-dataset-type single_turn \
  --extra-inputs ignore_eos:true --random-seed 1 --ui none --no-gpu-telemetry --no-server-metrics --artifact-dir "$out/aiperf") >"$out/aiperf.log" 2>&1 ||
  { tail -n 60 "$out/aiperf.log" >&2; exit 1; }

backend="kind=openai_http,target=$url,model=$model"
[ -z "${COTENANT_API_KEY:-}" ] || backend="$backend,api_key=$COTENANT_API_KEY"
echo "== GuideLLM" >&2
"$bin/guidellm" run --backend "$backend" --profile kind=concurrent,streams=4 --constraint "kind=max_requests,count=$requests" \
  --data "kind=json_file,path=$work/guidellm.jsonl" --output "kind=json,path=$out/guidellm.json" --disable-progress >"$out/guidellm.log" 2>&1 ||
  { tail -n 60 "$out/guidellm.log" >&2; exit 1; }

"$bin/python" "$here/loadtest/check.py" "$requests" "$out/aiperf/profile_export_aiperf.json" "$out/guidellm.json"
