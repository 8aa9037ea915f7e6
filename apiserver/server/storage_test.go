package server

import (
	"context"
	"fmt"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"byre/sqlstore"
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
