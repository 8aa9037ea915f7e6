package storage

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/klog/v2"

	"byre/apiserver/storage/encoding"
	"byre/sqlstore"
	"byre/watch"
)

// These messages are upstream's (storage/etcd3/errors.go), because clients show them.
const (
	expiredList     = "The resourceVersion for the provided list is too old."
	expiredWatch    = "The resourceVersion for the provided watch is too old."
	expiredContinue = "The provided continue parameter is too old " +
		"to display a consistent list result. You can start a new list without " +
		"the continue parameter."
	inconsistentContinue = "The provided continue parameter is too old " +
		"to display a consistent list result. You can start a new list without " +
		"the continue parameter, or use the continue token in this response to " +
		"retrieve the remainder of the results. Continuing with the provided " +
		"token results in an inconsistent list - objects that were created, " +
		"modified, or deleted between the time the first chunk was returned " +
		"and now may show up in the list."

	// noSpace is etcd's message, which kube-apiserver passes on with status 500 and no
	// reason.
	noSpace = "etcdserver: mvcc: database space exceeded"
	// tooLargeObject is etcd's message for more than 1.5 MiB, which kube-apiserver passes on as well.
	tooLargeObject = "etcdserver: request is too large"
)

// retrySeconds is the Retry-After, in seconds, of the errors for a database that is
// unavailable and for a revision that does not exist yet.
const retrySeconds = 1

// errReplaced is the error of a request by what defined its resource before. It is not a conflict: upstream's handler
// of patches would try again, by what has just failed. Clients repeat a request whose answer has a Retry-After.
var errReplaced = apierrors.NewTooManyRequests(
	"what defines the resource has just changed: the request was not executed", retrySeconds)

// apiError is the one place that converts errors of the store to errors of the API.
func (r *records) apiError(err error, path string) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, sqlstore.ErrNotFound):
		return storage.NewKeyNotFoundError(path, 0)
	case errors.Is(err, sqlstore.ErrExists):
		return storage.NewKeyExistsError(path, 0)
	case errors.Is(err, sqlstore.ErrConflict):
		return storage.NewResourceVersionConflictsError(path, 0)
	case errors.Is(err, sqlstore.ErrRequired):
		return errReplaced
	case errors.Is(err, sqlstore.ErrInUse):
		return apierrors.NewForbidden(r.groupResource, path[strings.LastIndexByte(path, '/')+1:],
			errors.New("it has instances, which are deleted before it"))
	case errors.Is(err, sqlstore.ErrInvalid):
		return apierrors.NewBadRequest(err.Error())
	case errors.Is(err, sqlstore.ErrQuota):
		// A Status: of another error, upstream's writer of answers would log a line for
		// each request.
		return &apierrors.StatusError{ErrStatus: metav1.Status{Status: metav1.StatusFailure,
			Code: http.StatusInternalServerError, Message: noSpace}}
	case errors.Is(err, sqlstore.ErrUnavailable), errors.Is(err, sqlstore.ErrClosed), errors.Is(err, watch.ErrClosed):
		unavailable := apierrors.NewServiceUnavailable(unavailableMessage(err))
		unavailable.ErrStatus.Details = &metav1.StatusDetails{RetryAfterSeconds: retrySeconds}
		return unavailable
	case errors.Is(err, sqlstore.ErrUnknown):
		// Invariant: no Retry-After, in the body or as a header. client-go repeats
		// every request whose answer has one, so a create by generateName would
		// make a second object.
		return apierrors.NewTimeoutError("the database did not confirm the write: it took effect once or not at all", 0)
	}
	var status apierrors.APIStatus
	var corrupt *encoding.CorruptError
	switch {
	case errors.As(err, &status), errors.As(err, &corrupt), errors.Is(err, context.Canceled):
		return err
	case errors.Is(err, context.DeadlineExceeded):
		// Upstream's writer of answers would make 500 of it.
		return apierrors.NewTimeoutError("request did not complete within requested timeout", 0)
	}
	// The client does not get the database's message, which may hold SQL or paths.
	klog.ErrorS(err, "The database failed", "path", path)
	return apierrors.NewInternalError(errors.New(sqlstore.Public(err)))
}

// keyTooLong is the error for a name whose key is longer than the databases allow.
// Upstream's validation, which runs before, has shorter limits for most names.
func (k *keys) keyTooLong(key sqlstore.Key) error {
	gr := k.groupResource
	longest := max(sqlstore.MaxKeyBytes-(key.Len()-len(key.Name)), 0)
	return apierrors.NewInvalid(schema.GroupKind{Group: gr.Group, Kind: gr.Resource}, key.Name,
		field.ErrorList{field.TooLong(field.NewPath("metadata", "name"), key.Name, longest)})
}

