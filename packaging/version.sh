#!/bin/sh
# Prints the version of the packages: of the tag v1.2.3 it is 1.2.3, after it
# 1.2.3+git20261122110421.68c9f14, which dpkg and rpm take for newer. Without any tag it
# begins with 0.0.0. "byre version" says 0.1.0-dev+68c9f14b7d1e of such commits: in a package's
# version, "-" separates the package's own number.
set -eu
cd "$(dirname "$0")/.."
tag=$(git describe --tags --abbrev=0 --match 'v[0-9]*' 2>/dev/null || echo v0.0.0)
version=${tag#v}
if [ -z "$(git tag --points-at HEAD --list "$tag")" ]; then
	version=$version+git$(TZ=UTC git log -1 --date=format-local:%Y%m%d%H%M%S --format=%cd).$(git rev-parse --short=7 HEAD)
fi
[ -z "$(git status --porcelain --untracked-files=no)" ] || version=$version.dirty
echo "$version"
