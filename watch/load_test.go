package watch

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"byre/sqlstore"
	"byre/sqlstore/storetest"
)

// slowSource takes a pause after each record that it lists.
type slowSource struct {
	*source
	pause time.Duration
}

func (s *slowSource) List(ctx context.Context, q sqlstore.Query, yield func(sqlstore.Record) error) (sqlstore.ListResult, error) {
	return s.source.List(ctx, q, func(r sqlstore.Record) error {
		err := yield(r)
		time.Sleep(s.pause)
		return err
	})
}

// The feed logs how far the load of a resource is that takes longer than two seconds, and nothing
// of another one.
func TestLoad_LogsProgressAfterTwoSeconds(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		pause time.Duration
		want  string
	}{
		{600 * time.Millisecond, ""},
		{5 * time.Second, `level=INFO msg="watch: loading objects" group="" resource=pods objects=1 elapsed=2s of=3
level=INFO msg="watch: loading objects" group="" resource=pods objects=3 elapsed=12s of=3
`},
	} {
		synctest.Test(t, func(t *testing.T) {
			var log bytes.Buffer
			withoutTime := func(_ []string, a slog.Attr) slog.Attr {
				if a.Key == slog.TimeKey {
					return slog.Attr{}
				}
				return a
			}
			s := &source{Model: storetest.NewModel()}
			f := &fixture{t: t, source: s, Feed: New(&slowSource{s, test.pause}, Options{
				Interval: never, Logger: slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{ReplaceAttr: withoutTime})),
			})}
			for i := range 3 {
				f.put(pod("a", fmt.Sprint(i)), "1")
			}
			run(t, f)
			f.awaitUsage()
			if n := f.snapshot().Len(); n != 3 {
				t.Errorf("%d objects are loaded", n)
			}
			if log.String() != test.want {
				t.Errorf("with a pause of %v after each object the log has\n%swant\n%s", test.pause, &log, test.want)
			}
		})
	}
}
