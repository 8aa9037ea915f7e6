package storage

import (
	"context"
	"errors"
	"time"

	"k8s.io/apiserver/pkg/storage/etcd3/metrics"

	"byre/sqlstore"
)

// getRecord, listRecords and writeRecord are the requests to the revision store. Each
// is counted in kube-apiserver's metrics of requests to etcd, such as
// etcd_request_duration_seconds, because dashboards and alerts query these.

func (s *Store) getRecord(ctx context.Context, key sqlstore.Key) (sqlstore.Record, int64, error) {
	start := time.Now()
	record, revision, err := s.cfg.Store.Get(ctx, key)
	s.recordRequest("get", start, err)
	return record, revision, err
}

func (s *Store) listRecords(ctx context.Context, q sqlstore.Query, yield func(sqlstore.Record) error) (sqlstore.ListResult, error) {
	start := time.Now()
	listed, err := s.cfg.Store.List(ctx, q, yield)
	s.recordRequest("list", start, err)
	return listed, err
}

func (s *Store) writeRecord(ctx context.Context, w sqlstore.Write) (sqlstore.Change, error) {
	start := time.Now()
	change, err := s.cfg.Store.Commit(ctx, w)
	s.recordRequest(string(w.Op), start, err)
	return change, err
}

// recordRequest counts a request, as an error where etcd would answer with one. etcd
// does not answer with an error for a missing key or a failed precondition.
func (s *Store) recordRequest(operation string, start time.Time, err error) {
	for _, answer := range []error{sqlstore.ErrNotFound, sqlstore.ErrExists, sqlstore.ErrConflict, sqlstore.ErrRequired, sqlstore.ErrInUse} {
		if errors.Is(err, answer) {
			err = nil
		}
	}
	metrics.RecordEtcdRequest(operation, s.cfg.GroupResource, err, start)
}
