#!/bin/sh
# Runs after an installation and after an upgrade, from a deb and from an rpm. DPKG_ROOT is
# set by dpkg when it installs into a directory.
set -e

# After an upgrade that was refused nothing has changed.
case "$1" in
abort-*) exit 0 ;;
esac

systemd-sysusers ${DPKG_ROOT:+--root="$DPKG_ROOT"} byre.conf

if [ -z "$DPKG_ROOT" ] && [ -d /run/systemd/system ]; then
	systemctl daemon-reload
	# try-restart restarts only a byre that runs: an installation starts and enables nothing.
	systemctl try-restart byre.service
fi
