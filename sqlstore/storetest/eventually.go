package storetest

import (
	"context"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
)

const (
	// interval is the time between two attempts.
	interval = 5 * time.Millisecond
	// timeout bounds a wait in the test's own process. It is long, so that tests pass on a
	// busy machine; only a test that fails waits for so long.
	timeout = time.Minute

	// Patience bounds a wait for another program, or for a cluster of programs.
	Patience = 5 * time.Minute
	// programInterval is the time between two attempts that ask another program.
	programInterval = 100 * time.Millisecond
)

// Eventually calls condition until it returns true. After a minute, or when the test's context
// ends, it fails the test with t.Fatalf; what names the condition in the message. It must
// be called from the test's own goroutine.
func Eventually(t testing.TB, what string, condition func() bool) {
	t.Helper()
	EventuallyDone(t, what, func(context.Context) (bool, error) { return condition(), nil })
}

// EventuallyDone calls condition until it returns true and no error, under the same rules as Eventually. It
// calls condition again after an error, and reports the last error if the time is over. The
// context of condition ends when EventuallyDone returns.
func EventuallyDone(t testing.TB, what string, condition wait.ConditionWithContextFunc) {
	t.Helper()
	poll(t, what, interval, timeout, condition)
}

// EventuallySucceeds calls try until it returns nil. After Patience, or when the test's context ends,
// it fails the test with the last error. Like Eventually, it must be called from the test's own
// goroutine.
func EventuallySucceeds(t testing.TB, what string, try func() error) {
	t.Helper()
	poll(t, what, programInterval, Patience, func(context.Context) (bool, error) { return true, try() })
}

func poll(t testing.TB, what string, every, limit time.Duration, condition wait.ConditionWithContextFunc) {
	t.Helper()
	var last error
	err := wait.PollUntilContextTimeout(t.Context(), every, limit, true, func(ctx context.Context) (bool, error) {
		done, err := condition(ctx)
		if ctx.Err() == nil {
			last = err
		}
		return done && err == nil, nil
	})
	if err != nil {
		t.Fatalf("%s: not within %v: %v (last error: %v)", what, limit, err, last)
	}
}
