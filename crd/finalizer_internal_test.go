package crd

import (
	"errors"
	"testing"
	"testing/synctest"
)

func TestStoreCalls_Drain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &storeCalls{}
		begun, finish := make(chan struct{}), make(chan struct{})
		failure := errors.New("failed")
		result, ended := make(chan error, 1), make(chan struct{})
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
		if err := e.do(func() error { return nil }); !errors.Is(err, errStopped) {
			t.Errorf("a later call gave %v", err)
		}
	})
}
