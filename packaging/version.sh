#!/bin/sh
# Prints the version of the packages: of the tag v1.2.3 it is 1.2.3, after it
# 1.2.3+git20261122110421.68c9f14, which dpkg and rpm take for newer. "byre version" prints
# Go's own version of the same commit.
set -eu
cd "$(dirname "$0")/.."
tag=$(git describe --tags --abbrev=0 --match 'v[0-9]*' 2>/dev/null || echo v0.0.0)
version=${tag#v}
if [ -z "$(git tag --points-at HEAD --list "$tag")" ]; then
	version=$version+git$(TZ=UTC git log -1 --date=format-local:%Y%m%d%H%M%S --format=%cd).$(git rev-parse --short=7 HEAD)
fi
[ -z "$(git status --porcelain --untracked-files=no)" ] || version=$version.dirty
echo "$version"
