#!/bin/sh
# Runs before a removal and before an upgrade. A deb calls it with "remove" for the former,
# an rpm with 0.
set -e

case "$1" in
remove | 0)
	if [ -z "$DPKG_ROOT" ] && [ -d /run/systemd/system ]; then
		systemctl disable --now byre.service
	fi
	;;
esac
