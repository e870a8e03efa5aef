#!/bin/sh
# Fails while an alert fires: --gate='deploy/no-alerts.sh http://prometheus.example:9090'
# Needs curl and jq. Watchdog and InfoInhibitor are alerts of kube-prometheus that say nothing.
url=${1:?usage: no-alerts.sh URL of Prometheus}
alerts=$(curl -fsS --max-time 30 --get "$url/api/v1/query" \
    --data-urlencode 'query=ALERTS{alertstate="firing",alertname!~"Watchdog|InfoInhibitor"}') || exit 1
names=$(printf '%s' "$alerts" | jq -r '[.data.result[].metric.alertname] | unique | join(", ")') || exit 1
test -z "$names" || { echo "firing: $names"; exit 1; }