// unavailableMessage returns the message of a 503. It contains the cause where a client
// may read it.
func unavailableMessage(err error) string {
	message := sqlstore.ErrUnavailable.Error()
	var cause *sqlstore.Cause
	if errors.As(err, &cause) {
		return message + ": " + cause.Error()
	}
	return message
}

// tooLarge is the error for a revision that does not exist yet.
func (r *records) tooLarge(asked int64) error {
	return storage.NewTooLargeResourceVersionError(uint64(asked), uint64(r.feed.Revision()), retrySeconds)
}

// expired is the error for a list at a compacted revision. For a paged list the error
// has a continue token that continues at the latest revision.
func expired(start, path string, paging bool) error {
	if !paging {
		return apierrors.NewResourceExpired(expiredList)
	}
	token, err := storage.EncodeContinue(start, path, -1)
	if err != nil {
		return apierrors.NewResourceExpired(expiredContinue)
	}
	status := apierrors.NewResourceExpired(inconsistentContinue)
	status.ErrStatus.ListMeta.Continue = token
	return status
}

// keyError is ReadError for the request of one object. It names a corrupt object by its key
// without etcd's prefix, as upstream's corruptObjectDeleter does.
func keyError(err error, path string) error {
	return encoding.ReadError(err, strings.TrimPrefix(path, DefaultKeyPrefix))
}

// corruptObjects collects the objects of a list that can't be read, as upstream's
// corruptObjErrAggregator does (k8s.io/apiserver/pkg/storage/etcd3).
type corruptObjects struct {
	causes []metav1.StatusCause
	// stop is the error that ended the list before its last object, if one did.
	stop error
}

// maxCorruptObjects is the greatest number of corrupt objects that an error names;
// upstream's value.
const maxCorruptObjects = 100

var errTooManyCorrupt = errors.New("too many errors, the list is truncated")

// add records an error. It returns false if the list must end.
func (c *corruptObjects) add(err error, path string) bool {
	var corrupt *encoding.CorruptError
	isCorrupt := errors.As(err, &corrupt)
	if !isCorrupt || !encoding.AllowsUnsafeDeletion() {
		if c.stop = encoding.ReadError(err, path); isCorrupt && corrupt.IsEncrypted {
			c.stop = storage.NewInternalError(fmt.Errorf("unable to transform key %q: %w", path, corrupt.Err))
		}
		return false
	}
	c.causes = append(c.causes, metav1.StatusCause{
		Type:    metav1.CauseTypeUnexpectedServerResponse,
		Field:   path,
		Message: storage.NewCorruptObjError(path, err).Error(),
	})
	if len(c.causes) == maxCorruptObjects {
		c.stop = errTooManyCorrupt
	}
	return c.stop == nil
}

func (c *corruptObjects) err(gr schema.GroupResource) error {
	if len(c.causes) == 0 {
		return c.stop
	}
	message := fmt.Sprintf("failed to read one or more %s from the storage: %s", gr, c.causes[0].Message)
	if n := len(c.causes); n > 1 {
		message += fmt.Sprintf(" (and %d more)", n-1)
	}
	causes := c.causes
	switch {
	case errors.Is(c.stop, errTooManyCorrupt):
		causes = append(causes, metav1.StatusCause{Type: metav1.CauseTypeTooMany, Message: c.stop.Error()})
	case c.stop != nil:
		causes = append(causes, metav1.StatusCause{Type: metav1.CauseTypeUnexpectedServerResponse, Message: c.stop.Error()})
	}
	return &apierrors.StatusError{ErrStatus: metav1.Status{
		Status:  metav1.StatusFailure,
		Code:    http.StatusInternalServerError,
		Reason:  metav1.StatusReasonStoreReadError,
		Message: message,
		Details: &metav1.StatusDetails{Group: gr.Group, Kind: gr.Resource, Name: "list", Causes: causes},
	}}
}

// watchError converts an error to the status of the ERROR event that ends a watch.
func (r *records) watchError(err error) error {
	if errors.Is(err, sqlstore.ErrCompacted) {
		return apierrors.NewResourceExpired(expiredWatch)
	}
	err = r.apiError(err, "")
	var api apierrors.APIStatus
	if !errors.As(err, &api) {
		return apierrors.NewInternalError(err)
	}
	return &apierrors.StatusError{ErrStatus: api.Status()}
}

// corruptDeletedError is the error for a deleted object whose last state can't be decoded.
func corruptDeletedError(err error) error {
	return &apierrors.StatusError{ErrStatus: metav1.Status{
		Status:  metav1.StatusFailure,
		Code:    http.StatusInternalServerError,
		Reason:  metav1.StatusReasonStoreReadError,
		Message: fmt.Sprintf("saw a DELETED event, but object data is corrupt - %v", err),
	}}
}
