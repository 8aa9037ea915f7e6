package sqlstore_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"byre/sqlstore"
	"byre/sqlstore/storetest"
)

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
		_, err := store.Commit(t.Context(), sqlstore.Write{Op: sqlstore.Create, Key: key(name), Value: []byte("{}"), Grows: true})
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
	if _, err := store.Commit(t.Context(), sqlstore.Write{Op: sqlstore.Delete, Key: key("a"), Replaces: 1}); err != nil && !errors.Is(err, sqlstore.ErrNotFound) {
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
