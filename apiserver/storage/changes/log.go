package changes

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"iter"
	"strconv"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/storage/value"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/api/legacyscheme"

	"byre/apiserver/storage"
	"byre/apiserver/storage/encoding"
	"byre/apiserver/storage/moment"
	"byre/sqlstore"
	"byre/watch"
)

// Group and Resource are those of changes in the API, of which the authorizer is asked.
const (
	Group    = "history.byre.dev"
	Resource = "changes"
)

// Log is the changes of a store. All fields but Transformers and Types are required. It is safe for concurrent use.
type Log struct {
	Driver     sqlstore.Driver
	Authorizer authorizer.UnconditionalAuthorizer
	// Transformers gives the encryption of a resource; nil, or a nil result, means none.
	Transformers func(schema.GroupResource) value.Transformer
	// Prefix returns what the paths of a resource's objects begin with, with which their values
	// are encrypted: without "/registry/" before it, and without a slash at its end.
	Prefix func(sqlstore.Resource) string
	// Types returns the type of a resource's objects of a kind, by which paths name the elements of their lists. The
	// caller calls it while the server runs.
	Types func(context.Context, sqlstore.Resource, schema.GroupVersionKind) Type
}

// TypesOf returns the types of the objects of a resource.
func (l *Log) TypesOf(ctx context.Context, of sqlstore.Resource) Types {
	if l.Types == nil {
		return nil
	}
	return func(kind schema.GroupVersionKind) Type { return l.Types(ctx, of, kind) }
}

// Compare is CompareMasked of two states of an object, which Open has returned.
func (l *Log) Compare(ctx context.Context, key sqlstore.Key, before, after []byte) iter.Seq[*Difference] {
	return CompareMasked(key.Group, key.Resource, before, after, l.TypesOf(ctx, key.Of()))
}

// errNoObject is the error for a stored value that is no JSON object.
var errNoObject = errors.New("the stored value is no JSON object")

// protobufPrefix begins a value that was imported as a stock server had encrypted it.
var protobufPrefix = []byte("k8s\x00")

// Open decrypts a stored value: a valid JSON object. It fails with Timeout if the value may be read later.
func (l *Log) Open(ctx context.Context, key sqlstore.Key, stored []byte) ([]byte, error) {
	var transformer value.Transformer
	if l.Transformers != nil {
		transformer = l.Transformers(schema.GroupResource{Group: key.Group, Resource: key.Resource})
	}
	path := "/registry/" + l.Prefix(key.Of()) + "/"
	if key.Namespace != "" {
		path += key.Namespace + "/"
	}
	data, err := storage.Decrypt(ctx, transformer, stored, path+key.Name)
	if encoding.IsOfAbsentPlugin(err) {
		klog.V(2).InfoS("A change can't be decrypted now", "resource", key.Resource, "err", err)
		return nil, apierrors.NewTimeoutError("the KMS plugin that decrypts the change does not answer", 1)
	}
	if err == nil && bytes.HasPrefix(data, protobufPrefix) {
		var object runtime.Object
		if object, _, err = legacyscheme.Codecs.UniversalDeserializer().Decode(data, nil, nil); err == nil {
			data, err = json.Marshal(object)
		}
	}
	if err != nil {
		return nil, err
	}
	if data = bytes.TrimSpace(data); !json.Valid(data) || data[0] != '{' {
		return nil, errNoObject
	}
	return data, nil
}

// Revision returns the moment that a text names, by the database's clock and in UTC, and its revision: that which it
// is, or the last one whose time is not after it. Whether the history reaches back to it is for Covers to say.
func (l *Log) Revision(ctx context.Context, text string) (m moment.Moment, revision int64, err error) {
	state, err := l.Driver.State(ctx)
	if err != nil {
		return m, 0, APIError(err)
	}
	if m, err = moment.Parse(text, state.Time.UTC()); err != nil {
		return m, 0, apierrors.NewBadRequest(err.Error())
	}
	if m.Time.IsZero() {
		return m, m.Revision, nil
	}
	revision, err = l.Driver.RevisionAt(ctx, m.Time)
	return m, revision, APIError(err)
}

// Covers fails with the code 410 if one of the histories, which are what the user has asked for, does not reach back to
// a moment, which has a revision. The past reaches back beyond where watches do: to CompleteAfter.
func Covers(what, at string, revision int64, histories ...sqlstore.History) error {
	var last sqlstore.History
	for i := range histories {
		if h := &histories[i]; h.CompleteAfter > revision && h.CompleteAfter > last.CompleteAfter {
			last = *h
		}
	}
	if last.CompleteAfter == 0 {
		return nil
	}
	message := what + " does not reach back to " + at + ": the earliest moment is revision " +
		strconv.FormatInt(last.CompleteAfter, 10)
	if last.First > 0 {
		message += ", or " + last.FirstTime.UTC().Format(time.RFC3339Nano)
	}
	return apierrors.NewResourceExpired(message)
}

// IsInternal reports whether a record is no object of the API.
func IsInternal(key sqlstore.Key) bool {
	if key.Owner == sqlstore.Custom {
		return false
	}
	return key.Group == "byre" || key.Group == "" &&
		(key.Resource == "servicenodeportallocations" || key.Resource == "apiserveripinfo")
}

// APIError converts an error of the driver to one of the API; nil stays nil.
func APIError(err error) error {
	switch {
	case err == nil, errors.Is(err, context.Canceled):
		return err
	case errors.Is(err, sqlstore.ErrUnavailable), errors.Is(err, sqlstore.ErrClosed), errors.Is(err, watch.ErrClosed):
		unavailable := apierrors.NewServiceUnavailable(sqlstore.Public(err))
		unavailable.ErrStatus.Details = &metav1.StatusDetails{RetryAfterSeconds: 1}
		return unavailable
	case errors.Is(err, context.DeadlineExceeded):
		return apierrors.NewTimeoutError("request did not complete within requested timeout", 0)
	}
	// The client does not get the database's message, which may hold SQL or paths.
	klog.ErrorS(err, "The history can't be read")
	return apierrors.NewInternalError(errors.New(sqlstore.Public(err)))
}
