#!/usr/bin/env bash
@@head
set -euo pipefail
echo "- name: $(hostname)"
echo "  address: $(hostname -I | awk '{print $1}')"
echo "  super_pod: \"$(npu-smi info -t spod-info -i 0 -c 0 | awk '/Super Pod ID/ {print $NF}')\""
echo "  devices:"
for I in $(seq 0 @@last); do
  IP="$(hccn_tool -i "$I" -vnic -g | awk -F: '/ipaddr/ {print $2}')"
  ID="$(npu-smi info -t spod-info -i "$((I / 2))" -c "$((I % 2))" | awk '/SDID/ {print $NF}')"
  echo "  - {ip: ${IP// /}, super_device_id: $ID}"
done
