package watch_test

import (
	"context"
	"fmt"
	"sync"

	"byre/sqlstore"
	"byre/sqlstore/storetest"
	"byre/watch"
)

// A store publishes each committed change to the feed; a subscription reads the changes of
// one resource.
func Example() {
	ctx, stop := context.WithCancel(context.Background())
	driver := storetest.NewModel()
	feed := watch.New(driver, watch.Options{})
	store := sqlstore.New(driver, sqlstore.Options{Publish: feed.Publish})
	var running sync.WaitGroup
	running.Go(func() { _ = store.Run(ctx) })
	running.Go(func() { _ = feed.Run(ctx) })
	defer func() { stop(); running.Wait() }()

	subscription, err := feed.Subscribe(ctx, watch.Interest{Resource: sqlstore.Resource{Resource: "pods"}}, 0)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer subscription.Close()

	key := sqlstore.Key{Resource: "pods", Namespace: "default", Name: "web"}
	created, err := store.Commit(ctx, sqlstore.Write{Op: sqlstore.Create, Key: key, Value: []byte(`{"kind":"Pod"}`)})
	if err != nil {
		fmt.Println(err)
		return
	}
	_, err = store.Commit(ctx, sqlstore.Write{Op: sqlstore.Delete, Key: key, Replaces: created.Revision})
	if err != nil {
		fmt.Println(err)
		return
	}
	for read := 0; read < 2; {
		events, _, err := subscription.Next(ctx)
		if err != nil {
			fmt.Println(err)
			return
		}
		for _, event := range events {
			fmt.Println(event.Revision, event.Old != nil, event.New != nil)
		}
		read += len(events)
	}
	// Output:
	// 1 false true
	// 2 true false
}
