#!/bin/sh
# package.sh deb|rpm [DIRECTORY] makes a package of the program that dist.sh has built, for
# each Linux of PLATFORMS: in bin/dist, where it adds them to SHA256SUMS, or in DIRECTORY.
# VERSION and SOURCE_DATE_EPOCH, if they are set, are another version and another date of all
# files than the commit's.
set -eu
cd "$(dirname "$0")"
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}
VERSION=${VERSION:-$(./version.sh)}
export SOURCE_DATE_EPOCH VERSION
target=${2:-../bin/dist}
rm -f "$target"/*."$1"
for platform in $PLATFORMS; do
	[ "${platform%%/*}" = linux ] || continue
	arch=$(echo "${platform#*/}" | tr -d /)
	BUILD=../bin/dist/build/linux-$arch ARCH=$(echo "$arch" | sed s/v7/7/) ../bin/tools/nfpm package --config nfpm.yaml --packager "$1" --target "$target/"
done
[ -n "${2:-}" ] || ./checksums.sh
