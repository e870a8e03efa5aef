#!/bin/sh
# Fails while an alert fires: --gate='deploy/no-alerts.sh http://prometheus.example:9090'
# The second argument selects alerts by their labels; by default, severity="critical":
#   --gate="deploy/no-alerts.sh https://prometheus.example 'severity=~\"critical|warning\",namespace=\"shop\"'"
# Set PROMETHEUS_TOKEN_FILE to a file with a bearer token, PROMETHEUS_CA_FILE to a CA certificate. Needs curl and jq.
url=${1:?usage: no-alerts.sh URL of Prometheus [LABEL SELECTOR]}
selector=${2-severity=\"critical\"}
set -- -fsS --max-time 30 --get "$url/api/v1/query"
test -z "$PROMETHEUS_CA_FILE" || set -- "$@" --cacert "$PROMETHEUS_CA_FILE"
header=
if test -n "$PROMETHEUS_TOKEN_FILE"; then
    token=$(cat "$PROMETHEUS_TOKEN_FILE") || exit 1
    header="header = \"Authorization: Bearer $token\""
fi
# The token is read from standard input: arguments are visible to other users.
alerts=$(printf '%s\n' "$header" | curl --config - "$@" \
    --data-urlencode "query=ALERTS{alertstate=\"firing\"${selector:+,$selector}}") || exit 1
names=$(printf '%s' "$alerts" | jq -r '[.data.result[].metric.alertname] | unique | join(", ")') || exit 1
test -z "$names" || { echo "firing: $names"; exit 1; }
