package sqlite_test

import (
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"byre/sqlstore"
)

// BenchmarkVolatile writes what an idle cluster of one node writes in an hour: two controllers renew their Leases
// every 2 s, the node renews its own every 10 s and its status every 5 minutes. It reports what reaches the disk, with
// what remains in the log.
func BenchmarkVolatile(b *testing.B) {
	const hour, step, flush = 3600, 2, 15 // in seconds
	value := []byte(`{"spec":"` + strings.Repeat("x", 500) + `"}`)
	for name, isVolatile := range map[string]func(sqlstore.Key) bool{"volatile": isLease, "durable": nil} {
		b.Run(name, func(b *testing.B) {
			for range b.N {
				path := migrated(b)
				driver := openVolatile(b, path, isVolatile)
				before, revisions := writtenBytes(b), map[string]int64{}
				update := func(resource, name string) {
					w := sqlstore.Write{Op: sqlstore.Update, Key: sqlstore.Key{Resource: resource, Name: name}, UID: name,
						Encoding: "v1", Value: value, Replaces: revisions[name]}
					if w.Replaces == 0 {
						w.Op = sqlstore.Create
					}
					o, err := driver.Commit(b.Context(), []sqlstore.Write{w})
					if err != nil || o[0].Err != nil {
						b.Fatal(o, err)
					}
					revisions[name] = o[0].Revision
				}
				for now := 0; now < hour; now += step {
					update("leases", "controller-manager")
					update("leases", "scheduler")
					if now%10 == 0 {
						update("leases", "node")
					}
					if now%300 == 0 {
						update("nodes", "node-status")
					}
					if now%flush < step {
						if err := driver.Flush(); err != nil {
							b.Fatal(err)
						}
					}
				}
				driver.Close() // copies the log back
				b.ReportMetric(float64(writtenBytes(b)-before)/(1<<20), "MiB/h")
			}
		})
	}
}

// writtenBytes returns how many bytes this process has sent to a disk.
func writtenBytes(b *testing.B) int64 {
	b.Helper()
	text, err := os.ReadFile("/proc/self/io")
	if err != nil {
		b.Fatal(err)
	}
	n, err := strconv.ParseInt(string(regexp.MustCompile(`write_bytes: (\d+)`).FindSubmatch(text)[1]), 10, 64)
	if err != nil {
		b.Fatal(err)
	}
	return n
}
