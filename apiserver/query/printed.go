package query

import (
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

// printedColumns are what kubectl get prints of a built-in resource, from fields, as "name=path"; "?" marks
// an integer.
var printedColumns = map[string]string{
	"pods": "phase=status.phase ip=status.podIP node=spec.nodeName nominated_node=status.nominatedNodeName",
}

// printed returns the columns that kubectl get prints of a built-in resource.
func printed(r schema.GroupResource) (columns []Column) {
	for field := range strings.FieldsSeq(printedColumns[r.String()]) {
		name, path, _ := strings.Cut(field, "=")
		columns = append(columns, NewColumn(name, Text, "", strings.Split(path, ".")...))
	}
	return columns
}
