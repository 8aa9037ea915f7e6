package storage

import (
	"context"
	"errors"

	"k8s.io/klog/v2"

	"byre/apiserver/storage/encoding"
	"byre/sqlstore"
	"byre/watch"
)

// isLostHistory reports whether err says that an entry can't be decrypted, and the entry is not
// the current state of its object. After a key was removed, the current objects are encrypted
// with another key, and the history still with the removed one. A reader of that history gets
// 410, as if it were compacted, and reads the current objects. A current object that can't be
// decrypted is an error of the server, as upstream's is.
func (r *records) isLostHistory(ctx context.Context, err error, e *watch.Entry) bool {
	var corrupt *encoding.CorruptError
	if !errors.As(err, &corrupt) || !corrupt.IsEncrypted {
		return false
	}
	current, _, getErr := r.store.Get(ctx, e.Key)
	if getErr == nil && current.Revision == e.Revision || getErr != nil && !errors.Is(getErr, sqlstore.ErrNotFound) {
		return false
	}
	r.reportLost(err, e)
	return true
}

// reportLost logs the key with which history is encrypted, once for each key.
func (r *records) reportLost(err error, e *watch.Entry) {
	encrypted, _ := encoding.UnwrapEncrypted(e.Value)
	key := string(encoding.ReadablePrefix(encrypted))
	if _, known := r.lostKeys.LoadOrStore(key, nil); !known {
		klog.ErrorS(err, "History is encrypted with a key that is not in the encryption configuration, so that watches and lists that need it end with 410: "+
			"put the key back until the history is compacted, or ignore this", "resource", r.groupResource, "key", key, "revision", e.Revision)
	}
}
