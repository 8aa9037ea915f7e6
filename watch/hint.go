package watch

import "context"

// Listener is a Source that gets hints of new changes (sqlstore.Shared).
type Listener interface {
	// Listen calls hint for each hint until ctx ends or the connection breaks. A hint may
	// be late, lost or wrong. 0 means that hints may have been lost.
	Listen(ctx context.Context, hint func(revision int64)) error
}

// listen calls Listen again and again until ctx ends. The tail polls meanwhile, so that
// changes are only delayed if Listen fails.
func (f *Feed) listen(ctx context.Context, l Listener) {
	for {
		err := l.Listen(ctx, f.hint)
		if ctx.Err() != nil {
			return
		}
		f.opts.Logger.Debug("watch: listening ended; trying again", "error", err)
		if !sleep(ctx, f.opts.Interval) {
			return
		}
	}
}

// hint records that a revision exists, and has the tail read the changes up to it. With 0 it
// has the tail read the store's state.
func (f *Feed) hint(revision int64) {
	f.mu.Lock()
	f.pollRequested = f.pollRequested || revision == 0
	behind := f.pollRequested || revision > f.revision
	f.target = max(f.target, revision)
	f.mu.Unlock()
	if behind {
		signal(f.behind)
	}
}
