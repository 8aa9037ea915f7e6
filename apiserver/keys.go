package apiserver

import (
	"context"
	"errors"
	"time"

	"k8s.io/klog/v2"

	"byre/apiserver/access/auth"
	"byre/apiserver/process/lifecycle"
)

// recordInterval is the time between two tries to record the keys.
const recordInterval = 10 * time.Second

// keyRecorder records the server's keys in the database. With adopt it also deletes the record that
// the database is a fork.
type keyRecorder struct {
	trust   *auth.TrustedKeys
	storage *storageBackend
	adopt   bool
	// tried: the first try is over. The server is ready after it: whoever has seen it ready finds
	// its keys recorded, unless the database takes no writes.
	tried *lifecycle.Signal
}

// run records the keys once the server can encrypt. It fails if another server has recorded keys
// meanwhile that this one does not trust.
func (k *keyRecorder) run(ctx context.Context) error {
	if !awaitChecks(ctx, k.storage.encryption.checks) {
		return nil
	}
	for {
		err := k.trust.Record(ctx, k.storage.Store)
		var untrusted *auth.UntrustedKeyError
		if errors.As(err, &untrusted) {
			return err
		}
		if err == nil && k.adopt {
			err = k.storage.deleteForkRecord(ctx)
		}
		k.tried.Signal()
		if err == nil {
			return nil
		}
		klog.V(2).InfoS("The keys of this server are not recorded yet", "err", err)
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(recordInterval):
		}
	}
}
