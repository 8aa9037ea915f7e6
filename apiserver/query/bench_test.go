package query

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"

	"byre/sqlstore"
)

// BenchmarkQueries asks 100,000 Pods of 3.3 KB, on 1,000 Nodes and in 100 namespaces.
func BenchmarkQueries(b *testing.B) {
	f := newFixture(b)
	const pods, nodes, namespaces = 100_000, 1_000, 100
	const form = "v1.37/v1" // what this program writes
	padding := strings.Repeat(`{"name":"A_VARIABLE","value":"and what it is set to"},`, 44)
	var writes []sqlstore.Write
	for i := range pods {
		namespace, name, node := fmt.Sprintf("ns-%d", i%namespaces), fmt.Sprintf("pod-%d", i), fmt.Sprintf("node-%d", i%nodes)
		text := fmt.Sprintf(`{"kind":"Pod","apiVersion":"v1","metadata":{"name":%q,"namespace":%q,"uid":"u-%s","creationTimestamp":"2026-01-02T03:04:05Z","labels":{"app":"web-%d"},"ownerReferences":[{"apiVersion":"apps/v1","kind":"ReplicaSet","name":"rs-%d","uid":"x","controller":true}]},"spec":{"containers":[{"name":"c","image":"example.org/web:1","env":[%s{"name":"LAST","value":""}]}],"nodeName":%q,"priority":7,"hostNetwork":true},"status":{"conditions":[{"type":"PodScheduled","status":"True","lastTransitionTime":"2026-01-02T03:04:05Z"},{"type":"Ready","status":"False","lastTransitionTime":"2026-01-02T03:04:05Z","reason":"ContainersNotReady"}],"phase":"Running","podIP":"10.0.0.1"}}`,
			name, namespace, name, i%100, i%1000, padding, node)
		writes = append(writes, sqlstore.Write{Op: sqlstore.Create, Key: sqlstore.Key{Namespace: namespace, Resource: "pods", Name: name}, Value: []byte(text), UID: "u-" + name, Encoding: form})
	}
	for i := range nodes {
		name := fmt.Sprintf("node-%d", i)
		writes = append(writes, sqlstore.Write{Op: sqlstore.Create, Key: sqlstore.Key{Resource: "nodes", Name: name}, UID: "u-" + name, Encoding: form,
			Value: []byte(`{"kind":"Node","apiVersion":"v1","metadata":{"name":"` + name + `"},"spec":{"podCIDR":"10.0.0.0/24"}}`)})
	}
	for i := range 20 * namespaces {
		namespace, name := fmt.Sprintf("ns-%d", i%namespaces), fmt.Sprintf("service-%d", i)
		writes = append(writes, sqlstore.Write{Op: sqlstore.Create, Key: sqlstore.Key{Namespace: namespace, Resource: "services", Name: name}, UID: "u-" + name, Encoding: form,
			Value: fmt.Appendf(nil, `{"kind":"Service","apiVersion":"v1","metadata":{"name":%q,"namespace":%q},"spec":{"selector":{"app":"web-%d"}}}`, name, namespace, i%100)})
	}
	b.Logf("%d bytes a Pod", len(writes[0].Value))
	for _, w := range writes {
		if _, err := f.store.Commit(b.Context(), w); err != nil {
			b.Fatal(err)
		}
	}
	ctx := request.WithUser(b.Context(), &user.DefaultInfo{Name: "admin"})
	for _, c := range []struct{ name, sql string }{
		{"Count", "SELECT count(*) FROM pods"},
		{"ByKey", "SELECT phase FROM pods WHERE namespace = 'ns-7' AND name = 'pod-7'"},
		{"Namespace", "SELECT name, phase FROM pods WHERE namespace = 'ns-7'"},
		{"GroupedByNodeAndPhase", "SELECT node, phase, count(*) FROM pods GROUP BY node, phase"},
		{"ThirteenColumns", "SELECT sum(length(namespace) + length(name) + length(uid) + revision + length(created) + length(labels) + length(owner_kind) + length(owner_name) + length(node) + spec_priority + spec_host_network + length(phase) + length(ip)) FROM pods"},
		{"JoinNodes", "SELECT count(*), count(n.spec_pod_cidr) FROM pods p JOIN nodes n ON n.name = p.node"},
		{"JoinOnNode", "SELECT count(*) FROM nodes n JOIN pods p ON p.node = n.name WHERE p.phase = 'Running'"},
		{"LabelsInUse", "SELECT value, count(*) FROM labels WHERE resource = 'pods' AND key = 'app' GROUP BY value"},
		{"LabelsOfAll", "SELECT count(*) FROM labels WHERE key = 'app'"},
		{"LabelsInNamespace", "SELECT value, count(*) FROM labels WHERE namespace = 'ns-7' AND key = 'app' GROUP BY value"},
		{"LabelsOfOne", "SELECT key, value FROM labels WHERE resource = 'pods' AND namespace = 'ns-7' AND name = 'pod-7'"},
		{"JoinLabels", "SELECT count(*) FROM pods p JOIN labels l ON l.resource = 'pods' AND l.namespace = p.namespace AND l.name = p.name WHERE l.key = 'app' AND l.value = 'web-7'"},
		{"Owners", "SELECT owner, count(*) FROM owners WHERE resource = 'pods' GROUP BY owner"},
		{"NotReady", "SELECT count(*) FROM conditions WHERE resource = 'pods' AND type = 'Ready' AND status = 'False'"},
		{"Selectors", "SELECT count(*) FROM selectors WHERE resource = 'services'"},
		{"SelectorsInNamespace", "SELECT count(*) FROM selectors WHERE resource = 'services' AND namespace = 'ns-7'"},
		{"ServicesWithoutPods", "SELECT count(*) FROM services s WHERE NOT EXISTS (SELECT 1 FROM selectors e WHERE e.resource = 'services' AND e.namespace = s.namespace AND e.name = s.name)"},
		{"Containers", "SELECT image, count(*) FROM containers GROUP BY image"},
		{"EnvRefs", "SELECT count(*) FROM container_env_refs"},
	} {
		b.Run(c.name, func(b *testing.B) {
			for b.Loop() {
				q := &Query{Spec: Spec{SQL: c.sql}}
				if _, err := f.Create(ctx, q, func(context.Context, runtime.Object) error { return nil }, nil); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
