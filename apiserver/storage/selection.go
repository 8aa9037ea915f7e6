package storage

import (
	"context"
	"iter"

	"k8s.io/apiserver/pkg/storage"

	"byre/watch"
)

// contextInterval is the number of entries between two checks of the request's context.
const contextInterval = 256

// selectEntries yields the candidates that the predicate selects.
func (s *Store) selectEntries(ctx context.Context, l *listRequest, candidates iter.Seq[*watch.Entry]) iter.Seq2[*watch.Entry, error] {
	return func(yield func(*watch.Entry, error) bool) {
		for item := range s.selection(ctx, &l.opts.Predicate).all(s.candidatesInPage(ctx, l, candidates)) {
			if (item.value || item.err != nil) && !yield(item.entry, item.err) {
				return
			}
		}
	}
}

// firstMatches is how many entries the reader's goroutine compares with a predicate
// before other goroutines help. A comparison takes less than half a microsecond where
// the labels are known.
const firstMatches = 256

// selection compares the entries of a list with a predicate.
func (s *Store) selection(ctx context.Context, p *storage.SelectionPredicate) parallel[bool] {
	n := 0
	return parallel[bool]{
		find: func(e *watch.Entry) (bool, bool) {
			if n++; n > firstMatches {
				return false, false
			}
			ok, err := s.matches(ctx, p, e)
			return ok, err == nil
		},
		make:       func(e *watch.Entry) (bool, error) { return s.matches(ctx, p, e) },
		sequential: s.cfg.DecodeAhead != nil || selectsEverything(p),
	}
}

// candidatesInPage yields the candidates that are not outside the page and may have the labels
// that the predicate demands. When ctx ends, it yields an error and stops.
func (s *Store) candidatesInPage(ctx context.Context, l *listRequest, candidates iter.Seq[*watch.Entry]) iter.Seq2[*watch.Entry, error] {
	return func(yield func(*watch.Entry, error) bool) {
		n := 0
		demanded := demandedLabels(&l.opts.Predicate)
		for e := range s.withDecodeAhead(ctx, l, candidates) {
			if n++; n%contextInterval == 0 && ctx.Err() != nil {
				yield(nil, timedOut(l.path))
				return
			}
			if s.mayHave(e, demanded) && !l.isOutside(e) && !yield(e, nil) {
				return
			}
		}
	}
}

func timedOut(path string) error {
	return storage.NewTimeoutError(path, "request did not complete within requested timeout")
}
