#!/bin/sh
# licenses.sh DIRECTORY writes what has to accompany a program built for GOOS and GOARCH:
# byre's LICENSE and NOTICE, and THIRD-PARTY-LICENSES, the licences and notices of Go and of each
# module that the program is linked from. A package may have another licence than its module: all
# directories from that of a linked package up to its module's are searched. A text that
# several modules have is there once, below their names.
set -eu
cd "$(dirname "$0")/.."
export LC_ALL=C
mkdir -p "$1"
cp LICENSE packaging/NOTICE "$1/"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# MODULE VERSION, the directory of the module, and that of a package, separated by tabs.
go list -deps -f '{{$dir := .Dir}}{{with .Module}}{{if not .Main}}{{.Path}} {{.Version}}{{"\t"}}{{.Dir}}{{"\t"}}{{$dir}}{{end}}{{end}}' \
	./cmd/byre >"$work/packages"
printf 'Go %s\t%s\t%s\n' "$(go env GOVERSION)" "$(go env GOROOT)" "$(go env GOROOT)" >>"$work/packages"
awk -F'\t' -v OFS='\t' 'NF { for (dir = $3; ; sub("/[^/]*$", "", dir)) { print dir, $2, $1; if (dir == $2) break } }' \
	"$work/packages" | sort -u >"$work/directories"

cut -f1 "$work/directories" | xargs -d '\n' sh -c 'find "$@" -maxdepth 1 -type f ! -name "*.go" ! -name "*.sh" \( \
	-iname "*licen[cs]e*" -o -iname "*notice*" -o -iname "copying*" -o -iname "copyright*" -o -iname "patents*" \)' sh |
	xargs -d '\n' sha256sum >"$work/sums"

# MODULE VERSION, the path in the module, the sum and the file; a module without any is an error.
awk -F'\t' -v OFS='\t' '
	NR == FNR { root[$1] = $2; module[$1] = $3; missing[$3]; next }
	{
		file = substr($0, 67)
		dir = file
		sub("/[^/]*$", "", dir)
		delete missing[module[dir]]
		print module[dir], substr(file, length(root[dir]) + 2), substr($0, 1, 64), file
	}
	END { for (name in missing) { print "licenses: " name " has no licence" >"/dev/stderr"; exit 1 } }
' "$work/directories" "$work/sums" >"$work/files"

sort "$work/files" | awk -F'\t' '
	!($3 in names) { order[++texts] = $3; file[$3] = $4 }
	{ names[$3] = names[$3] $1 ": " $2 "\n" }
	END {
		print "The program byre is linked from the modules below; \"go mod download -json MODULE@VERSION\""
		print "gets the source of one. Each text stands below the files of modules that have it."
		for (i = 1; i <= texts; i++) {
			printf "\n%s\n%s\n", "================================================================================", names[order[i]]
			while ((status = (getline line <file[order[i]])) > 0) print line
			if (status < 0) { print "licenses: cannot read " file[order[i]] >"/dev/stderr"; exit 1 }
			close(file[order[i]])
		}
	}
' >"$1/THIRD-PARTY-LICENSES"
