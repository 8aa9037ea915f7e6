package server_test

import (
	"context"
	"net/http"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"byre/sqlstore"
	"byre/sqlstore/dbtest"
	"byre/sqlstore/etcd/server"
	"byre/watch"
)

// fixture is a server on an empty database, with a client of etcd.
type fixture struct {
	*testing.T
	*clientv3.Client
	driver sqlstore.Driver
	server *server.Server
	url    string
}

// onEach runs a test with a server on a database of each kind.
func onEach(t *testing.T, test func(fixture)) {
	for _, kind := range dbtest.Kinds() {
		t.Run(kind.Name, func(t *testing.T) {
			driver := kind.Open(t)
			t.Cleanup(func() { _ = driver.Close() })
			test(serve(t, driver, sqlstore.Options{}))
		})
	}
}

// serve runs a server until the test ends.
func serve(t *testing.T, driver sqlstore.Driver, options sqlstore.Options) fixture {
	t.Helper()
	feed := watch.New(driver, watch.Options{})
	options.Publish = feed.Publish
	store := sqlstore.New(driver, options)
	dbtest.Serve(t, "store", store.Run)
	dbtest.Serve(t, "feed", feed.Run)
	listeners, err := server.Listen(t.Context(), server.Listening{ClientURLs: []string{"http://127.0.0.1:0"}})
	if err != nil {
		t.Fatal(err)
	}
	s := server.New(server.Options{Store: store, Feed: feed, ClientURLs: listeners.URLs})
	if err := s.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	dbtest.Serve(t, "server", s.Run)
	dbtest.Serve(t, "listeners", func(ctx context.Context) error {
		return s.Serve(ctx, listeners, s.Handler(http.NotFoundHandler()))
	})
	return fixture{T: t, Client: connect(t, listeners.URLs[0]), driver: driver, server: s, url: listeners.URLs[0]}
}

func connect(t *testing.T, url string) *clientv3.Client {
	t.Helper()
	client, err := clientv3.New(clientv3.Config{
		Endpoints: []string{url}, DialTimeout: 10 * time.Second, Logger: zap.NewNop(),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	return client
}

// put puts a key and returns the revision.
func (f fixture) put(key, value string, options ...clientv3.OpOption) int64 {
	f.Helper()
	response, err := f.Put(f.Context(), key, value, options...)
	if err != nil {
		f.Fatal(err)
	}
	return response.Header.Revision
}

func (f fixture) get(key string, options ...clientv3.OpOption) *clientv3.GetResponse {
	f.Helper()
	response, err := f.Get(f.Context(), key, options...)
	if err != nil {
		f.Fatal(err)
	}
	return response
}

// Context returns the test's, not the client's.
func (f fixture) Context() context.Context { return f.T.Context() }
