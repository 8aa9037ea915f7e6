package watch

import "context"

// Listener is a Source that can say that there are new changes
// (sqlstore.Notifier). Listen blocks until ctx ends or the connection breaks. A
// hint may be late, lost or wrong; 0 says that hints may have been lost.
type Listener interface {
	Listen(ctx context.Context, hint func(revision int64)) error
}

// listen keeps a Listener listening. The poll goes on meanwhile, so that a broken
// Listener costs a delay and nothing else.
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

// hint records that a revision exists, or, with 0, that others may, and has the tail
// read them.
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
