#!/bin/sh
# Fails while an alert fires: --gate='deploy/no-alerts.sh http://prometheus.example:9090'
# Needs curl and jq. Watchdog is the alert of kube-prometheus that always fires.
alerts=$(curl -fsS --max-time 30 --get "$1/api/v1/query" \
    --data-urlencode 'query=ALERTS{alertstate="firing",alertname!="Watchdog"}') || exit 1
names=$(echo "$alerts" | jq -r '[.data.result[].metric.alertname] | unique | join(", ")') || exit 1
test -z "$names" || { echo "firing: $names"; exit 1; }
