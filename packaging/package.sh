#!/bin/sh
# package.sh deb|rpm [DIRECTORY] makes a package of the program that dist.sh has built, for
# each Linux of PLATFORMS. VERSION, if it is set, is another version than the commit's.
set -eu
cd "$(dirname "$0")"
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct) # nfpm's date of all files
VERSION=${VERSION:-$(./version.sh)}
export SOURCE_DATE_EPOCH VERSION
target=${2:-../bin/dist}
rm -f "$target"/*."$1"
for platform in $PLATFORMS; do
	[ "${platform%%/*}" = linux ] || continue
	arch=$(echo "${platform#*/}" | tr -d /)
	PROGRAM=../bin/dist/build/linux-$arch/byre ARCH=$(echo "$arch" | sed s/v7/7/) ../bin/tools/nfpm package --config nfpm.yaml --packager "$1" --target "$target/"
done
./checksums.sh
