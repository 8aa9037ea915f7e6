package storetest

import (
	"bytes"
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"byre/sqlstore"
)

// benchValue is a value of about the size of a Pod.
var benchValue = append(append([]byte(`{"spec":"`), bytes.Repeat([]byte("0123456789abcdef"), 300)...), `"}`...)

// benchmark measures the operations of a driver. create returns a driver on an empty database. Each
// operation is one object.
func benchmark(b *testing.B, create func(testing.TB) sqlstore.Driver) {
	open := func(b *testing.B) sqlstore.Driver {
		driver := create(b)
		b.Cleanup(func() { driver.Close() })
		return driver
	}
	for _, size := range []int{1, 64, 512} {
		b.Run(fmt.Sprintf("Create/batch=%d", size), func(b *testing.B) { benchCreate(b, open(b), size) })
		b.Run(fmt.Sprintf("Update/batch=%d", size), func(b *testing.B) { benchUpdate(b, open(b), size) })
	}
	for _, clients := range []int{1, 64} {
		b.Run(fmt.Sprintf("Store/clients=%d", clients), func(b *testing.B) { benchStore(b, open(b), clients) })
	}
	b.Run("Get", func(b *testing.B) { benchGet(b, open(b)) })
	b.Run("List10000", func(b *testing.B) { benchList(b, open(b), 0) })
	b.Run("Page500of10000", func(b *testing.B) { benchList(b, open(b), 500) })
	b.Run("Changes1000", func(b *testing.B) { benchChanges(b, open(b)) })
}

func benchWrite(i int) sqlstore.Write {
	k := key(fmt.Sprintf("namespace-%d", i%50), fmt.Sprintf("deployment-7c5ddbdf54-%07d", i))
	w := create(k, "")
	w.UID, w.Value = fmt.Sprintf("01234567-89ab-cdef-0123-%012d", i), benchValue
	w.Author = sqlstore.Author{User: "system:serviceaccount:kube-system:replicaset-controller", Verb: "create",
		AuditID: w.UID}
	return w
}

// fill creates n objects.
func fill(b *testing.B, d sqlstore.Driver, n int) {
	b.Helper()
	for i := 0; i < n; i += 512 {
		var batch []sqlstore.Write
		for j := i; j < min(i+512, n); j++ {
			batch = append(batch, benchWrite(j))
		}
		fixture{TB: b, Driver: d}.commit(batch...)
	}
}

func benchCreate(b *testing.B, d sqlstore.Driver, size int) {
	f := fixture{TB: b, Driver: d}
	batch := make([]sqlstore.Write, 0, size)
	n := 0
	for b.Loop() {
		if batch = append(batch, benchWrite(n)); len(batch) == size {
			f.commit(batch...)
			batch = batch[:0]
		}
		n++
	}
	reportRate(b)
}

func benchUpdate(b *testing.B, d sqlstore.Driver, size int) {
	const objects = 2048
	fill(b, d, objects)
	f := fixture{TB: b, Driver: d}
	var at [objects]int64
	for i := range at {
		at[i] = int64(i + 1)
	}
	batch := make([]sqlstore.Write, 0, size)
	n := 0
	for b.Loop() {
		w := benchWrite(n % objects)
		w.Op, w.Replaces = sqlstore.Update, at[n%objects]
		n++
		if batch = append(batch, w); len(batch) < size {
			continue
		}
		for i, o := range f.commit(batch...) {
			if o.Err != nil {
				b.Fatal(o.Err)
			}
			at[(n-size+i)%objects] = o.Revision
		}
		batch = batch[:0]
	}
	reportRate(b)
}

func benchStore(b *testing.B, d sqlstore.Driver, clients int) {
	store, stop := start(fixture{TB: b, Driver: d}, sqlstore.Options{})
	defer stop()
	var next atomic.Int64
	var running sync.WaitGroup
	b.ResetTimer()
	for range clients {
		running.Go(func() {
			for i := next.Add(1); i <= int64(b.N); i = next.Add(1) {
				if _, err := store.Commit(context.Background(), benchWrite(int(i))); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	running.Wait()
	reportRate(b)
}

func benchGet(b *testing.B, d sqlstore.Driver) {
	fill(b, d, 10_000)
	b.ResetTimer()
	b.RunParallel(func(pb *testing.PB) {
		for i := 0; pb.Next(); i++ {
			if _, _, err := d.Get(context.Background(), benchWrite(i*7919%10_000).Key); err != nil {
				b.Error(err)
				return
			}
		}
	})
}

func benchList(b *testing.B, d sqlstore.Driver, limit int) {
	fill(b, d, 10_000)
	f := fixture{TB: b, Driver: d}
	for b.Loop() {
		f.list(sqlstore.Query{Range: sqlstore.Range{Resource: "pods"}, Limit: limit})
	}
}

func benchChanges(b *testing.B, d sqlstore.Driver) {
	fill(b, d, 10_000)
	for b.Loop() {
		if changes, err := d.Changes(b.Context(), sqlstore.ChangesQuery{After: 5000, Limit: 1000}); err != nil ||
			len(changes) != 1000 {
			b.Fatal(len(changes), err)
		}
	}
}

func reportRate(b *testing.B) {
	b.ReportMetric(float64(b.N)/max(b.Elapsed(), time.Nanosecond).Seconds(), "objects/s")
}
