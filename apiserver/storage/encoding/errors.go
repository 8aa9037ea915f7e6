package encoding

import (
	"errors"
	"fmt"
	"slices"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/apiserver/pkg/features"
	"k8s.io/apiserver/pkg/storage"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
)

// CorruptError says that a stored value cannot be decrypted or decoded.
type CorruptError struct {
	// IsEncrypted is true if the value could not be decrypted; else it could not be decoded.
	IsEncrypted bool
	Revision    int64
	Err         error
}

// ConversionError says that a stored value could not be converted to the version that is read: what converts it, such
// as a webhook, failed or refused. The value itself is not corrupt.
type ConversionError struct{ Err error }

// Unwrap returns the reason.
func (e *ConversionError) Unwrap() error { return e.Err }

// Error is the reason.
func (e *ConversionError) Error() string { return e.Err.Error() }

// Unwrap returns the reason.
func (e *CorruptError) Unwrap() error { return e.Err }

// Error has upstream's words.
func (e *CorruptError) Error() string {
	what := "object not decodable"
	if e.IsEncrypted {
		what = "data from the storage is not transformable"
	}
	return fmt.Sprintf("%s revision=%d: %v", what, e.Revision, e.Err)
}

// IsOfAbsentPlugin reports whether an error says that a KMS plugin is away: the value may be read later. A plugin that
// refuses has lost the key.
func IsOfAbsentPlugin(err error) bool {
	s, isPlugins := status.FromError(err)
	return isPlugins && slices.Contains([]codes.Code{codes.Unavailable, codes.DeadlineExceeded, codes.Canceled, codes.ResourceExhausted, codes.Aborted}, s.Code())
}

// AllowsUnsafeDeletion reports whether errors name corrupt objects, so that an administrator
// can delete them without reading them (KEP-3926).
func AllowsUnsafeDeletion() bool {
	return utilfeature.DefaultFeatureGate.Enabled(features.AllowUnsafeMalformedObjectDeletion)
}

// ReadError is the error that a caller gets for a value that can't be read.
func ReadError(err error, path string) error {
	var corrupt *CorruptError
	switch {
	case !errors.As(err, &corrupt):
		return err
	case AllowsUnsafeDeletion():
		return storage.NewCorruptObjError(path, err)
	case corrupt.IsEncrypted:
		return storage.NewInternalError(corrupt.Err)
	}
	return corrupt.Err
}

// undecodableError is the error that a caller gets for an object that it has just written
// and that can't be decoded. It contains the decoder's reason, and nothing about the
// storage.
func undecodableError(err error) error {
	var corrupt *CorruptError
	if errors.As(err, &corrupt) {
		return corrupt.Err
	}
	return err
}
