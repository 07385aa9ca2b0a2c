#!/usr/bin/env bash
# Runs the suites of the official OpenAI clients for Python, Node and Go against a running server.
#
#   clients/run.sh http://127.0.0.1:8080 [python|node|go ...]
#
# COTENANT_TEST_MODEL picks a model (else the server's first), COTENANT_API_KEY is its key. What the suites need is installed by
# pip, npm and go into a folder that is removed afterwards, or into CLIENTS_CACHE, which is kept.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
if [ $# -lt 1 ]; then
  sed -n '2,7s/^# \{0,1\}//p' "$0" >&2
  exit 2
fi
export COTENANT_URL=$1
shift
[ $# -gt 0 ] || set -- python node go

work=${CLIENTS_CACHE:-}
if [ -z "$work" ]; then
  work=$(mktemp -d)
  trap 'rm -rf "$work"' EXIT
fi
mkdir -p "$work"
curl -fsS --retry 30 --retry-delay 1 --retry-all-errors "$COTENANT_URL/health" >/dev/null

run_python() {
  [ -x "$work/python/bin/python" ] || python3 -m venv "$work/python"
  "$work/python/bin/python" -m pip install -q --disable-pip-version-check -r "$here/python/requirements.txt"
  PYTHONDONTWRITEBYTECODE=1 "$work/python/bin/python" -m pytest -q -p no:cacheprovider "$here/python"
}

run_node() {
  mkdir -p "$work/node"
  cp "$here"/node/package.json "$here"/node/package-lock.json "$here"/node/*.mjs "$work/node/"
  (cd "$work/node" && npm ci --silent --no-audit --no-fund && node --test)
}

run_go() {
  (cd "$here/go" && go test -count=1 ./...)
}

for suite in "$@"; do
  echo "== $suite client against $COTENANT_URL" >&2
  "run_$suite"
done
