package crd

import (
	"errors"
	"testing"
)

func TestErrandsEnd(t *testing.T) {
	e := &errands{}
	begun, finish, ended := make(chan struct{}), make(chan struct{}), make(chan struct{})
	failure := errors.New("failed")
	result := make(chan error, 1)
	go func() {
		result <- e.run(func() error {
			close(begun)
			<-finish
			return failure
		})
	}()
	<-begun
	go func() {
		e.end()
		close(ended)
	}()
	eventuallyRefused(t, e)
	select {
	case <-ended:
		t.Fatal("ended before an errand that was under way")
	default:
	}
	close(finish)
	<-ended
	if err := <-result; !errors.Is(err, failure) {
		t.Errorf("the errand under way gave %v", err)
	}
}

// eventuallyRefused waits until no errand begins any more.
func eventuallyRefused(t *testing.T, e *errands) {
	t.Helper()
	for {
		if err := t.Context().Err(); err != nil {
			t.Fatal(err)
		}
		if err := e.run(func() error { return nil }); errors.Is(err, errEnded) {
			return
		}
	}
}
