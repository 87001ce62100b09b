#!/usr/bin/env bash
@@head
set -euo pipefail
echo "- name: $(hostname)"
echo "  address: $(hostname -I | awk '{print $1}')"
echo "  devices:"
for I in $(seq 0 @@last); do
  IP="$(hccn_tool -i "$I" -ip -g | awk -F: '/ipaddr/ {print $2}')"
  echo "  - {ip: ${IP// /}}"
done
