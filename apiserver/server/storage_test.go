package server

import (
	"context"
	"fmt"
	"math"
	"net/http"
	"net/http/httptest"
	"runtime"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"byre/apiserver/process"
	"byre/apiserver/storage"
	"byre/sqlstore"
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
