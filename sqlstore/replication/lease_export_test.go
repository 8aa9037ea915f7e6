package replication

import (
	"context"

	"github.com/minio/minio-go/v7"
)

// Renew renews the lease once.
func (l *Lease) Renew(ctx context.Context) error { return l.renew(ctx, func(*LeaseState) {}) }

// Remove deletes the object, as an operator does.
func (o *LeaseObject) Remove(ctx context.Context) error {
	return o.service.RemoveObject(ctx, o.bucket, o.key, minio.RemoveObjectOptions{})
}
