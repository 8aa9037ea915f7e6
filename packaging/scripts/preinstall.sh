#!/bin/sh
# Runs before an installation and before an upgrade, when the program before the upgrade is still there.
# An upgrade begins with a backup, because the new program may migrate the schema when it starts.
set -e

# A deb calls it with "upgrade", an rpm with 2.
case "$1" in
upgrade | 2) ;;
*) exit 0 ;;
esac
if [ -n "$DPKG_ROOT" ] || [ ! -d /run/systemd/system ] || grep -qs '^BYRE_UPGRADE_BACKUP=no' /etc/byre/byre.env; then
	exit 0
fi

as_byre() {
	systemd-run --quiet --wait --pipe --collect --property=User=byre --property=EnvironmentFile=-/etc/byre/byre.env "$@"
}
status=0
as_byre /usr/bin/byre migrate status >/dev/null 2>&1 || status=$?
# A standby, and a machine where no server has run yet, have no database, and one that "byre migrate down" has prepared for an
# older program has nothing to migrate: 2. With 4 another host was upgraded before, with a backup.
case $status in 2 | 4) exit 0 ;; esac
dir=/var/lib/byre/upgrades
if ! as_byre mkdir -p -m 700 $dir || ! as_byre /usr/bin/byre backup "$dir/$(date -u +byre-%Y%m%dT%H%M%SZ.zst)"; then
	echo 'byre: nothing was upgraded, because the backup before it failed: mend that, or write BYRE_UPGRADE_BACKUP=no into /etc/byre/byre.env' >&2
	exit 1
fi
as_byre /usr/bin/byre backup prune $dir --keep 3 --yes || true # it decides on no upgrade
