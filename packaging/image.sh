#!/bin/sh
# Makes an OCI image of the programs that dist.sh has built, for each Linux of PLATFORMS.
set -eu
cd "$(dirname "$0")/../e2e"
version=$(../packaging/version.sh)
set --
for platform in $PLATFORMS; do
	[ "${platform%%/*}" = linux ] || continue
	set -- "$@" "$platform=../bin/dist/build/linux-$(echo "${platform#*/}" | tr -d /)/byre"
done
go run ./packages/image -version "$version" -revision "$(git rev-parse HEAD)" -created "$(git log -1 --format=%ct)" \
	-output "../bin/dist/byre_$version.oci.tar" "$@"
../packaging/checksums.sh
