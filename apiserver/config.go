package apiserver

import (
	"context"

	"k8s.io/client-go/rest"

	"byre/apiserver/delegation"
	"byre/apiserver/options"
	"byre/sqlstore"
	"byre/sqlstore/replication"
)

// Config is what New needs.
type Config struct {
	Options options.Completed
	// OpenDatabase opens the database that the options name, after it has migrated the
	// database to the program's schema.
	OpenDatabase func(context.Context, options.StoreOptions) (Database, error)
	// Aggregator delegates to this server, and this server delegates to
	// CustomResources; nil for none.
	Aggregator, CustomResources delegation.NewServer
	// KeepViews, unless nil, runs beside the server until ctx ends. Its requests with loopback are the server's own.
	KeepViews func(ctx context.Context, database Database, loopback *rest.Config) error
}

// Database is an open database.
type Database struct {
	Driver sqlstore.Driver
	// Kind is "sqlite" or "postgres", Name the file or the server, without secrets, and
	// Schema the version of its tables, for the log and the metric byre_store_info.
	Kind, Name string
	Schema     int
	// Shared says that other processes may write to it too.
	Shared bool
	// ReadSnapshot calls read with a snapshot of the whole store, and RecordBackup replaces what
	// Driver.LastBackup returns.
	ReadSnapshot func(ctx context.Context, read func(sqlstore.Snapshot) error) error
	RecordBackup func(context.Context, sqlstore.LastBackup) error
	// Replication is what copies it; nil if nothing does.
	Replication *replication.Replicator
}
