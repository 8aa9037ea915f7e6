package sqlstore_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"byre/sqlstore"
	"byre/sqlstore/storetest"
)

// sized is a driver whose size a test sets.
type sized struct {
	*storetest.Model
	used atomic.Int64
}

func (s *sized) Size(context.Context) (int64, error) { return s.used.Load(), nil }
func (s *sized) Used(context.Context) (int64, error) { return s.used.Load(), nil }

// A database that has reached its quota refuses writes that make it larger, until enough
// space is free.
func TestQuota_RefusesGrowthUntilThereIsSpace(t *testing.T) {
	t.Parallel()
	driver := &sized{Model: storetest.NewModel()}
	store := sqlstore.New(driver, sqlstore.Options{Quota: 1000, QuotaInterval: time.Millisecond})
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- store.Run(ctx) }()
	defer func() { stop(); <-ended }()
	key := func(name string) sqlstore.Key { return sqlstore.Key{Resource: "pods", Name: name} }
	commit := func(w sqlstore.Write) (int64, error) {
		change, err := store.Commit(t.Context(), w)
		return change.Revision, err
	}
	for _, name := range []string{"a", "b"} {
		if _, err := commit(sqlstore.Write{Op: sqlstore.Create, Key: key(name), Value: []byte("{}")}); err != nil {
			t.Fatal(err)
		}
	}
	until := func(exceeded bool) {
		t.Helper()
		storetest.Eventually(t, "quota", func() bool { return (store.Quota() != nil) == exceeded })
	}
	driver.used.Store(1000)
	until(true)
	if err := store.Quota(); !errors.Is(err, sqlstore.ErrQuota) || !strings.Contains(err.Error(), "1000 bytes") {
		t.Errorf("the quota says %v", err)
	}
	for name, test := range map[string]struct {
		write sqlstore.Write
		want  error
	}{
		"create": {sqlstore.Write{Op: sqlstore.Create, Key: key("c"), Value: []byte("{}"), Grows: true},
			sqlstore.ErrQuota},
		"kept alive": {sqlstore.Write{Op: sqlstore.Create, Key: key("lease"), Value: []byte("{}")}, nil},
		"growing": {sqlstore.Write{Op: sqlstore.Update, Key: key("a"), Replaces: 1, Value: []byte("{}"), Grows: true},
			sqlstore.ErrQuota},
		"not growing":  {sqlstore.Write{Op: sqlstore.Update, Key: key("a"), Replaces: 1, Value: []byte("{}")}, nil},
		"delete":       {sqlstore.Write{Op: sqlstore.Delete, Key: key("b"), Replaces: 2}, nil},
		"not storable": {sqlstore.Write{Op: sqlstore.Create, Key: key(""), Value: []byte("{}")}, sqlstore.ErrInvalid},
	} {
		if _, err := commit(test.write); !errors.Is(err, test.want) {
			t.Errorf("%s: %v, want %v", name, err, test.want)
		}
	}
	if _, err := store.CompactOlder(t.Context(), sqlstore.Compaction{UpTo: 3}); err != nil {
		t.Errorf("compact: %v", err)
	}
	driver.used.Store(960) // not enough space
	if _, err := commit(sqlstore.Write{Op: sqlstore.Create, Key: key("c"), Value: []byte("{}"),
		Grows: true}); !errors.Is(err, sqlstore.ErrQuota) {
		t.Errorf("just below the quota: %v", err)
	}
	driver.used.Store(950)
	until(false)
	if _, err := commit(sqlstore.Write{Op: sqlstore.Create, Key: key("c"), Value: []byte("{}")}); err != nil {
		t.Errorf("below the quota: %v", err)
	}
}

// reserving is a driver on a disk that is full from the second batch on, until a test frees it.
type reserving struct {
	*storetest.Model
	begin               chan struct{}
	batches             atomic.Int32
	isInReserve, isFree atomic.Bool
}

func (r *reserving) Commit(ctx context.Context, batch []sqlstore.Write) ([]sqlstore.Outcome, error) {
	<-r.begin
	if r.batches.Add(1) == 2 {
		r.isInReserve.Store(true)
		return nil, sqlstore.ErrDiskFull
	}
	return r.Model.Commit(ctx, batch)
}

func (r *reserving) InReserve() bool {
	if r.isFree.Load() {
		r.isInReserve.Store(false)
	}
	return r.isInReserve.Load()
}

// While the reserve of a full disk is in use, deletes are committed, those of the batch that met the
// full disk too, and writes that make the database larger fail.
func TestReserve_IsForDeletes(t *testing.T) {
	t.Parallel()
	driver := &reserving{Model: storetest.NewModel(), begin: make(chan struct{}, 100)}
	store := sqlstore.New(driver, sqlstore.Options{RetryInterval: time.Millisecond})
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- store.Run(ctx) }()
	defer func() { stop(); close(driver.begin); <-ended }()
	key := func(name string) sqlstore.Key { return sqlstore.Key{Resource: "pods", Name: name} }
	create := func(name string) error {
		_, err := store.Commit(t.Context(),
			sqlstore.Write{Op: sqlstore.Create, Key: key(name), Value: []byte("{}"), Grows: true})
		return err
	}
	driver.begin <- struct{}{}
	if err := create("a"); err != nil {
		t.Fatal(err)
	}
	// The writer waits in Commit with one of the two, or with both.
	results := make(chan error, 2)
	go func() { results <- create("b") }()
	deleted := make(chan error, 1)
	go func() {
		_, err := store.Commit(t.Context(), sqlstore.Write{Op: sqlstore.Delete, Key: key("a"), Replaces: 1})
		deleted <- err
	}()
	for range 10 {
		driver.begin <- struct{}{}
	}
	if err := <-deleted; err != nil && !errors.Is(err, sqlstore.ErrDiskFull) {
		t.Errorf("delete: %v", err)
	}
	<-results
	if err := create("c"); !errors.Is(err, sqlstore.ErrDiskFull) || !errors.Is(err, sqlstore.ErrUnavailable) {
		t.Errorf("create: %v", err)
	}
	if _, err := store.Commit(t.Context(), sqlstore.Write{Op: sqlstore.Delete, Key: key("a"), Replaces: 1}); err != nil &&
		!errors.Is(err, sqlstore.ErrNotFound) {
		t.Errorf("delete: %v", err)
	}
	if store.Writable() == nil {
		t.Error("it counts as writable")
	}
	driver.isFree.Store(true)
	storetest.Eventually(t, "the database takes writes again", func() bool { return store.Writable() == nil })
	driver.begin <- struct{}{}
	if err := create("c"); err != nil {
		t.Errorf("create: %v", err)
	}
}
