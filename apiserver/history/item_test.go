package history

import (
	"fmt"
	"strings"
	"testing"

	"byre/sqlstore"
)

// BenchmarkItem makes the item of an update of a Deployment, of which a list or a watch has one.
func BenchmarkItem(b *testing.B) {
	s := &Storage{config: Config{Prefix: func(of sqlstore.Resource) string { return of.Resource }}}
	value := func(replicas int) []byte {
		container := `{"name":"c%d","image":"registry.example.com/shop/web:1.2.3","env":[{"name":"A","value":"1"},{"name":"B","value":"2"}],"resources":{"requests":{"cpu":"100m","memory":"64Mi"}},"ports":[{"containerPort":8080,"protocol":"TCP"}]}`
		return fmt.Appendf(nil, `{"kind":"Deployment","apiVersion":"apps/v1","metadata":{"name":"web","namespace":"shop","uid":"1d2e","resourceVersion":"%d","generation":%d,"labels":{"app":"web"},"managedFields":[%s]},`+
			`"spec":{"replicas":%d,"selector":{"matchLabels":{"app":"web"}},"template":{"metadata":{"labels":{"app":"web"}},"spec":{"containers":[%s,%s]}}},"status":{"replicas":1}}`,
			replicas, replicas, strings.TrimSuffix(strings.Repeat(`{"manager":"kubectl","operation":"Update","fieldsV1":{"f:spec":{"f:replicas":{},"f:template":{"f:spec":{"f:containers":{"k:{\"name\":\"c1\"}":{".":{},"f:image":{}}}}}}}},`, 4), ","),
			replicas, fmt.Sprintf(container, 1), fmt.Sprintf(container, 2))
	}
	key := sqlstore.Key{Group: "apps", Resource: "deployments", Namespace: "shop", Name: "web"}
	c := sqlstore.Change{Op: sqlstore.Update, Old: &sqlstore.Record{Key: key, Value: value(1)}, New: sqlstore.Record{Key: key, Value: value(2)}}
	for b.Loop() {
		if item := s.item(b.Context(), &c, false); len(item.Changed) != 1 {
			b.Fatal(item)
		}
	}
}
