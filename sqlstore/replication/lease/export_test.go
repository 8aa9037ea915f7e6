package lease

import "context"

// Renew renews the lease once.
func (l *Lease) Renew(ctx context.Context) error { return l.renew(ctx, func(*State) {}) }
