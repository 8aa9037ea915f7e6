package sqlstore_test

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"byre/sqlstore"
	"byre/sqlstore/storetest"
)

// A write names the revision that it replaces, and fails if the key is at another revision.
func Example() {
	ctx, stop := context.WithCancel(context.Background())
	store := sqlstore.New(storetest.NewModel(), sqlstore.Options{Publish: func([]sqlstore.Change) {}})
	var running sync.WaitGroup
	running.Go(func() { _ = store.Run(ctx) })
	defer func() { stop(); running.Wait() }()

	key := sqlstore.Key{Resource: "configmaps", Namespace: "default", Name: "settings"}
	created, err := store.Commit(ctx, sqlstore.Write{Op: sqlstore.Create, Key: key, Value: []byte(`{"data":{"a":"1"}}`)})
	if err != nil {
		fmt.Println(err)
		return
	}
	update := sqlstore.Write{Op: sqlstore.Update, Key: key, Replaces: created.Revision,
		Value: []byte(`{"data":{"a":"2"}}`)}
	if _, err := store.Commit(ctx, update); err != nil {
		fmt.Println(err)
		return
	}
	_, err = store.Commit(ctx, update)
	fmt.Println("a second time is a conflict:", errors.Is(err, sqlstore.ErrConflict))

	record, revision, err := store.Get(ctx, key)
	fmt.Println(record.Revision, revision, string(record.Value), err)
	// Output:
	// a second time is a conflict: true
	// 2 2 {"data":{"a":"2"}} <nil>
}
