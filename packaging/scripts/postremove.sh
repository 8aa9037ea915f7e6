#!/bin/sh
# Runs after a removal, a purge and an upgrade. The data in /var/lib/byre, the logs and the
# user stay in each case; an administrator may delete them.
set -e

if [ -z "$DPKG_ROOT" ] && [ -d /run/systemd/system ]; then
	systemctl daemon-reload
fi
