#!/usr/bin/env bash
@@head
set -euo pipefail
ROUTER="${ROUTER:-@@router}"
sum() { # SERIES URL...: what the pages say in all
  local series=$1 url; shift; for url in "$@"; do curl --silent --fail --max-time 10 "$url"; done |
    awk -v series="$series" 'index($1, series) == 1 {total += $NF} END {printf "%d\n", total}'
}
@@before
ANSWER="$(curl --silent --show-error --fail --max-time 600 -H 'Content-Type: application/json' -d @@body "$ROUTER/v1/@@endpoint")"
echo "$ANSWER" | grep -q '"completion_tokens": *[1-9]' || { echo "no tokens: $ANSWER" >&2; exit 1; }
@@after
echo 'one request went through @@through'
