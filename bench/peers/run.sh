#!/usr/bin/env bash
# Holds cotenant soak beside AIPerf and GuideLLM as clients, on the same llama-server and on an endpoint that misbehaves.
#
#   bench/peers/run.sh LLAMA_SERVER MODEL.gguf COTENANT [OUT]
#
# The two peers are installed by pip into OUT/tools. ROUNDS (3), REQUESTS (100), THREADS of llama-server (2) and BASE_TOKENS (690) say what is run. Use a quiet machine: llama-server's
# threads collapse under any neighbour. The tables go to stdout and OUT/tables.md.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
if [ $# -lt 3 ]; then
  sed -n '2,7s/^# \{0,1\}//p' "$0" >&2
  exit 2
fi
llama=$1 model=$2 cotenant=$3
out=${4:-$(mktemp -d)}
mkdir -p "$out"
[ -x "$out/tools/bin/python" ] || python3 -m venv "$out/tools"
"$out/tools/bin/python" -m pip install -q --disable-pip-version-check -r "$here/../../clients/loadtest/requirements.txt"
"$out/tools/bin/python" "$here/../../clients/loadtest/byte_tokenizer.py" "$out/tokenizer"
cd "$here/../.."
go run ./bench/peers --llama "$llama" --model "$model" --cotenant "$cotenant" --tools "$out/tools/bin" --tokenizer "$out/tokenizer" \
  --rounds "${ROUNDS:-3}" --requests "${REQUESTS:-100}" --threads "${THREADS:-2}" --base-tokens "${BASE_TOKENS:-690}" --out "$out/runs" | tee "$out/tables.md"
