package postgres

import "context"

// IsDone reports whether the server says that a session has nothing to do.
func (d *Driver) IsDone(ctx context.Context, pid uint32) bool { return d.isDone(ctx, pid) }
