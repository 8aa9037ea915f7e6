package postgres

import "context"

// IsDone is isDone, for tests.
func (d *Driver) IsDone(ctx context.Context, pid uint32) (bool, error) { return d.isDone(ctx, pid) }

// IsAlone is isAlone, for tests.
func (d *Driver) IsAlone() bool { return d.isAlone.Load() }
