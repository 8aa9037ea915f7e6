#!/bin/sh
# Builds the archives of a release into bin/dist: for each platform of PLATFORMS a static,
# stripped program with its manual, completions, unit and licences, and its SBOM. One commit, built
# by one version of Go, gives the same bytes wherever it is built ("make dist-check"): dates
# are those of the commit, and Go records the commit.
set -eu
cd "$(dirname "$0")/.."
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
export SOURCE_DATE_EPOCH CGO_ENABLED=0 GOFLAGS=-tags=grpcnotrace GOAMD64=v1 GOARM64=v8.0 GOARM=7 LC_ALL=C TZ=UTC
umask 022
out=bin/dist
version=$(packaging/version.sh)

mkdir -p "$out"
find "$out" -maxdepth 1 -type f -delete

# A byre of this machine writes the manual and the completions: a program for another platform
# may not run here. It is built here so that it knows the commit, which the manual names: GOFLAGS
# of the caller may say -buildvcs=false.
go build -buildvcs=true -o bin/byre ./cmd/byre
shared=$out/shared
rm -rf "$shared"
mkdir -p "$shared/man" "$shared/completion"
bin/byre man "$shared/man"
gzip -n9 "$shared"/man/*.8
for shell in bash zsh fish; do
	bin/byre completion $shell >"$shared/completion/byre.$shell"
done

for platform in $PLATFORMS; do
	os=${platform%%/*}
	arch=$(echo "${platform#*/}" | tr -d /) # armv7 of arm/v7
	echo "dist: $os $arch"
	name=byre_${version}_${os}_${arch}
	build=$out/build/$os-$arch
	mkdir -p "$build"
	GOOS=$os GOARCH=${arch%v7} go build -trimpath -buildvcs=true -ldflags '-s -w' -o "$build/byre" ./cmd/byre
	GOOS=$os GOARCH=${arch%v7} packaging/licenses.sh "$build/licenses"

	rm -rf "$out/$name"
	mkdir "$out/$name"
	cp "$build/byre" README.md CHANGELOG.md "$build"/licenses/* "$out/$name/"
	cp -R "$shared/man" "$shared/completion" "$out/$name/"
	[ "$os" != linux ] || cp -R packaging/systemd "$out/$name/"
	chmod -R u=rwX,go=rX "$out/$name"
	tar --sort=name --format=ustar --owner=0 --group=0 --numeric-owner --mtime="@$SOURCE_DATE_EPOCH" \
		-C "$out" -cf - "$name" | gzip -n9 >"$out/$name.tar.gz"
	rm -r "${out:?}/$name"

	# The modules that the program is linked from, and their licences.
	bin/tools/cyclonedx-gomod bin -json -std -licenses -noserial -notimestamp -version "$version" \
		-output "$out/$name.cdx.json" "$build/byre" 2>"$build/sbom.log" || { cat "$build/sbom.log" >&2; exit 1; }
done
packaging/checksums.sh
