package e2e

import (
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/rogpeppe/go-internal/testscript"
)

// makeLargeDefinition writes a definition of larges.$NS.example.com that is a
// number of kilobytes long.
func makeLargeDefinition(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: largedefinition FILE KILOBYTES")
	}
	kilobytes, err := strconv.Atoi(args[1])
	ts.Check(err)
	group := ts.Getenv("NS") + ".example.com"
	var text strings.Builder
	fmt.Fprintf(&text, `apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: larges.%[1]s}
spec:
  group: %[1]s
  scope: Namespaced
  names: {plural: larges, kind: Large}
  versions:
  - name: v1
    served: true
    storage: true
    schema:
      openAPIV3Schema:
        type: object
        properties:
          spec:
            type: object
            properties:
`, group)
	for i := 0; text.Len() < kilobytes*1000; i++ {
		fmt.Fprintf(&text,
			"              field%05d: {type: object, description: %q, properties: {name: {type: string}, count: {type: integer}}}\n",
			i, strings.Repeat(fmt.Sprintf("What field %d is good for. ", i), 8))
	}
	ts.Check(os.WriteFile(ts.MkAbs(args[0]), []byte(text.String()), 0o600))
}
