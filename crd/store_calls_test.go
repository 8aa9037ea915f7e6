package crd

import (
	"errors"
	"testing"

	"byre/sqlstore/eventually"
)

func TestStoreCalls_Drain(t *testing.T) {
	t.Parallel()
	e := &storeCalls{}
	begun, finish, ended := make(chan struct{}), make(chan struct{}), make(chan struct{})
	failure := errors.New("failed")
	result := make(chan error, 1)
	go func() {
		result <- e.do(func() error {
			close(begun)
			<-finish
			return failure
		})
	}()
	<-begun
	go func() {
		e.drain()
		close(ended)
	}()
	eventually.True(t, "calls are refused", func() bool {
		return errors.Is(e.do(func() error { return nil }), errStopped)
	})
	select {
	case <-ended:
		t.Fatal("drained before a call that was in flight")
	default:
	}
	close(finish)
	<-ended
	if err := <-result; !errors.Is(err, failure) {
		t.Errorf("the call in flight gave %v", err)
	}
}
