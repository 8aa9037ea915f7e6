package query

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/ncruces/go-sqlite3"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"

	"byre/apiserver/storage/changes"
	"byre/apiserver/storage/encoding"
	"byre/sqlstore"
	"byre/watch"
)

// errTimeout is the cause of a query's context that has ended after the time of a query.
var errTimeout = errors.New("the query's time is over")

// errAgo is the error of the function ago.
var errAgo = errors.New("ago takes a duration such as '90m' or '24h'")

// apiError converts an error of a query to one of the API.
func apiError(ctx context.Context, sql string, timeout time.Duration, err error) error {
	var status *apierrors.StatusError
	var engine *sqlite3.Error
	switch {
	case err == nil:
		return nil
	case errors.Is(context.Cause(ctx), errTimeout):
		return newError(http.StatusRequestTimeout, metav1.StatusReasonTimeout, fmt.Sprintf("the query took longer than %s", timeout))
	case ctx.Err() != nil:
		return changes.APIError(ctx.Err())
	case errors.As(err, &status):
		return status
	case errors.Is(err, errTooLarge), errors.Is(err, sqlite3.TOOBIG), errors.Is(err, sqlite3.NOMEM):
		return newError(http.StatusRequestEntityTooLarge, metav1.StatusReasonRequestEntityTooLarge, errTooLarge.Error())
	case errors.Is(err, errEmpty), errors.Is(err, errTooDeep), errors.Is(err, errSeveral), errors.Is(err, errParameters):
		return badStatement(err.Error(), sql, "")
	case errors.Is(err, sqlite3.AUTH) && (!errors.As(err, &engine) || strings.HasSuffix(engine.Error(), "not authorized")):
		return badStatement("only one SELECT is allowed", sql, "")
	case errors.As(err, &engine):
		return badStatement(message(engine), sql, engine.SQL())
	case errors.Is(err, sqlstore.ErrUnavailable), errors.Is(err, sqlstore.ErrClosed), errors.Is(err, watch.ErrClosed):
		return changes.APIError(err)
	}
	klog.ErrorS(err, "A query has failed")
	return apierrors.NewInternalError(errors.New("the query has failed; the server's log has the cause"))
}

// unreadable returns the error for an object that can't be read. It is nil for one that can't be decrypted or decoded, of
// which all values are NULL, as any that does not fit. One that can be read later is an error.
func unreadable(ctx context.Context, err error) error {
	if encoding.IsOfAbsentPlugin(err) {
		return apierrors.NewTimeoutError("the KMS plugin that decrypts an object does not answer", 1)
	}
	if apierrors.IsTooManyRequests(err) || apierrors.IsServiceUnavailable(err) || apierrors.IsTimeout(err) {
		return err
	}
	return ctx.Err()
}

// message is what SQLite says is wrong with a statement.
func message(err *sqlite3.Error) string {
	text := strings.TrimPrefix(err.Error(), "sqlite3: ")
	for _, code := range []string{"SQL logic error: ", "authorization denied: "} {
		text = strings.TrimPrefix(text, code)
	}
	return text
}

// badStatement returns the error 400 for a statement. rest is what of it begins where the error is; empty if
// that is not known.
func badStatement(message, sql, rest string) error {
	cause := metav1.StatusCause{Type: metav1.CauseTypeFieldValueInvalid, Field: "spec.sql", Message: message}
	if rest != "" && strings.HasSuffix(sql, rest) {
		before := sql[:len(sql)-len(rest)]
		line, column := 1+strings.Count(before, "\n"), 1+len([]rune(before[strings.LastIndexByte(before, '\n')+1:]))
		message = fmt.Sprintf("%s, at line %d, column %d", message, line, column)
		cause.Message = message
	}
	err := newError(http.StatusBadRequest, metav1.StatusReasonBadRequest, message)
	err.ErrStatus.Details = &metav1.StatusDetails{Group: GroupName, Kind: queries.Resource, Causes: []metav1.StatusCause{cause}}
	return err
}

func newError(code int32, reason metav1.StatusReason, message string) *apierrors.StatusError {
	return &apierrors.StatusError{ErrStatus: metav1.Status{Status: metav1.StatusFailure, Code: code, Reason: reason, Message: message}}
}
