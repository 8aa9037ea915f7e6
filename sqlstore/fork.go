package sqlstore

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"
)

// Fork is the record, in a database, that its objects are those that another store had at a moment,
// and that it is not a cluster of its own yet: it tells a server to change and call nothing by itself.
type Fork struct {
	// Revision and Time are the moment, in the other store.
	Revision int64     `json:"revision"`
	Time     time.Time `json:"time"`
}

// ForkKey is the key of the record, which no API serves.
var ForkKey = Key{Group: "byre", Resource: "foundations", Owner: BuiltIn, Name: "fork"}

// forkRecord is the stored form of a Fork: JSON with apiVersion and kind.
type forkRecord struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Fork
}

// Record returns the record at a revision of the new store.
func (f Fork) Record(revision int64) (Record, error) {
	value, err := json.Marshal(forkRecord{"byre/1", "Fork", f})
	if err != nil {
		return Record{}, fmt.Errorf("fork: %w", err)
	}
	return Record{Key: ForkKey, Created: revision, Revision: revision, Encoding: "byre/1", Value: value}, nil
}

// ReadFork reads the record by the Get of a Driver. It returns nil if the database is no fork.
func ReadFork(ctx context.Context, get func(context.Context, Key) (Record, int64, error)) (*Fork, error) {
	record, _, err := get(ctx, ForkKey)
	if errors.Is(err, ErrNotFound) {
		return nil, nil
	}
	var stored forkRecord
	if err == nil {
		err = json.Unmarshal(record.Value, &stored)
	}
	if err != nil {
		return nil, fmt.Errorf("fork: %w", err)
	}
	return &stored.Fork, nil
}
