#!/bin/sh
# Builds this commit's archives for PLATFORMS a second time, in another directory with another
# umask, and compares them byte by byte with those in bin/dist; also the packages and the
# image, if bin/dist has them. FRESH=1 compiles Kubernetes again too, instead of taking it
# from Go's build cache.
set -eu
cd "$(dirname "$0")/.."
here=$PWD
[ -z "$(git status --porcelain)" ] || { echo "dist-check: commit everything first: the commit is built again" >&2; exit 1; }
# Go records no commit in what it builds there (https://go.dev/issue/58218).
[ -d .git ] || { echo "dist-check: build in a clone, not in a Git worktree" >&2; exit 1; }
there=$(mktemp -d)
trap 'rm -rf "$there"' EXIT
umask 077
git clone --quiet --no-hardlinks "$here" "$there/byre"
mkdir -p "$there/byre/bin/tools"
for tool in cyclonedx-gomod nfpm; do
	[ ! -e bin/tools/$tool ] || cp bin/tools/$tool "$there/byre/bin/tools/"
done
[ -z "${FRESH:-}" ] || export GOCACHE="$there/cache"
has() { [ -n "$(find "$here/bin/dist" -maxdepth 1 -name "*.$1")" ]; }
(
	cd "$there/byre"
	packaging/dist.sh
	! has deb || packaging/package.sh deb
	! has rpm || packaging/package.sh rpm
	! has oci.tar || packaging/image.sh
)
cd "$there/byre/bin/dist"
find . -maxdepth 1 -type f ! -name SHA256SUMS -printf '%P\n' | LC_ALL=C sort >../files
while read -r file; do
	cmp "$file" "$here/bin/dist/$file"
	echo "dist-check: $file is the same"
done <../files
