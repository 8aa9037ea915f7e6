package watch

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"byre/sqlstore"
)

var (
	// ErrCompacted: the changes after the revision asked for are not in the
	// store's history any more, or the store was restored meanwhile.
	ErrCompacted = sqlstore.ErrCompacted
	// ErrClosed: the feed has stopped.
	ErrClosed = errors.New("feed is closed")
)

// Source is the part of a sqlstore.Driver that the feed reads.
type Source interface {
	List(ctx context.Context, q sqlstore.Query, yield func(sqlstore.Record) error) (sqlstore.Listed, error)
	Changes(ctx context.Context, after int64, limit int) ([]sqlstore.Change, error)
	State(ctx context.Context) (sqlstore.State, error)
}

// Listener is a Source that can say that there are new changes. Listen blocks
// until ctx ends or the connection breaks; a hint may be late, lost or wrong.
type Listener interface {
	Listen(ctx context.Context, hint func(revision int64)) error
}

// Options tune a Feed; the zero value is right for a shared database.
type Options struct {
	// SoleWriter says that no other process writes to the database, so that
	// everything comes by Publish, nothing is polled and Latest is free.
	SoleWriter bool
	// Interval bounds how late a change of another process is seen where no
	// hint comes; 0 means a second.
	Interval time.Duration
	// RingEvents and RingBytes bound the events kept in memory for each
	// resource, by number and by the bytes of replaced values; 0 means 4,096
	// and 8 MiB.
	RingEvents int
	RingBytes  int
	// Logger gets alarms and outages; nil means slog.Default().
	Logger *slog.Logger
}

// Feed follows one store. Its methods are safe for concurrent use.
type Feed struct{}

// New makes a Feed; it starts nothing.
func New(source Source, opts Options) *Feed { return &Feed{} }

// Run tails the store until ctx ends. It returns nil then.
func (f *Feed) Run(ctx context.Context) error { panic("in work") }

// Publish is told of changes that this process committed, in revision order.
// It does not block. It is meant for sqlstore.Options.Publish.
func (f *Feed) Publish(changes []sqlstore.Change) { panic("in work") }

// Revision is the last revision applied; 0 before Run has read the first.
func (f *Feed) Revision() int64 { panic("in work") }

// WaitFor waits until the feed has applied revision.
func (f *Feed) WaitFor(ctx context.Context, revision int64) error { panic("in work") }

// Latest returns the last revision as of now (or a later one), applied.
func (f *Feed) Latest(ctx context.Context) (int64, error) { panic("in work") }
