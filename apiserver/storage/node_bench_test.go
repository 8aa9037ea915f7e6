package storage

import (
	"bytes"
	"context"
	"fmt"
	"runtime"
	"testing"

	"byre/sqlstore"
	"byre/sqlstore/dbtest"
)

// podsPerNode is the number of Pods that a list by node selects.
const podsPerNode = 25

// storedPod is a small Pod as a program of another encoding has stored it.
const storedPod = `{"kind":"Pod","apiVersion":"v1","metadata":{"name":"NAME","namespace":"NAMESPACE","uid":"00000000-0000-0000-0000-000000000000","labels":{"app":"bench"}},` +
	`"spec":{"containers":[{"name":"c","image":"i"}],"nodeName":"NODE"},"status":{"phase":"Running"}}`

// podsStored is a database with n Pods, spread over namespaces and nodes.
func podsStored(b testing.TB, n int, pod string) backend {
	return backend{"sqlite", func(t testing.TB) sqlstore.Driver {
		driver := dbtest.SQLite(t)
		const batch = 1000
		for from := 0; from < n; from += batch {
			writes := make([]sqlstore.Write, 0, batch)
			for i := from; i < min(n, from+batch); i++ {
				namespace, name, node := fmt.Sprintf("ns-%d", i%100), fmt.Sprintf("pod-%07d", i), fmt.Sprintf("node-%d", i/podsPerNode)
				value := bytes.ReplaceAll([]byte(pod), []byte("NAMESPACE"), []byte(namespace))
				value = bytes.ReplaceAll(bytes.ReplaceAll(value, []byte("NAME"), []byte(name)), []byte("NODE"), []byte(node))
				writes = append(writes, sqlstore.Write{
					Op: sqlstore.Create, Key: sqlstore.Key{Resource: "pods", Namespace: namespace, Name: name},
					UID: name, Encoding: "test/v1", Value: value,
				})
			}
			if _, err := driver.Commit(context.Background(), writes); err != nil {
				b.Fatal(err)
			}
		}
		return driver
	}, true}
}

// BenchmarkListByNode lists the Pods of one node: the time must not grow with the number of
// Pods. It reports the processor time of all goroutines.
func BenchmarkListByNode(b *testing.B) {
	for _, n := range []int{10_000, 1_000_000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			if n > 100_000 && testing.Short() {
				b.Skip("makes a million Pods")
			}
			f := podStore(b, podsStored(b, n, storedPod))
			list := func(node int) {
				listPods(b, f, everythingOf(fmt.Sprintf("spec.nodeName=node-%d", node)), podsPerNode)
			}
			const nodes = 400
			at := func(i int) int { return i % nodes * (n / podsPerNode / nodes) }
			for i := range nodes { // the first list loads the Pods and makes the index, each decodes its Pods
				list(at(i))
			}
			runtime.GC() // the garbage of loading
			before := processTime(b)
			for i := 0; b.Loop(); i++ {
				list(at(i))
			}
			b.ReportMetric(float64(processTime(b)-before)/float64(b.N)/1000, "cpu-µs/op")
		})
	}
}
