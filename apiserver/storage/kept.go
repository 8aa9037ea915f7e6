package storage

import (
	"context"
	"sync/atomic"

	"k8s.io/apimachinery/pkg/runtime"
)

// Kept is what was kept last under a context: the object that its writer was given,
// with its encoding. It is empty until something is kept, and safe for concurrent use.
type Kept struct{ last atomic.Pointer[given] }

type given struct {
	object  runtime.Object
	encoded Encoded
}

type keptKey struct{}

// WithKept returns a context under which writes leave in the Kept what they keep.
func WithKept(ctx context.Context) (context.Context, *Kept) {
	k := &Kept{}
	return context.WithValue(ctx, keptKey{}, k), k
}

// Of returns the encoding of an object if it is the very one that a writer was given.
// That it was not changed since is for the caller to know.
func (k *Kept) Of(object runtime.Object) (Encoded, bool) {
	last := k.last.Load()
	if last == nil || last.object != object {
		return Encoded{}, false
	}
	return last.encoded, true
}

// keep notes what a writer is given.
func keep(ctx context.Context, object runtime.Object, w written, revision int64) {
	if k, ok := ctx.Value(keptKey{}).(*Kept); ok {
		k.last.Store(&given{object, Encoded{w.doc, revision}})
	}
}
