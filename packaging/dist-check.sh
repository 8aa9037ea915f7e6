#!/bin/sh
# Builds this commit's archives for PLATFORMS a second time, in another directory, and
# compares them byte by byte with those in bin/dist. FRESH=1 compiles Kubernetes again too,
# instead of taking it from Go's build cache.
set -eu
cd "$(dirname "$0")/.."
here=$PWD
[ -z "$(git status --porcelain)" ] || { echo "dist-check: commit everything first: the commit is built again" >&2; exit 1; }
# Go records no commit in what it builds there (https://go.dev/issue/58218).
[ -d .git ] || { echo "dist-check: build in a clone, not in a Git worktree" >&2; exit 1; }
there=$(mktemp -d)
trap 'rm -rf "$there"' EXIT
git clone --quiet --no-hardlinks "$here" "$there/byre"
mkdir -p "$there/byre/bin/tools"
cp bin/tools/cyclonedx-gomod "$there/byre/bin/tools/"
[ -z "${FRESH:-}" ] || export GOCACHE="$there/cache"
(cd "$there/byre" && make --no-print-directory build && PLATFORMS=$PLATFORMS packaging/dist.sh)
cd "$there/byre/bin/dist"
for file in *.tar.gz *.cdx.json; do
	cmp "$file" "$here/bin/dist/$file"
	echo "dist-check: $file is the same"
done
