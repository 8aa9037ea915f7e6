package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
)

// resumeInterval is the time between two tries to go on.
const resumeInterval = time.Second

// Follow calls f for each selected change after a resourceVersion, as a table of the server, until ctx
// ends. It then returns nil. After a disconnect it goes on where it has stopped.
func (c *Client) Follow(ctx context.Context, q Query, revision string, f func(*metav1.Table) error) error {
	for {
		failed := c.watch(ctx, q, &revision, f)
		var status apierrors.APIStatus
		switch {
		case ctx.Err() != nil:
			return nil
		case apierrors.IsResourceExpired(failed):
			return fmt.Errorf("the changes after revision %s can't be followed any more: run the command again: %w", revision, failed)
		case errors.As(failed, &status) && status.Status().Code < http.StatusInternalServerError && !apierrors.IsTooManyRequests(failed), errors.As(failed, new(*printError)):
			return failed
		}
		select {
		case <-time.After(resumeInterval):
		case <-ctx.Done():
		}
	}
}

// printError is an error of the function that Follow calls.
type printError struct{ error }

func (e *printError) Unwrap() error { return e.error }

// watch is one watch. It moves revision forward to the last change that it has received.
func (c *Client) watch(ctx context.Context, q Query, revision *string, f func(*metav1.Table) error) error {
	request := c.get(q, tables).Param("watch", "true").Param("allowWatchBookmarks", "true").Param("resourceVersion", *revision)
	stream, err := request.Stream(ctx)
	if err != nil {
		return err
	}
	defer stream.Close()
	for events := json.NewDecoder(stream); ; {
		var event metav1.WatchEvent
		if err := events.Decode(&event); err != nil {
			return err
		}
		if event.Type == string(watch.Error) {
			var status metav1.Status
			if err := json.Unmarshal(event.Object.Raw, &status); err != nil {
				return err
			}
			return &apierrors.StatusError{ErrStatus: status}
		}
		var table metav1.Table
		if err := json.Unmarshal(event.Object.Raw, &table); err != nil {
			return err
		}
		if event.Type == string(watch.Added) {
			if err := f(&table); err != nil {
				return &printError{err}
			}
		}
		*revision = table.ResourceVersion
	}
}
