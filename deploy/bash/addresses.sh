for K in "${!NODES[@]}"; do  # the plan's node K is the job's
  ADDRESS="$(getent ahostsv4 "${NODES[K]}" | awk 'NR == 1 {print $1}')"
  sed -i "s/@@pattern$K\b/$ADDRESS/g" "${FILES[@]}"
done
