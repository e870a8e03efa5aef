#!/bin/sh
# A container whose behavior comes from the variables of its image (registry.py) or of its Pod:
# PORT, READY_AFTER (seconds, or never), EXIT_AFTER (seconds), IGNORE_TERM
rm -f /tmp/www/ready
mkdir -p /tmp/www
busybox httpd -p "${PORT:-8080}" -h /tmp/www
stop() {
  [ -n "$IGNORE_TERM" ] && return
  rm -f /tmp/www/ready
  exit 0
}
trap stop TERM INT
seconds=0
while :; do
  [ "$EXIT_AFTER" = "$seconds" ] && echo "out of luck" | tee /dev/termination-log && exit 1
  [ "${READY_AFTER:-0}" = "$seconds" ] && echo ok >/tmp/www/ready
  [ -z "$EXIT_AFTER" ] && [ -e /tmp/www/ready ] && { while :; do sleep 10000 & wait $!; done; }
  sleep 1 & wait $!
  seconds=$((seconds + 1))
done
