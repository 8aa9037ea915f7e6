package server

import (
	"context"
	"fmt"
	"math"
	"net/http"
	"net/http/httptest"
	"runtime"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"byre/apiserver/process"
	"byre/apiserver/storage"
	"byre/sqlstore"
	"byre/sqlstore/dbtest"
	"byre/sqlstore/storetest"
)

func TestStorageBackend_RaisesTheAlarmIfTheFileIsDamaged(t *testing.T) {
	stopped, stop := context.WithCancel(t.Context())
	stop()
	for _, test := range []struct {
		ctx   context.Context
		err   error
		alarm float64
	}{
		{t.Context(), nil, 0},
		{stopped, context.Canceled, 0},
		{t.Context(), sqlstore.ErrUnavailable, 0},
		{t.Context(), fmt.Errorf("%w: page 9", sqlstore.ErrDamaged), 1},
	} {
		s := &storageBackend{damaged: prometheus.NewGauge(prometheus.GaugeOpts{Name: "damaged"})}
		s.database.CheckFile = func(context.Context) error { return test.err }
		if err := s.checkFile(test.ctx); err != nil || testutil.ToFloat64(s.damaged) != test.alarm {
			t.Errorf("%v: the metric is %v, %v", test.err, testutil.ToFloat64(s.damaged), err)
		}
	}
}

// Budgets are not negative on machines of 32 bits either, whatever the limit is: control groups
// of version 1 have one of almost 2^63 where there is none.
func TestBudgets_AreNotNegative(t *testing.T) {
	t.Parallel()
	for limit, state := range map[int64]int64{
		0: 0, 1 << 20: 1 << 18, 8 << 30: 2 << 30, 9223372036854771712: 9223372036854771712 / 4,
	} {
		if got := int64(stateBytes(limit)); got != min(state, math.MaxInt) {
			t.Errorf("of a limit of %d, the state gets %d", limit, got)
		}
	}
	for _, c := range []struct{ flag, limit, machine, want int64 }{
		{5, 1 << 40, 1 << 40, 5},
		{0, 0, 0, 64 << 20},
		{0, 1 << 30, 1 << 40, 64 << 20},
		{0, 1 << 35, 1 << 40, 1 << 30},
		{0, 9223372036854771712, 1 << 35, 1 << 30},
		{0, 0, 1 << 35, 1 << 30},
		{0, 1 << 35, 0, 1 << 30},
	} {
		if got := representationBytes(c.flag, c.limit, c.machine); got != c.want {
			t.Errorf("%v: representations get %d", c, got)
		}
	}
	if process.MachineMemory() < 1<<26 && runtime.GOOS == "linux" {
		t.Errorf("the machine has %d bytes", process.MachineMemory())
	}
}

// TestCompact_TakesDays: the request takes the durations that the command takes.
func TestCompact_TakesDays(t *testing.T) {
	t.Parallel()
	s := &storageBackend{Backend: storage.Backend{Store: sqlstore.New(storetest.NewModel(), sqlstore.Options{})}}
	for keep, want := range map[string]bool{"2d": true, "1h": true, "2x": false, "-1h": false, "": false} {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, CompactPath+"?keep="+keep, nil)
		if result, err := s.compact(r); result.Done != want || (err == nil) != want {
			t.Errorf("keep=%s: %+v, %v", keep, result, err)
		}
	}
}

// TestStorage_AuthorizesWithoutTheDatabase: what requests are authenticated and authorized with is in memory, though
// nobody has read it for an hour and the database is away.
func TestStorage_AuthorizesWithoutTheDatabase(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		driver := &lostDriver{Driver: storetest.NewModel()}
		options := Options{Store: NewStoreOptions()}
		options.Store.DataDir = dir
		s, err := openStorage(t.Context(), Config{
			Options:      Completed{Options: &options},
			OpenDatabase: func(context.Context, StoreOptions) (Database, error) { return Database{Driver: driver}, nil },
		}, encryption{})
		if err != nil {
			t.Fatal(err)
		}
		dbtest.Serve(t, "feed", s.Feed.Run)
		read := func() {
			t.Helper()
			for _, resource := range []sqlstore.Resource{
				{Resource: "serviceaccounts"},
				{Group: "rbac.authorization.k8s.io", Resource: "roles"},
				{Group: "rbac.authorization.k8s.io", Resource: "rolebindings"},
				{Group: "rbac.authorization.k8s.io", Resource: "clusterroles"},
				{Group: "rbac.authorization.k8s.io", Resource: "clusterrolebindings"},
			} {
				if _, err := s.Feed.Snapshot(t.Context(), resource); err != nil {
					t.Errorf("%s: %v", resource.Resource, err)
				}
			}
		}
		read()
		time.Sleep(time.Hour)
		driver.isLost.Store(true)
		read()
	})
}

// lostDriver lists nothing while the database is away.
type lostDriver struct {
	sqlstore.Driver

	isLost atomic.Bool
}

func (d *lostDriver) List(
	ctx context.Context, q sqlstore.Query, visit func(sqlstore.Record) error,
) (sqlstore.ListResult, error) {
	if d.isLost.Load() {
		return sqlstore.ListResult{}, sqlstore.ErrUnavailable
	}
	return d.Driver.List(ctx, q, visit)
}
