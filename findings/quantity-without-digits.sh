#!/bin/sh
# k8s.io/apimachinery v0.37.2, resource.ParseQuantity.
#
# Expected: a text that has no digit is refused, as the empty text is. The grammar in the documentation of Quantity says
# so: <signedNumber><suffix>, and a number has at least one digit.
# Seen: "Ki", "T", "+", "-" and "." are the quantity 0, without an error. A store that parses quantities by the grammar,
# in SQL for example, therefore disagrees with the API server about such values.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir"
export GOFLAGS=-mod=mod GOWORK=off
go mod init example.com/finding >/dev/null 2>&1
cat >main.go <<'GO'
package main

import (
	"fmt"

	"k8s.io/apimachinery/pkg/api/resource"
)

func main() {
	for _, text := range []string{"Ki", "T", "+", "-", ".", "", "KiKi"} {
		q, err := resource.ParseQuantity(text)
		fmt.Printf("%q: %s, refused: %t\n", text, q.String(), err != nil)
	}
}
GO
go get k8s.io/apimachinery@v0.37.2 >/dev/null 2>&1
go run . >seen
cat seen
cat >want <<'END'
"Ki": 0, refused: false
"T": 0, refused: false
"+": 0, refused: false
"-": 0, refused: false
".": 0, refused: false
"": 0, refused: true
"KiKi": 0, refused: true
END
cmp seen want
