package objectstore

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
		for item := range s.selection(ctx, &l.opts.Predicate).all(s.inside(ctx, l, candidates)) {
			if (item.value || item.err != nil) && !yield(item.entry, item.err) {
				return
			}
		}
	}
}

// firstMatches is how many entries are compared with a predicate before other processors
// help: it takes less than half a microsecond where the labels are known.
const firstMatches = 256

// selection compares entries with a predicate.
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
		sequential: s.cfg.DecodeAhead != nil || everything(p),
	}
}

// inside yields the candidates that may belong to the page and may have the labels that the
// predicate demands, until ctx ends.
func (s *Store) inside(ctx context.Context, l *listRequest, candidates iter.Seq[*watch.Entry]) iter.Seq2[*watch.Entry, error] {
	return func(yield func(*watch.Entry, error) bool) {
		n := 0
		demanded := demandedLabels(&l.opts.Predicate)
		for e := range s.ahead(ctx, candidates) {
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
